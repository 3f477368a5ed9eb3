"""A step of a plan: one predicate, asked of the rows or combinations of rows that are left."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from .cardinality import Cardinality
from .context import PlanContext
from .errors import PromptError
from .layout import PromptShape, prompt_shape
from .logical import AiPredicate, TextRef
from .repeats import Asking, Passed, asking, prompt_key, question_key
from .statistics import TableStats, TextStats
from .work import Work, ask, ask_pairs, pairs_until_true


@dataclass(frozen=True)
class Step:
    """`shapes`: the prompt by anchor, for each relation that may be it. `rate`: expected share of TRUE.

    `question` and, by anchor, `prompts` are equal for steps that ask the same under other aliases; `sizes`: rows of the tables.
    """

    predicate: AiPredicate
    rate: float
    shapes: Mapping[str, PromptShape]
    question: Hashable
    prompts: Mapping[str, Hashable]
    sizes: Mapping[str, float]

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations that the question reads."""
        return self.predicate.relations

    def document(self, anchor: str) -> Hashable | None:
        """What the KV of the anchors' documents is known by; None: nothing is shared."""
        return self.shapes[anchor].key

    def asking(self, rows: Cardinality, passed: Passed) -> Asking:
        """Which combinations are asked, given the questions that each relation has passed."""
        return asking(self.relations, self.sizes, rows, passed)

    def after(self, rows: Cardinality) -> Cardinality:
        """What is left of `rows` behind this step."""
        return rows.asked(self.relations, self.rate)

    def work(
        self, rows: Cardinality, anchor: str, held: bool, keep: bool, chunk: float, until_true: float | None = None
    ) -> Work:
        """Work for the rows that are left. `held`: the documents' KV is there. `keep`: it stays, which a question about one
        relation must pay for; combinations write it anyway.

        `until_true`: an anchor is done once a combination passed all questions, which each does at this rate (semi and
        anti joins).
        """
        shape = self.shapes[anchor]
        if len(self.relations) == 1:
            return ask(shape.document, shape.frame + shape.rest, held, keep) * rows.live(anchor)
        pairs = rows.combinations(self.relations)
        anchors = min(rows.live(anchor), pairs)
        if until_true is not None and anchors:
            pairs = anchors * pairs_until_true(pairs / anchors, until_true)
        return ask_pairs(anchors, pairs, shape.document, shape.frame, shape.rest, held, chunk)


def make_step(
    predicate: AiPredicate,
    tables: Mapping[str, TableStats],
    layout: str,
    context: PlanContext,
    anchor: str | None = None,
) -> Step:
    """A step whose anchor is `anchor`, else the one the option names, else open. Raises PromptError for an unknown relation."""
    for relation in predicate.relations:
        if relation not in tables:
            raise PromptError(
                f"the question {predicate.words!r} reads {relation!r}; accepted here: {', '.join(sorted(tables))}"
            )

    def stats(text: TextRef) -> TextStats:
        return tables[text.relation].text(text.column)

    hinted = predicate.hinted()
    anchors = (anchor,) if anchor else (hinted[0].relation,) if hinted else predicate.relations
    shapes = {name: prompt_shape(predicate, name, layout, stats) for name in anchors}
    prompts = {name: prompt_key(predicate, name, tables) for name in anchors}
    sizes = {name: tables[name].rows.value for name in predicate.relations}
    return Step(predicate, context.rate(predicate).value, shapes, question_key(predicate, tables), prompts, sizes)
