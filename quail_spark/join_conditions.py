"""What an ON clause asks: equal keys, conditions that choose partners, AI predicates, and what is none of these. Driver-side."""

from dataclasses import dataclass, field

from .ai_calls import AiCall, ai_call
from .planning import Planning, plain_sql
from .scala import JavaObject, conjuncts, items, kind

NESTED_TYPES = ("StructType", "ArrayType", "MapType", "VariantType")


@dataclass
class Conditions:
    """The conjuncts of an ON clause.

    `calls` are AI predicates each of whose arguments reads one side, and `about_pairs` says whether one of them reads
    both; `keys` are equal (left, right) expressions; `relational` ones choose partners before the model is asked;
    `rest` needs the joined row, and `reasons` says why.
    """

    calls: list[AiCall] = field(default_factory=list)
    about_pairs: bool = False
    keys: list[tuple[JavaObject, JavaObject]] = field(default_factory=list)
    relational: list[JavaObject] = field(default_factory=list)
    rest: list[JavaObject] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[JavaObject]:
        """Every conjunct but the keys."""
        return [*self.relational, *(call.expression for call in self.calls), *self.rest]


def sort_conditions(planning: Planning, node: JavaObject) -> Conditions:
    """The conjuncts of a Join's condition, by what can be done with them. Raises as `ai_call`."""
    left, right = node.left().outputSet(), node.right().outputSet()
    found = Conditions()
    for condition in conjuncts(node.condition().get()):
        if planning.calls_ai(condition):
            _sort_ai(planning, condition, left, right, found)
        elif key := _equality(planning, condition, left, right):
            found.keys.append(key)
        elif planning.fits_lambda(condition):
            found.relational.append(condition)
        else:
            found.rest.append(condition)
            found.reasons.append(f"{plain_sql(condition)} needs Python or a subquery")
    return found


def _sort_ai(planning: Planning, condition: JavaObject, left: JavaObject, right: JavaObject, found: Conditions) -> None:
    call = ai_call(planning.catalyst, condition)
    if call is None:
        found.rest.append(condition)
        found.reasons.append("an AI call stands inside OR, NOT, CASE or another expression, or its prompt is computed")
        return
    sides = {side_of(call.arguments[i], left, right) for i in call.used if not is_constant(call.arguments[i])}
    if None in sides:
        found.rest.append(condition)
        found.reasons.append("an argument of an AI call computes with columns of both tables")
        return
    found.calls.append(call)
    found.about_pairs |= len(sides) == 2


def is_constant(expression: JavaObject) -> bool:
    """Whether it reads no column."""
    return expression.references().isEmpty()


def side_of(expression: JavaObject, left: JavaObject, right: JavaObject) -> str | None:
    """Which side an expression reads; a constant counts to the left; None: both."""
    if expression.references().subsetOf(left):
        return "left"
    return "right" if expression.references().subsetOf(right) else None


def _equality(
    planning: Planning, condition: JavaObject, left: JavaObject, right: JavaObject
) -> tuple[JavaObject, JavaObject] | None:
    """The two sides of `=`, where blocks can be grouped by them."""
    if kind(condition) != "EqualTo" or not planning.fits_lambda(condition):
        return None
    a, b = items(condition.children())
    if is_constant(a) or is_constant(b) or not all(_is_key(planning, e) for e in (a, b)):
        return None
    sides = (side_of(a, left, right), side_of(b, left, right))
    return {("left", "right"): (a, b), ("right", "left"): (b, a)}.get(sides)


def _is_key(planning: Planning, expression: JavaObject) -> bool:
    data_type = expression.dataType()
    return kind(data_type) not in NESTED_TYPES and planning.crosses_as_arrow(data_type)
