"""AI inner joins become a partner-block operator: each anchor meets its partners block by block and keeps its KV.

anchor side ──────────────────────────────┐
                                          ├─ inner join on the equalities, right side broadcast ─ ai_join
partner side ─ one partition ─ sort ─ ai_blocks
"""

from dataclasses import dataclass, field
from functools import partial

from quail_spark.optimizer.anchor import SideSize, choose_anchor
from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

from .ai_calls import AiCall, ai_call
from .anchors import anchor_placeholders
from .operators import PairColumns, RowColumns, run_blocks, run_pairs
from .planning import InputColumns, NotPlanned, Planning, expected_rows, operator_name
from .scala import JavaObject, conjuncts, items, kind

BLOCK_BYTES = 1 << 20


@dataclass
class Conditions:
    """The conjuncts of an ON clause.

    `keys` are equal (left, right) expressions; `relational` ones choose partners within a block, before the model is
    asked; `rest` is checked on the joined rows.
    """

    calls: list[AiCall] = field(default_factory=list)
    keys: list[tuple[JavaObject, JavaObject]] = field(default_factory=list)
    relational: list[JavaObject] = field(default_factory=list)
    rest: list[JavaObject] = field(default_factory=list)


def plan_join(planning: Planning, node: JavaObject, required: set[int] | None) -> JavaObject:
    """Replace an inner Join with AI conjuncts over both sides. `required` as in plan_filter."""
    if node.condition().isEmpty():
        return node
    conditions = _sort_conditions(planning, node)
    if not conditions.calls:
        return node
    if node.joinType().sql() not in ("INNER", "CROSS"):
        raise NotPlanned(f"{node.joinType().sql()} JOIN with an AI condition")
    if conditions.rest:
        required = None if required is None else required | planning.references(conditions.rest)
    anchor_left = _anchor_is_left(planning, node, conditions)
    joined = _pairs(planning, node, conditions, anchor_left, required)
    return planning.catalyst.filter(conditions.rest, joined)


def _sort_conditions(planning: Planning, node: JavaObject) -> Conditions:
    left, right = node.left().outputSet(), node.right().outputSet()
    found = Conditions()
    for condition in conjuncts(node.condition().get()):
        call = ai_call(planning.catalyst, condition) if planning.calls_ai(condition) else None
        if call is not None and _reads_both(call, left, right):
            found.calls.append(call)
        elif key := _equality(condition, left, right):
            found.keys.append(key)
        elif planning.fits_lambda(condition):
            found.relational.append(condition)
        else:
            found.rest.append(condition)
    return found


def _reads_both(call: AiCall, left: JavaObject, right: JavaObject) -> bool:
    sides = {_side(call.arguments[i], left, right) for i in call.used}
    if None in sides:
        raise NotPlanned("an argument of the AI condition computes with columns of both tables")
    return sides == {"left", "right"}


def _side(expression: JavaObject, left: JavaObject, right: JavaObject) -> str | None:
    """Which side an expression reads; a constant counts to the left; None: both."""
    if expression.references().subsetOf(left):
        return "left"
    return "right" if expression.references().subsetOf(right) else None


def _equality(condition: JavaObject, left: JavaObject, right: JavaObject) -> tuple[JavaObject, JavaObject] | None:
    if kind(condition) != "EqualTo":
        return None
    a, b = items(condition.children())
    if a.references().isEmpty() or b.references().isEmpty():
        return None
    sides = (_side(a, left, right), _side(b, left, right))
    return {("left", "right"): (a, b), ("right", "left"): (b, a)}.get(sides)


def _anchor_is_left(planning: Planning, node: JavaObject, conditions: Conditions) -> bool:
    left, right = node.left().outputSet(), node.right().outputSet()
    hints = {call.options.anchor for call in conditions.calls} - {None}
    if len(hints) > 1:
        raise ConfigError(f"option anchor is given as {' and '.join(sorted(hints))} in one ON clause; accepted: one")
    first = conditions.calls[0]
    first_left = _side(first.arguments[first.used[0]], left, right) == "left"
    if hints:
        hint = hints.pop()
        named = _side_named(hint, first, left, right)
        if named is not None:
            return named == "left"
        planning.note(f"option anchor names {hint!r}, which Spark's optimizer has renamed; name a placeholder's number")
    texts = {
        side: [a for c in conditions.calls for a in (c.arguments[i] for i in c.used) if _side(a, left, right) == side]
        for side in ("left", "right")
    }
    sizes = (_size(node.left(), texts["left"]), _size(node.right(), texts["right"]))
    choice = choose_anchor(*sizes)
    return first_left if choice is None else choice == 0


def _side_named(hint: str, call: AiCall, left: JavaObject, right: JavaObject) -> str | None:
    """The side that an anchor hint means: placeholder numbers, or a table's name or alias."""
    numbers = anchor_placeholders(hint, len(call.arguments))
    if numbers:
        return _side(call.arguments[numbers[0]], left, right)
    for side, output in (("left", left), ("right", right)):
        for attribute in items(output.toSeq()):
            if hint.lower() in (str(part).lower() for part in items(attribute.qualifier())):
                return side
    return None


def _size(plan: JavaObject, texts: list[JavaObject]) -> SideSize:
    """What Spark knows of a side without running anything."""
    statistics = plan.stats()
    lengths = []
    for attribute in {a.exprId().id(): a for t in texts for a in items(t.references().toSeq())}.values():
        column = statistics.attributeStats().get(attribute)
        lengths.append(None if column.isEmpty() or column.get().avgLen().isEmpty() else column.get().avgLen().get())
    return SideSize(
        expected_rows(plan), None if None in lengths else float(sum(lengths)), int(str(statistics.sizeInBytes()))
    )


