"""The two sides of an AI join on their way into the operator: columns, sizes, who is the anchor. Driver-side."""

from functools import partial

from quail_spark.optimizer.anchor import choose_anchor
from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.plan import Argument, Predicate

from .ai_calls import AiCall
from .anchors import anchor_placeholders
from .blocks import run_blocks
from .join_conditions import Conditions, is_constant, side_of
from .operators import RowColumns
from .planning import InputColumns, Planning
from .scala import JavaObject, items

BLOCK_BYTES = 1 << 20


class Side:
    """One side's columns: `kept` attributes, texts of arguments, and what relational conditions compare."""

    def __init__(self, planning: Planning, plan: JavaObject, required: set[int] | None, prefix: str):
        """`required`: ids of the attributes to keep (None: all)."""
        self._planning = planning
        self.output = plan.outputSet()
        self.kept = [a for a in items(plan.output()) if required is None or a.exprId().id() in required]
        planning.check_arrow_types(self.kept)
        self.columns: InputColumns = planning.input_columns(prefix)
        for attribute in self.kept:
            self.columns.add(attribute, f"{prefix}c{len(self.columns)}")
        self.compared: dict[int, str] = {}  # names of the columns that relational conditions read, by attribute id

    def reads(self, expression: JavaObject) -> bool:
        """Whether all columns of an expression are this side's."""
        return expression.references().subsetOf(self.output)

    def compare(self, attribute: JavaObject) -> None:
        """Add a column that a relational condition reads."""
        self.compared[attribute.exprId().id()] = self.columns.attribute(attribute)

    def renamed(self, projected: dict[str, JavaObject]) -> dict[int, JavaObject]:
        """For the ids of compared attributes, the attribute of the projection that holds the value."""
        return {id_: projected[name] for id_, name in self.compared.items()}

    @property
    def row_columns(self) -> RowColumns:
        """What the worker reads and passes on."""
        return RowColumns(tuple(self.columns.text_names), tuple(self.columns.names[: len(self.kept)]))


def predicate(call: AiCall, anchor: Side, partner: Side, front: Side) -> Predicate:
    """The call's arguments by side. Those that `front` holds stand before the question.

    A call about one side is worded as in a filter.
    """
    on_partner = {i: not anchor.reads(call.arguments[i]) for i in call.used}
    columns = {i: (partner if on_partner[i] else anchor).columns.text(call.arguments[i]) for i in call.used}
    used = {i: Argument(columns[i], on_partner[i]) for i in call.used}
    unused = next(iter(used.values()), None)  # stands for arguments without a placeholder
    arguments = tuple(used.get(i, unused) for i in range(max(used, default=-1) + 1))
    in_front = tuple(sorted(i for i in used if front.reads(call.arguments[i])))
    read = {on_partner[i] for i in used if not is_constant(call.arguments[i])}
    if len(read) < 2:
        in_front = anchor_placeholders(call.options.anchor, len(arguments))
    options = call.options
    return Predicate(call.template, arguments, in_front, options.selectivity, options.max_error_ratio, options.layout)


def blocks(planning: Planning, side: Side, plan: JavaObject, keys: list[JavaObject], broadcast: bool) -> JavaObject:
    """A partner side as (keys…, block, number), one row per block.

    To be broadcast it goes through one task, so that blocks are full; else one task packs all rows of a key.
    """
    catalyst = planning.catalyst
    fields = tuple(side.columns.names)
    key_names = tuple(side.columns.add(key, f"pk{i}") for i, key in enumerate(keys))
    rows = catalyst.project(side.columns.expressions, plan)
    by_name = {a.name(): a for a in items(rows.output())}
    key_columns = [by_name[name] for name in key_names]
    rows = catalyst.one_partition(rows) if broadcast else catalyst.repartition_by(key_columns, rows)
    if keys:
        rows = catalyst.sort_within_partitions(key_columns, rows)
    block = catalyst.array_of_structs([(name, by_name[name].dataType()) for name in fields])
    outputs = [
        *((name, by_name[name].dataType()) for name in key_names),
        ("block", block),
        ("number", planning.long_type),
    ]
    function = partial(run_blocks, planning.conf["join.blockRows"], BLOCK_BYTES, key_names, fields)
    node, _ = catalyst.map_in_arrow(function, "ai_blocks", outputs, rows)
    return node


def fits_broadcast(planning: Planning, partner: JavaObject, keys: list[JavaObject]) -> bool:
    """Whether Spark expects the partners to stay below `spark.quail.join.broadcastBytes`. Without an equality there is
    no other way; that is noted."""
    limit, size = planning.conf["join.broadcastBytes"], int(str(partner.stats().sizeInBytes()))
    if size > limit and not keys:
        planning.note(
            f"Spark expects {size:,} bytes of partners, over spark.quail.join.broadcastBytes ({limit:,}), but can only "
            "broadcast them, since the join has no equality"
        )
    return size <= limit or not keys


def anchor_is_left(planning: Planning, node: JavaObject, conditions: Conditions) -> bool:
    """Which side of an inner join is the anchor: the one that join_order.py chose with the order, else a hint's, else by what
    Spark knows of the sizes, else as written."""
    left, right = node.left().outputSet(), node.right().outputSet()
    if planned := [
        side_of(call.arguments[f[0]], left, right) for call in conditions.calls if (f := planning.fronts.get(call.key))
    ]:
        return planned[0] == "left"
    hints = {call.options.anchor for call in conditions.calls} - {None}
    if len(hints) > 1:
        raise ConfigError(f"option anchor is given as {' and '.join(sorted(hints))} in one ON clause; accepted: one")
    read = [call.arguments[i] for call in conditions.calls for i in call.used]
    if hints:
        hint = hints.pop()
        named = side_named(hint, conditions.calls, left, right)
        if named is not None:
            return named == "left"
        planning.note(f"option anchor names {hint!r}, which Spark's optimizer has renamed; name a placeholder's number")
    texts = {side: [a for a in read if side_of(a, left, right) == side] for side in ("left", "right")}
    sizes = [
        planning.statistics.size(side, texts[name]) for name, side in (("left", node.left()), ("right", node.right()))
    ]
    choice = choose_anchor(*sizes)
    first = next((a for a in read if not is_constant(a)), None)
    written = first is None or side_of(first, left, right) == "left"
    return written if choice is None else choice == 0


def side_named(hint: str, calls: list[AiCall], left: JavaObject, right: JavaObject) -> str | None:
    """The side that an anchor hint means: placeholder numbers of the call that has it, or a table's name or alias."""
    call = next(call for call in calls if call.options.anchor == hint)
    if numbers := anchor_placeholders(hint, len(call.arguments)):
        return side_of(call.arguments[numbers[0]], left, right)
    for side, output in (("left", left), ("right", right)):
        for attribute in items(output.toSeq()):
            if hint.lower() in (str(part).lower() for part in items(attribute.qualifier())):
                return side
    return None
