"""AI joins become a partner-block operator: each anchor meets its partners block by block and keeps its KV.

anchor side ──────────────────────────────┐
                                          ├─ join on the equalities ─ ai_join
partner side ─ one partition ─ sort ─ ai_blocks, broadcast
"""

from functools import partial

from quail_spark.optimizer.plan import OperatorSpec

from .blocks import PairColumns
from .join_computed import with_computed_sides
from .join_conditions import Conditions, side_of, sort_conditions
from .join_kinds import KINDS, join_type, refusal, refused_calls, words
from .join_sides import Side, anchor_is_left, blocks, fits_broadcast, predicate, side_named
from .keeping_kv import is_asked_later
from .matching import KINDS as MATCHING
from .matching import run_matching
from .pairing import run_pairs
from .plan_flat import flat_join
from .planning import NotPlanned, Planning, operator_name
from .scala import JavaObject, items


def plan_join(planning: Planning, node: JavaObject, required: set[int] | None) -> JavaObject:
    """Replace a Join with AI conjuncts. `required` as in plan_filter.

    Raises SqlError for a join that neither the planner nor Spark can do.
    """
    if node.condition().isEmpty() or not planning.calls_ai(node.condition().get()):
        return node
    try:
        if node.left().isStreaming() and node.right().isStreaming():
            raise NotPlanned(
                f"a {words(node)} of two streams keeps rows from one batch to the next, as only Spark's own can"
            )
        return planning.catalyst.in_order(_joined(planning, node, required), items(node.output()))
    except NotPlanned as reason:
        if refused_calls(planning, node):
            raise refusal(planning, node, f"it can't be planned, because {reason}") from None
        raise


def _joined(planning: Planning, node: JavaObject, required: set[int] | None) -> JavaObject:
    name = join_type(node)
    if name == "RightOuter":
        return _joined(planning, planning.catalyst.mirrored(node), required)
    if name == "FullOuter":
        return _full_outer(planning, node, required)
    if name not in KINDS:
        raise NotPlanned(f"a {name} join with an AI condition is unknown to the planner")
    if KINDS[name] == "inner":
        return _inner(planning, node, sort_conditions(planning, node), required)
    node, required = with_computed_sides(planning, node, required)
    return _anchored(planning, node, sort_conditions(planning, node), required)


def _inner(planning: Planning, node: JavaObject, conditions: Conditions, required: set[int] | None) -> JavaObject:
    if not conditions.about_pairs:
        return _unplanned_inner(planning, node, conditions)
    for reason in conditions.reasons:
        planning.note(f"ON of an {words(node)}, on its rows: {reason}")
    if conditions.rest:
        required = None if required is None else required | planning.references(conditions.rest)
    if not anchor_is_left(planning, node, conditions):
        node = planning.catalyst.mirrored(node)
        conditions.keys = [(b, a) for a, b in conditions.keys]
    joined = ai_join(planning, node, conditions, "inner", required)
    return planning.catalyst.filter(conditions.rest, joined)


def _unplanned_inner(planning: Planning, node: JavaObject, conditions: Conditions) -> JavaObject:
    """Left to the UDF, which Spark takes out of the condition: it must not take the rest for a cross join it has to refuse."""
    planning.note(f"ON of an {words(node)}: {'; '.join(conditions.reasons)}")
    left, right = node.left().outputSet(), node.right().outputSet()
    about_both = any(side_of(condition, left, right) is None for condition in conditions.rest)
    return planning.catalyst.crossed(node) if about_both else node


def _anchored(
    planning: Planning,
    node: JavaObject,
    conditions: Conditions,
    required: set[int] | None,
    half: bool = False,
) -> JavaObject:
    """A join whose operator decides about anchors: its left side. `half` as in `ai_join`."""
    kind = KINDS[join_type(node)]
    if conditions.rest:
        if not refused_calls(planning, node):
            raise NotPlanned(f"ON of a {words(node)}, before it: {'; '.join(conditions.reasons)}")
        planning.note(f"ON of a {words(node)}, for all pairs by UDF: {'; '.join(conditions.reasons)}")
        return flat_join(planning, node, conditions, kind, required)
    _note_hint(planning, node, conditions)
    return ai_join(planning, node, conditions, kind, required, half)


def _note_hint(planning: Planning, node: JavaObject, conditions: Conditions) -> None:
    sides = node.left().outputSet(), node.right().outputSet()
    hints = {call.options.anchor for call in conditions.calls} - {None}
    if any(side_named(hint, conditions.calls, *sides) == "right" for hint in hints):
        planning.note(f"option anchor has no effect: the anchor of a {words(node)} is the side whose rows it keeps")


def _full_outer(planning: Planning, node: JavaObject, required: set[int] | None) -> JavaObject:
    """The left outer join, and the right rows that match nothing. Both read each side from one exchange.

    The second join asks what the first one asked, in the same words, up to the first TRUE of each right row: the engine
    remembers these answers.
    """
    catalyst = planning.catalyst
    node, required = with_computed_sides(planning, node, required)
    needed = None if required is None else required | planning.references([node.condition().get()])
    left, right = (catalyst.shared(_pruned(planning, side, needed)) for side in (node.left(), node.right()))
    outer = catalyst.join_like(node, left, right, "LeftOuter")
    anti = catalyst.join_like(node, right, left, "LeftAnti")
    conditions = sort_conditions(planning, outer)
    planning.note("a full outer join is a left outer one, and the right rows without a match")
    matched = catalyst.in_order(_anchored(planning, outer, conditions, required), items(node.output()))
    missing = _anchored(planning, anti, sort_conditions(planning, anti), required, half=True)
    kept = {a.exprId().id(): a for a in items(missing.output())}
    columns = [
        kept.get(a.exprId().id()) or catalyst.alias(catalyst.null(a.dataType()), a.name(), a)
        for a in items(matched.output())
    ]  # under their ids, by which Spark finds the outer query's values below either of the two
    return catalyst.union(matched, catalyst.project(columns, missing))


