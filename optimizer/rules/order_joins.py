"""Inner joins and the filters around them, in the cheapest order with the cheapest anchors (see `joins`)."""

from dataclasses import dataclass, field, replace

from ..cardinality import Cardinality
from ..context import PlanContext
from ..errors import PromptError
from ..joins import JoinProblem, Move, plan_joins
from ..logical import AiFilter, AiJoin, AiPredicate, Plan, TextRef, children, relations, tables, with_children
from ..rows import equality_share, plan_rows
from ..steps import make_step

LEAST_REDUCED = 0.01  # a question is asked above a relational join if that leaves it fewer rows by this share


def order_joins(plan: Plan, context: PlanContext) -> Plan:
    """Replan every group of adjacent inner joins and filters, relational joins included: they may spare a filter rows."""
    known = tables(plan)

    def replanned(node: Plan) -> Plan:
        group = _Group()
        group.take(node)
        if not group.predicates or (len(group.inputs) == 1 and all(len(p.relations) == 1 for p in group.predicates)):
            return with_children(node, tuple(map(replanned, children(node))))
        group.inputs = [replanned(each) for each in group.inputs]
        return _planned(group, context, known)

    return replanned(plan)


@dataclass
class _Group:
    """Adjacent inner joins and filters, taken apart. `inputs`: what they stand on."""

    inputs: list[Plan] = field(default_factory=list)
    predicates: list[AiPredicate] = field(default_factory=list)
    keys: list[tuple[TextRef, TextRef]] = field(default_factory=list)
    layout: str | None = None

    def take(self, node: Plan) -> None:
        """Add a node and what is below it, inputs in the order of the query."""
        if isinstance(node, AiFilter):
            self.take(node.child)
        elif isinstance(node, AiJoin) and node.kind == "inner":
            self.take(node.left)
            self.take(node.right)
            self.keys += node.keys
        else:
            self.inputs.append(node)
            return
        self.predicates += [p for p in node.predicates if p not in self.predicates]
        self.layout = self.layout or node.layout


def _planned(group: _Group, context: PlanContext, known) -> Plan:
    layout = group.layout or context.layout
    steps = [make_step(predicate, known, layout, context) for predicate in group.predicates]
    tree = _Tree(group.inputs, layout)
    for predicate in group.predicates:
        tree.check(predicate)
    rows = Cardinality({})
    for each in group.inputs:
        rows = rows | plan_rows(each, context, known)
    for left, right in group.keys:
        rows = rows.equal(left.relation, right.relation, equality_share(left, right, known))
        tree.join_on(left, right)
    problem = JoinProblem(steps, tree.blocks, rows, context.roofline, context.chunk)
    applied = 0
    for move in plan_joins(problem).moves:
        left = problem.rows(applied)
        tree.reduced = frozenset(n for n, count in left.rows.items() if left.live(n) < count * (1 - LEAST_REDUCED))
        tree.ask(group.predicates[move.step], move)
        applied |= 1 << move.step
    return tree.whole()


class _Tree:
    """Trees over the inputs, which grow together."""

    def __init__(self, inputs: list[Plan], layout: str):
        self._plans, self._layout = list(inputs), layout
        self.reduced: frozenset[str] = frozenset()  # relations of which joins leave fewer rows than their own filters

    @property
    def blocks(self) -> list[frozenset[str]]:
        """The relations of each tree."""
        return [relations(plan) for plan in self._plans]

    def check(self, predicate: AiPredicate) -> None:
        """Raise PromptError when a question reads a relation whose rows are not there (the right side of a semi join)."""
        for relation in predicate.relations:
            if not any(relation in block for block in self.blocks):
                accepted = ", ".join(sorted(frozenset().union(*self.blocks)))
                raise PromptError(f"the question {predicate.words!r} reads {relation!r}; accepted here: {accepted}")

    def join_on(self, left: TextRef, right: TextRef) -> None:
        """A relational join."""
        a, b = self._of(left.relation), self._of(right.relation)
        if a is b:
            node = self._with_key(a, left, right)
            self._replace((a,), node)
        else:
            self._replace((a, b), AiJoin("inner", a, b, keys=((left, right),)))

    def ask(self, predicate: AiPredicate, move: Move) -> None:
        """Put a predicate on top of what it reads, joined first where it is not yet."""
        touched = list({id(plan): plan for name in predicate.relations for plan in [self._of(name)]}.values())
        touched.sort(key=lambda plan: (-len(relations(plan)), self._plans.index(plan)))  # what has grown stands left
        if len(touched) == 1:
            self._replace(touched, self._asked(touched[0], predicate, move))
            return
        node = touched[0]
        for other in touched[1:-1]:
            node = AiJoin("inner", node, other)
        self._replace(touched, AiJoin("inner", node, touched[-1], (), (predicate,), move.anchor, layout=self._layout))

    def whole(self) -> Plan:
        """One tree; parts that nothing joins meet row by row."""
        node, *others = self._plans
        for other in others:
            node = AiJoin("inner", node, other)
        return node

    def _asked(self, plan: Plan, predicate: AiPredicate, move: Move) -> Plan:
        if isinstance(plan, AiJoin) and plan.kind == "inner" and not plan.predicates:
            for side in ("left", "right"):
                below = getattr(plan, side)
                if set(predicate.relations) <= relations(below) - self.reduced:
                    return replace(plan, **{side: self._asked(below, predicate, move)})
        if isinstance(plan, AiJoin) and plan.kind == "inner" and len(predicate.relations) > 1:
            crosses = all(set(predicate.relations) & relations(side) for side in (plan.left, plan.right))
            if crosses and plan.anchor in (None, move.anchor):
                return replace(plan, predicates=(*plan.predicates, predicate), anchor=move.anchor, layout=self._layout)
        if isinstance(plan, AiFilter) and plan.layout in (None, self._layout):
            return replace(
                plan,
                predicates=(*plan.predicates, predicate),
                anchors=(*plan.anchors, move.anchor),
                layout=self._layout,
            )
        return AiFilter((predicate,), plan, (move.anchor,), layout=self._layout)

    def _of(self, relation: str) -> Plan:
        return next(plan for plan in self._plans if relation in relations(plan))

    def _replace(self, old, new: Plan) -> None:
        at = min(next(i for i, plan in enumerate(self._plans) if plan is each) for each in old)
        self._plans = [plan for plan in self._plans if not any(plan is each for each in old)]
        self._plans.insert(at, new)

    def _with_key(self, node: Plan, left: TextRef, right: TextRef) -> Plan:
        sides = (relations(node.left), relations(node.right))
        for number, side in enumerate(sides):
            if {left.relation, right.relation} <= side:
                inner = self._with_key((node.left, node.right)[number], left, right)
                return replace(node, **{("left", "right")[number]: inner})
        key = (left, right) if left.relation in sides[0] else (right, left)
        return replace(node, keys=(*node.keys, key))