def _pairs(planning: Planning, node: JavaObject, conditions: Conditions, anchor_left: bool, required: set[int] | None):
    catalyst = planning.catalyst
    anchor, partner = (node.left(), node.right()) if anchor_left else (node.right(), node.left())
    anchor_keys = [pair[0 if anchor_left else 1] for pair in conditions.keys]
    partner_keys = [pair[1 if anchor_left else 0] for pair in conditions.keys]
    anchor_side = _Side(planning, anchor, required, "a")
    partner_side = _Side(planning, partner, required, "p")
    predicates = tuple(_predicate(call, anchor_side, partner_side) for call in conditions.calls)
    key_names = [anchor_side.columns.add(key, f"k{i}") for i, key in enumerate(anchor_keys)]
    for attribute in planning.attributes(conditions.relational):
        side = anchor_side if anchor_side.output.contains(attribute) else partner_side
        side.compared[attribute.exprId().id()] = side.columns.attribute(attribute)
    anchors = catalyst.project(anchor_side.columns.expressions, anchor)
    fields = {id_: partner_side.columns.names.index(name) for id_, name in partner_side.compared.items()}
    blocks = _blocks(planning, partner_side, partner, partner_keys)

    by_name = {a.name(): a for a in items(anchors.output())}
    partner_key_columns = items(blocks.output())[: len(partner_keys)]
    on = [catalyst.equal(by_name[n], k) for n, k in zip(key_names, partner_key_columns, strict=True)]
    joined = catalyst.inner_join_broadcasting_right(anchors, blocks, on)
    inputs = [by_name[n] for n in anchor_side.columns.names if n not in key_names]
    block, number = items(blocks.output())[len(partner_keys) :]
    if conditions.relational:
        renamed = [catalyst.substitute(c, anchor_side.renamed(by_name)) for c in conditions.relational]
        chosen = catalyst.alias(catalyst.keep_in_block(block, renamed, fields), "block")
        source = catalyst.project([*inputs, chosen], joined)
    else:
        source = catalyst.project([*inputs, block, number], joined)

    spec = OperatorSpec(operator_name("join", predicates), "pairs", predicates, planning.layout)
    kept = [*anchor_side.kept, *partner_side.kept]
    number_name = None if conditions.relational else number.name()
    columns = PairColumns(anchor_side.row_columns, partner_side.row_columns, number=number_name)
    names = [*columns.anchor.kept, *columns.partner.kept]
    function = partial(run_pairs, spec.to_json(), columns)
    return planning.replace(spec, conditions.calls, function, names, kept, source, anchor, partner)


class _Side:
    """One side's columns on their way into the operator."""

    def __init__(self, planning: Planning, plan: JavaObject, required: set[int] | None, prefix: str):
        self.output = plan.outputSet()
        self.kept = [a for a in items(plan.output()) if required is None or a.exprId().id() in required]
        planning.check_arrow_types(self.kept)
        self.columns: InputColumns = planning.input_columns(prefix)
        for attribute in self.kept:
            self.columns.add(attribute, f"{prefix}c{len(self.columns)}")
        self.compared: dict[int, str] = {}  # columns that relational conditions read, by attribute id

    def renamed(self, projected: dict[str, JavaObject]) -> dict[int, JavaObject]:
        """For the ids of compared attributes, the attribute of the projection that holds the value."""
        return {id_: projected[name] for id_, name in self.compared.items()}

    @property
    def row_columns(self) -> RowColumns:
        """What the worker reads and passes on."""
        return RowColumns(tuple(self.columns.text_names), tuple(self.columns.names[: len(self.kept)]))


def _predicate(call: AiCall, anchor: _Side, partner: _Side) -> Predicate:
    """Arguments of the template by side; those of the anchor stand before the question."""
    arguments, in_front = [], []
    for index, expression in enumerate(call.arguments):
        on_partner = not expression.references().subsetOf(anchor.output)
        side = partner if on_partner else anchor
        arguments.append(Argument(side.columns.text(expression), on_partner))
        if not on_partner and index in call.used:
            in_front.append(index)
    return Predicate(call.template, tuple(arguments), tuple(in_front), call.options.selectivity)


def _blocks(planning: Planning, side: _Side, partner: JavaObject, keys: list[JavaObject]) -> JavaObject:
    """The partner side as (keys…, block, number), one row per block."""
    catalyst = planning.catalyst
    fields = tuple(side.columns.names)
    key_names = tuple(side.columns.add(key, f"pk{i}") for i, key in enumerate(keys))
    rows = catalyst.one_partition(catalyst.project(side.columns.expressions, partner))
    by_name = {a.name(): a for a in items(rows.output())}
    if keys:
        rows = catalyst.sort_within_partitions([by_name[name] for name in key_names], rows)
    block = catalyst.array_of_structs([(name, by_name[name].dataType()) for name in fields])
    outputs = [
        *((name, by_name[name].dataType()) for name in key_names),
        ("block", block),
        ("number", planning.long_type),
    ]
    function = partial(run_blocks, planning.conf["join.blockRows"], BLOCK_BYTES, key_names, fields)
    node, _ = catalyst.map_in_arrow(function, "ai_blocks", outputs, rows)
    return node
