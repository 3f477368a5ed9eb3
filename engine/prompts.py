"""From a predicate to a prompt: what stands where, as parts that are encoded separately.

A prompt has three sections, so that KV can be shared by construction:
* `document`: the start of the chat, a label and the anchor's text; the same for every predicate about that text;
* `frame`: the question up to the first partner's text; the same for every partner of an anchor (empty without partners);
* `rest`: all else, with the answer cue and the start of the assistant's message.
"""

from dataclasses import dataclass

from quail_spark.optimizer.plan import Predicate
from quail_spark.optimizer.template import Literal, Placeholder, parse_template

PROMPT_VERSION = 1  # raise it with any change below: remembered answers belong to a version

# The choice among phrasings, with figures, is in docs/prompts.md.
LABEL = "DOCUMENT:\n"
REFERENCE = "the document"
OTHER_LABEL = "\n\nDOCUMENT {letter}:\n"
OTHER_REFERENCE = "document {letter}"
QUESTION = "\n\nQUESTION: {question}\nAnswer TRUE or FALSE."
LITERAL_INSTRUCTION = "\n\nAnswer TRUE or FALSE."
CUE = "ANSWER:"


@dataclass(frozen=True)
class Control:
    """A part of the chat template: control tokens count as such. `Literal` and `Placeholder` are data."""

    text: str


Part = Control | Literal | Placeholder


@dataclass(frozen=True)
class Prompt:
    """The three sections; a `Placeholder` stands for the text of that argument."""

    document: tuple[Part, ...]
    frame: tuple[Part, ...]
    rest: tuple[Part, ...]

    def text(self, texts: dict[int, str]) -> str:
        """The prompt as the model reads it, for people: `texts` by placeholder."""
        parts = self.document + self.frame + self.rest
        return "".join(texts[part.index] if isinstance(part, Placeholder) else part.text for part in parts)


def lay_out(predicate: Predicate, layout: str, chat: tuple[str, str] | None) -> Prompt:
    """The prompt of a predicate: a function of template, anchor and layout only.

    `chat`: what the chat template puts before and behind the user's message; None for a model without one.
    """
    anchor = [i for i in predicate.used if predicate.anchor is not None and i in predicate.anchor]
    anchor = anchor or list(predicate.used[:1])
    arrange = _document_first if layout == "document_first" else _literal
    document, frame, rest = arrange(predicate, anchor)
    if chat is None:
        return Prompt(document, frame, (*rest, Literal(f"\n\n{CUE}")))
    cue = (Literal(CUE),) if len(predicate.used) < 2 else ()  # with two texts it drives small models to one answer
    return Prompt((Control(chat[0]), *document), frame, (*rest, Control(chat[1]), *cue))


def _document_first(predicate: Predicate, anchor: list[int]) -> tuple[tuple[Part, ...], ...]:
    """Anchor texts, the whole question with references in place of the texts, then the partners' texts."""
    partners = [i for i in predicate.used if i not in anchor]
    names = {i: number for number, i in enumerate(anchor + partners, 1)}
    pieces = parse_template(predicate.template)
    question = "".join(_reference(names[p.index]) if isinstance(p, Placeholder) else p.text for p in pieces)
    document = [part for i in anchor for part in (Literal(_label(names[i])), Placeholder(i))]
    before = [Literal(QUESTION.format(question=question))]
    behind = [part for i in partners for part in (Literal(_label(names[i])), Placeholder(i))]
    if not partners:
        return tuple(document), (), tuple(before)
    return tuple(document), (*before, behind[0]), tuple(behind[1:])  # the first partner's label stands in the frame


def _literal(predicate: Predicate, anchor: list[int]) -> tuple[tuple[Part, ...], ...]:
    """The texts where the template has them, then the instruction."""
    parts = parse_template(predicate.template)
    texts = [position for position, part in enumerate(parts) if isinstance(part, Placeholder)]
    partner = next((at for at in texts if parts[at].index not in anchor), None)
    leading = [at for at in texts if partner is None or at < partner]
    document_end = leading[-1] + 1 if leading else partner or 0
    frame_end = document_end if partner is None else partner
    rest = (*parts[frame_end:], Literal(LITERAL_INSTRUCTION))
    return parts[:document_end], parts[document_end:frame_end], rest


def _label(number: int) -> str:
    return LABEL if number == 1 else OTHER_LABEL.format(letter=_letter(number))


def _reference(number: int) -> str:
    return REFERENCE if number == 1 else OTHER_REFERENCE.format(letter=_letter(number))


def _letter(number: int) -> str:
    return chr(ord("A") + number - 1) if number <= 26 else str(number)
