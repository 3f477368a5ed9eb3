"""Inner joins next to each other, and the filters and renaming Projects around them, taken apart. Driver-side."""

from dataclasses import dataclass, field

from .join_kinds import join_type
from .planning import NotPlanned, Planning
from .scala import JavaObject, conjuncts, items, kind


@dataclass(frozen=True)
class Input:
    """What a cluster stands on: `inputs[number]`."""

    number: int


@dataclass(frozen=True)
class Filtered:
    """WHERE: conjuncts, in the attributes of the inputs."""

    conditions: tuple[JavaObject, ...]
    child: "Written"


@dataclass(frozen=True)
class Joined:
    """An inner or cross join, its conjuncts, and the node as Spark has it."""

    conditions: tuple[JavaObject, ...]
    left: "Written"
    right: "Written"
    node: JavaObject


Written = Input | Filtered | Joined


@dataclass
class Cluster:
    """A maximal group of inner joins. `written` is its tree; `sources`: for an alias's id the attribute that it renames."""

    planning: Planning
    inputs: list[JavaObject] = field(default_factory=list)
    sources: dict[int, JavaObject] = field(default_factory=dict)
    written: Written | None = None

    @staticmethod
    def of(planning: Planning, root: JavaObject) -> "Cluster":
        """The cluster whose topmost node is `root`. Raises NotPlanned when inputs can't be told apart."""
        cluster = Cluster(planning)
        cluster.written = cluster._take(root)
        ids = [a.exprId().id() for plan in cluster.inputs for a in items(plan.output())]
        if len(set(ids)) < len(ids):
            raise NotPlanned("two of its inputs share a column")
        return cluster

    @property
    def conditions(self) -> list[JavaObject]:
        """All conjuncts, innermost first."""
        return _conditions(self.written)

    def resolved(self, expression: JavaObject) -> JavaObject:
        """The expression in the attributes of the inputs."""
        if not self.sources or not self.planning.references([expression]) & self.sources.keys():
            return expression
        return self.planning.catalyst.substitute(expression, self.sources)

    def _take(self, node: JavaObject) -> Written:
        if not is_member(node) or not (joins(node) or self.planning.mentions_ai(node)):
            return self._input(node)
        if kind(node) == "Project":
            child = self._take(node.child())
            renamed = [e for e in items(node.projectList()) if kind(e) == "Alias"]
            self.sources |= {alias.exprId().id(): self.resolved(alias.child()) for alias in renamed}
            return child
        if kind(node) == "Filter":
            return self._filtered(node)
        left, right = self._take(node.left()), self._take(node.right())
        return Joined(
            self._conjuncts(node.condition().get()) if node.condition().isDefined() else (), left, right, node
        )

    def _filtered(self, node: JavaObject) -> Written:
        below = node.child()
        if is_member(below) and (joins(below) or self.planning.mentions_ai(below)):
            child = self._take(below)
            return Filtered(self._conjuncts(node.condition()), child)
        asking = [c for c in conjuncts(node.condition()) if self.planning.calls_ai(c)]
        relational = [c for c in conjuncts(node.condition()) if not self.planning.calls_ai(c)]
        return Filtered(tuple(asking), self._input(self.planning.catalyst.filter(relational, below)))

    def _conjuncts(self, condition: JavaObject) -> tuple[JavaObject, ...]:
        return tuple(map(self.resolved, conjuncts(condition)))

    def _input(self, plan: JavaObject) -> Input:
        self.inputs.append(plan)
        return Input(len(self.inputs) - 1)


def _conditions(written: Written) -> list[JavaObject]:
    if isinstance(written, Input):
        return []
    sides = (written.child,) if isinstance(written, Filtered) else (written.left, written.right)
    return [condition for side in sides for condition in _conditions(side)] + list(written.conditions)


def is_member(node: JavaObject) -> bool:
    """Whether rows may pass this node in another order: an inner join without a hint, a filter, a Project that only renames;
    nothing random."""
    name = kind(node)
    if name == "Join":
        hint, condition = node.hint(), node.condition()
        hinted = hint.leftHint().isDefined() or hint.rightHint().isDefined()
        random = condition.isDefined() and not condition.get().deterministic()
        return join_type(node) in ("Inner", "Cross") and not hinted and not random
    if name == "Filter":
        return node.condition().deterministic()
    return name == "Project" and all(map(_renames, items(node.projectList())))


def joins(node: JavaObject) -> bool:
    """Whether an inner join stands in a cluster at this node."""
    return is_member(node) and (kind(node) == "Join" or any(map(joins, items(node.children()))))


def _renames(expression: JavaObject) -> bool:
    child = expression.child() if kind(expression) == "Alias" else expression
    return kind(child) == "AttributeReference"
