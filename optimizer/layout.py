"""What of a prompt stands where, in tokens: the document before the question, or the texts where the template has them.

The sections and their constant texts are those of `engine/prompts.py`, which writes the prompts: `document` is shared by
all questions about a text, `frame` by all partners of an anchor, `rest` by nobody.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from .logical import AiPredicate, TextRef
from .statistics import BYTES_PER_TOKEN, TextStats
from .template import Placeholder, parse_template
from .work import NOTHING, Length

CHAT_END = (
    5.0  # tokens that end the user's message and begin the assistant's; those before the document all prompts share
)
LABEL, OTHER_LABEL = "DOCUMENT:\n", "\n\nDOCUMENT B:\n"
REFERENCE, OTHER_REFERENCE = "the document", "document B"
QUESTION_BEFORE, QUESTION_BEHIND = "\n\nQUESTION: ", "\nAnswer TRUE or FALSE."
LITERAL_INSTRUCTION = "\n\nAnswer TRUE or FALSE."
CUE = "ANSWER:"

Part = str | TextRef
Sections = tuple[tuple[Part, ...], tuple[Part, ...], tuple[Part, ...]]


@dataclass(frozen=True)
class PromptShape:
    """Token lengths of the sections. `key` is equal for prompts that share their document; None: nothing is shared."""

    key: tuple[Part, ...] | None
    document: Length
    frame: Length
    rest: Length


def prompt_shape(
    predicate: AiPredicate, anchor: str, layout: str, stats: Callable[[TextRef], TextStats]
) -> PromptShape:
    """The shape of a predicate's prompts when the texts of relation `anchor` stand first, as far as the layout allows: the
    predicate's own, else `layout`."""
    arrange = _literal if (predicate.layout or layout) == "literal" else _document_first
    document, frame, rest = arrange(predicate, predicate.front(anchor))
    lengths: Mapping[TextRef, Length] = {text: stats(text).length for text in predicate.used}
    behind = {text: replace(length, shared=0.0) for text, length in lengths.items()}
    first = next((part for part in document if isinstance(part, TextRef)), None)
    if first is None:
        return PromptShape(None, NOTHING, NOTHING, _tokens((*document, *frame, *rest), behind) + _end(predicate))
    ahead = behind | {first: lengths[first]}
    return PromptShape(
        document, _tokens(document, ahead), _tokens(frame, behind), _tokens(rest, behind) + _end(predicate)
    )


def _end(predicate: AiPredicate) -> Length:
    cue = len(CUE) / BYTES_PER_TOKEN if len(predicate.used) == 1 else 0.0
    return Length.exactly(CHAT_END + cue)


def _tokens(parts: tuple[Part, ...], lengths: Mapping[TextRef, Length]) -> Length:
    each = [lengths[p] if isinstance(p, TextRef) else Length.exactly(len(p.encode()) / BYTES_PER_TOKEN) for p in parts]
    return reduce(Length.__add__, each, NOTHING)


def _parts(predicate: AiPredicate) -> list[Part]:
    pieces = parse_template(predicate.template)
    return [predicate.arguments[p.index] if isinstance(p, Placeholder) else p.text for p in pieces]


def _document_first(predicate: AiPredicate, front: tuple[TextRef, ...]) -> Sections:
    behind = tuple(text for text in predicate.used if text not in front)
    numbers = {text: number for number, text in enumerate((*front, *behind))}
    question = "".join(
        (OTHER_REFERENCE if numbers[p] else REFERENCE) if isinstance(p, TextRef) else p for p in _parts(predicate)
    )
    labelled = [(OTHER_LABEL if numbers[text] else LABEL, text) for text in (*front, *behind)]
    document = tuple(part for pair in labelled[: len(front)] for part in pair)
    asked = QUESTION_BEFORE + question + QUESTION_BEHIND
    if not behind:
        return document, (), (asked,)
    partners = tuple(part for pair in labelled[len(front) :] for part in pair)
    return document, (asked, partners[0]), partners[1:]


def _literal(predicate: AiPredicate, front: tuple[TextRef, ...]) -> Sections:
    parts = tuple(_parts(predicate))
    texts = [at for at, part in enumerate(parts) if isinstance(part, TextRef)]
    partner = next((at for at in texts if parts[at] not in front), None)
    leading = [at for at in texts if partner is None or at < partner]
    document_end = leading[-1] + 1 if leading else partner or 0
    frame_end = document_end if partner is None else partner
    return parts[:document_end], parts[document_end:frame_end], (*parts[frame_end:], LITERAL_INSTRUCTION)
