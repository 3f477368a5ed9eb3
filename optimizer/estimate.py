"""What a planned query will cost: rows, tokens, seconds and money per operator, and the least it could take."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from .cardinality import Cardinality
from .context import PlanContext
from .logical import AiFilter, AiJoin, AiPredicate, Plan, Project, Relation, anchor_of, relations, tables
from .repeats import Asking, asked_before
from .roofline import Seconds
from .rows import after_join, before_predicates, plan_rows
from .statistics import Number, TableStats
from .steps import Step, make_step
from .work import Work


@dataclass(frozen=True)
class QuestionEstimate:
    """`asked`: rows or pairs that get this question; of `anchors` distinct rows of relation `anchor`.

    `again`: share of them that was asked before under another name of the table, and is no `work`.
    """

    predicate: AiPredicate
    anchor: str
    anchors: float
    asked: float
    rate: Number
    work: Work
    again: float = 0.0


@dataclass(frozen=True)
class OperatorEstimate:
    """One AI operator. `rows_in`: by relation that it reads, distinct rows; `rows_out`: rows of its result.

    `light`: seconds at the speed of light, where each distinct prefix of the query runs once on a device at its peak.
    """

    plan: AiFilter | AiJoin
    number: int
    rows_in: tuple[tuple[str, float], ...]
    rows_out: float
    questions: tuple[QuestionEstimate, ...]
    work: Work
    seconds: Seconds
    light: float


@dataclass(frozen=True)
class PlanEstimate:
    """All AI operators, in the order in which they run."""

    operators: tuple[OperatorEstimate, ...]
    context: PlanContext
    tables: Mapping[str, TableStats]
    rows_out: float

    @property
    def work(self) -> Work:
        """Of all operators."""
        return sum((operator.work for operator in self.operators), Work())

    @property
    def seconds(self) -> float:
        """Model time of all operators on one device."""
        return sum(operator.seconds.total for operator in self.operators)

    @property
    def light(self) -> float:
        """Seconds at the speed of light."""
        return sum(operator.light for operator in self.operators)

    @property
    def cost(self) -> float | None:
        """Money for `seconds`; None without a price per hour."""
        return None if self.context.price is None else self.seconds / 3600 * self.context.price

    def share(self, operator: OperatorEstimate) -> float:
        """An operator's part of the seconds, 0..1."""
        return operator.seconds.total / self.seconds if self.seconds else 0.0


def estimate_plan(plan: Plan, context: PlanContext) -> PlanEstimate:
    """Estimates of a plan as `optimize` returns it (anchors are set)."""
    walk = _Walk(plan, context)
    rows, _ = walk.visit(plan)
    return PlanEstimate(tuple(walk.operators), context, walk.tables, rows.total)


class _Walk:
    """One pass over a plan, inputs first. `computed`: documents that the speed of light need not compute again."""

    def __init__(self, plan: Plan, context: PlanContext):
        self.tables, self._context = tables(plan), context
        self.operators: list[OperatorEstimate] = []
        self._computed: set[Hashable] = set()
        self._asked: dict[Hashable, list[Asking]] = {}
        self._passed: dict[str, list[tuple[Hashable, float]]] = {}

    def visit(self, plan: Plan) -> tuple[Cardinality, Hashable | None]:
        """Rows that come out, and the document whose KV does."""
        if isinstance(plan, Relation):
            return plan_rows(plan, self._context, self.tables), None
        if isinstance(plan, Project):
            return self.visit(plan.child)
        if isinstance(plan, AiFilter):
            rows, held = self.visit(plan.child)
            return self._operator(plan, rows, held if _keeps(plan.child) else None, rows)
        anchored_left = plan.anchor in relations(plan.left)
        sides = (plan.right, plan.left) if anchored_left else (plan.left, plan.right)  # the anchors' side last
        (other, _), (side, held) = map(self.visit, sides)
        left, right = (side, other) if anchored_left else (other, side)
        rows = before_predicates(plan, left | right, self.tables)
        if not plan.predicates:
            return after_join(plan, left, rows, self.tables), None
        return self._operator(plan, rows, held if _keeps(sides[1]) else None, left)

    def _operator(
        self, plan: AiFilter | AiJoin, rows: Cardinality, held: Hashable | None, left: Cardinality
    ) -> tuple[Cardinality, Hashable | None]:
        context, before, total, light, questions = self._context, rows, Work(), 0.0, []
        join = isinstance(plan, AiJoin)
        anchors = [anchor_of(plan, p) for p in plan.predicates] if join else plan.anchors
        layout = plan.layout or context.layout
        steps = [make_step(p, self.tables, layout, context, a) for p, a in zip(plan.predicates, anchors, strict=True)]
        until_true = None
        if join and plan.kind in ("semi", "anti"):
            until_true = 1.0
            for step in steps:
                until_true *= step.rate
        for number, (step, anchor) in enumerate(zip(steps, anchors, strict=True)):
            document = step.document(anchor)
            following = steps[number + 1].document(anchors[number + 1]) if number + 1 < len(steps) else None
            keep = document is not None and (following == document if number + 1 < len(steps) else plan.keeps)
            known = held is not None and held == document
            again = self._again(step, anchor, rows, until_true is None)
            new, whole = 1 - again, step.work(rows, anchor, known, keep, context.chunk, until_true)
            work = whole * new
            least = step.work(rows, anchor, document in self._computed, False, context.chunk, until_true) * new
            light += context.roofline.speed_of_light()(least)
            if document is not None:
                self._computed.add(document)
            rate = context.rate(step.predicate)
            questions.append(
                QuestionEstimate(step.predicate, anchor, rows.live(anchor), whole.answers, rate, work, again)
            )
            rows, total = step.after(rows), total + work
            held = document if (keep or len(step.relations) > 1) and new > 0.5 else None
        read = dict.fromkeys((*anchors, *(r for step in steps for r in step.relations)))
        out = after_join(plan, left, rows, self.tables) if join else rows
        self.operators.append(
            OperatorEstimate(
                plan,
                len(self.operators) + 1,
                tuple((name, before.live(name)) for name in read),
                out.total,
                tuple(questions),
                total,
                context.roofline.seconds(total),
                light,
            )
        )
        return out, held

    def _again(self, step: Step, anchor: str, rows: Cardinality, all_asked: bool) -> float:
        """Share of what is asked now that was asked before under another alias; and note it, where `all_asked`."""
        now, prompt = step.asking(rows, self._passed), step.prompts[anchor]
        again = asked_before(self._asked.get(prompt, ()), now)
        if all_asked:
            self._asked.setdefault(prompt, []).append(now)
        if len(step.relations) == 1:
            self._passed.setdefault(step.relations[0], []).append((step.question, step.rate))
        return again


def _keeps(plan: Plan) -> bool:
    return isinstance(plan, AiFilter | AiJoin) and plan.keeps
