"""What an ON clause asks of one side by a subquery or in Python, computed as a column of that side. Driver-side."""

from .ai_calls import is_ai
from .join_conditions import side_of
from .planning import Planning
from .scala import JavaObject, items, kind


def with_computed_sides(
    planning: Planning, node: JavaObject, required: set[int] | None
) -> tuple[JavaObject, set[int] | None]:
    """A Join whose relational conditions can be evaluated within an array, as far as one side's columns make that possible,
    and what is read above it, its new columns left out. `required` as in plan_filter.

    EXISTS, IN, scalar subqueries and UDFs that read one side (or none) move below the join, whole or out of a larger
    condition. AI calls stay, and so does what reads both sides.
    """
    moved = _Moved(planning, node)
    condition = moved.without(node.condition().get())
    if not any(moved.columns.values()):
        return node, required
    read = {a.exprId().id() for a in items(node.output())} if required is None else required
    left, right = (
        planning.catalyst.project([*items(side.output()), *moved.columns[name]], side) if moved.columns[name] else side
        for name, side in (("left", node.left()), ("right", node.right()))
    )
    return planning.catalyst.rejoined(node, left=left, right=right, condition=condition), read


class _Moved:
    """`columns`: by side, what was taken out of conditions."""

    def __init__(self, planning: Planning, node: JavaObject):
        self._planning, self._sides = planning, (node.left().outputSet(), node.right().outputSet())
        self.columns: dict[str, list[JavaObject]] = {"left": [], "right": []}

    def without(self, expression: JavaObject) -> JavaObject:
        """The expression with columns in place of what moves."""
        if not self._planning.builder.leavesTheRow(expression) or is_ai(expression):
            return expression
        side = side_of(expression, *self._sides)
        if side and expression.deterministic() and not self._planning.calls_ai(expression):
            column = self._planning.catalyst.alias(expression, f"on{sum(map(len, self.columns.values()))}")
            self.columns[side].append(column)
            return column.toAttribute()
        if kind(expression) in ("InSubquery", "Exists"):  # whole or not at all
            return expression
        children = items(expression.children())
        changed = [self.without(child) for child in children]
        if all(new is old for new, old in zip(changed, children, strict=True)):
            return expression
        return expression.withNewChildren(self._planning.catalyst.seq(changed))