def _pruned(planning: Planning, side: JavaObject, needed: set[int] | None) -> JavaObject:
    """Only these columns, since later pruning would tell the two readers of an exchange apart."""
    columns = [a for a in items(side.output()) if needed is None or a.exprId().id() in needed]
    return planning.catalyst.project(columns, side)


def ai_join(
    planning: Planning,
    node: JavaObject,
    conditions: Conditions,
    kind: str,
    required: set[int] | None,
    half: bool = False,
) -> JavaObject:
    """The operator for a Join whose left side is the anchor.

    `half`: it is the second half of a full outer join, which puts the same questions and reads the same columns.
    """
    matching = kind in MATCHING
    anchor = Side(planning, node.left(), required, "a")
    partner = Side(planning, node.right(), set() if matching and not half else required, "p")
    predicates = tuple(predicate(call, anchor, partner, partner if half else anchor) for call in conditions.calls)
    source, number = _meetings(planning, node, conditions, anchor, partner, kind)
    retain = is_asked_later(planning, conditions.calls, anchor.output)
    name = operator_name("join", predicates, conditions.calls, kind)
    spec = OperatorSpec(name, "pairs", predicates, planning.layout, retain=retain)
    partner_columns = partner.row_columns
    kept, names = list(anchor.kept), list(anchor.row_columns.kept)
    if kind == "existence":
        kept, names = [*kept, node.joinType().exists()], [*names, "exists"]
    elif not matching:
        kept, names = [*kept, *partner.kept], [*names, *partner_columns.kept]
    columns = PairColumns(anchor.row_columns, partner_columns, kind, number=number)
    function = partial(run_matching if matching else run_pairs, spec.to_json(), columns)
    inputs, name = (node.left(), node.right()), "join" if kind == "inner" else words(node)
    known = {"words": name, "stops": matching, "kind": kind, "keyed": bool(conditions.keys)}
    return planning.replace(spec, conditions.calls, function, names, kept, source, *inputs, **known)


def _meetings(
    planning: Planning, node: JavaObject, conditions: Conditions, anchor: Side, partner: Side, kind: str
) -> tuple[JavaObject, str | None]:
    """The operator's input: (anchor columns…, run, block, number), all rows of an anchor adjacent; and the number's name."""
    catalyst = planning.catalyst
    on_anchor, on_partner, on_both = _by_side(conditions.relational, anchor, partner)
    key_names = [anchor.columns.add(key, f"k{i}") for i, (key, _) in enumerate(conditions.keys)]
    for attribute in planning.attributes(on_both):
        (anchor if anchor.output.contains(attribute) else partner).compare(attribute)
    for attribute in planning.attributes(on_anchor):
        anchor.compare(attribute)
    planning.check_arrow_types([a for a in planning.attributes(on_both) if partner.output.contains(a)])
    run = anchor.columns.add(catalyst.row_number(), "run") if kind != "inner" else None
    if not partner.columns.names:
        partner.columns.add(catalyst.true(), "n")

    anchors = catalyst.project(anchor.columns.guarded(on_anchor), node.left())
    partners = catalyst.filter(on_partner, node.right())
    fields = {id_: partner.columns.names.index(name) for id_, name in partner.compared.items()}
    partner_keys = [key for _, key in conditions.keys]
    broadcast = fits_broadcast(planning, catalyst.project(partner.columns.expressions, partners), partner_keys)
    packed = blocks(planning, partner, partners, partner_keys, broadcast)
    *block_keys, block, number = items(packed.output())

    by_name = {a.name(): a for a in items(anchors.output())}
    renamed = anchor.renamed(by_name)
    on = [catalyst.equal(by_name[n], k) for n, k in zip(key_names, block_keys, strict=True)]
    on += [catalyst.substitute(condition, renamed) for condition in on_anchor]
    if run and not conditions.keys:
        on.append(catalyst.about_both(by_name[run], number))  # for spark.sql.crossJoin.enabled=false
    joined = catalyst.join(anchors, packed, _spark_type(kind, conditions), on, broadcast)
    columns = anchor.row_columns
    inputs = [by_name[n] for n in dict.fromkeys([*columns.kept, *columns.texts, *([run] if run else [])])]
    if on_both:
        chosen = catalyst.keep_in_block(block, [catalyst.substitute(c, renamed) for c in on_both], fields)
        return catalyst.project([*inputs, catalyst.alias(chosen, "block")], joined), None
    return catalyst.project([*inputs, block, number], joined), number.name()


def _spark_type(kind: str, conditions: Conditions) -> str:
    if kind != "inner":
        return "LeftOuter"
    return "Inner" if conditions.keys else "Cross"


def _by_side(conditions: list[JavaObject], anchor: Side, partner: Side) -> tuple[list, list, list]:
    """Conditions that read only the anchor (or nothing), only the partner, both."""
    found: tuple[list, list, list] = [], [], []
    for condition in conditions:
        found[0 if anchor.reads(condition) else 1 if partner.reads(condition) else 2].append(condition)
    return found
