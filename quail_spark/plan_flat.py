"""Joins that are not inner and whose condition the pair operator can't evaluate: all pairs, the UDF, then the decision.

anchor side ───────┐
                   ├─ left outer join on what is relational ─ UDF for the rest ─ ai_decide
partner side ──────┘
"""

from functools import partial

from .join_conditions import Conditions
from .join_sides import fits_broadcast
from .planning import NotPlanned, Planning
from .runs import OUTER, FlatColumns, run_deciding
from .scala import JavaObject, items


def flat_join(
    planning: Planning, node: JavaObject, conditions: Conditions, kind: str, required: set[int] | None
) -> JavaObject:
    """The plan for a Join whose left side is the anchor. `kind` is that of the operator."""
    catalyst = planning.catalyst
    anchor_kept = _kept(planning, node.left(), required)
    partner_kept = _kept(planning, node.right(), required) if kind in OUTER else []
    relational = [c for c in conditions.all if not planning.calls_ai(c)]
    if not all(planning.fits_lambda(c) for c in relational):
        raise NotPlanned("; ".join(conditions.reasons))
    keys = [catalyst.equal(a, b) for a, b in conditions.keys]
    joined, run, present = _pairs(planning, node, keys, relational, [*anchor_kept, *partner_kept])

    by_id = {a.exprId().id(): a for a in items(joined.output())}
    there = catalyst.is_not_null(by_id[present.exprId().id()])
    absent_is_null = {
        id_: catalyst.if_(there, a, catalyst.null(a.dataType()))
        for id_, a in by_id.items()
        if node.left().outputSet().contains(a)
    }
    asked = [catalyst.substitute(c, absent_is_null) for c in conditions.all if planning.calls_ai(c)]
    names = [f"c{i}" for i in range(len(anchor_kept) + len(partner_kept))]
    kept = [by_id[a.exprId().id()] for a in (*anchor_kept, *partner_kept)]
    source = catalyst.project(
        [
            *(catalyst.alias(a, name) for a, name in zip(kept, names, strict=True)),
            catalyst.alias(by_id[run.exprId().id()], "run"),
            catalyst.alias(catalyst.conjunction([there, *asked]), "flag"),
        ],
        joined,
    )
    columns = FlatColumns(kind, tuple(names[: len(anchor_kept)]), tuple(names[len(anchor_kept) :]))
    if kind == "existence":
        kept, names = [*kept, node.joinType().exists()], [*names, "exists"]
    return planning.restored(partial(run_deciding, columns), "ai_decide", names, kept, source)


def _kept(planning: Planning, plan: JavaObject, required: set[int] | None) -> list[JavaObject]:
    kept = [a for a in items(plan.output()) if required is None or a.exprId().id() in required]
    planning.check_arrow_types(kept)
    return kept


def _pairs(
    planning: Planning, node: JavaObject, keys: list[JavaObject], relational: list[JavaObject], kept: list[JavaObject]
) -> tuple[JavaObject, JavaObject, JavaObject]:
    """Anchors left outer joined with partners; the attributes that number an anchor and tell that there is a partner."""
    catalyst = planning.catalyst
    needed = planning.references([node.condition().get()]) | {a.exprId().id() for a in kept}
    run = catalyst.alias(catalyst.row_number(), "run")
    present = catalyst.alias(catalyst.row_number(), "present")
    left, right = (
        catalyst.project([*(a for a in items(side.output()) if a.exprId().id() in needed), own], side)
        for side, own in ((node.left(), run), (node.right(), present))
    )
    always = [] if keys else [catalyst.about_both(run.toAttribute(), present.toAttribute())]  # as in plan_join
    on = keys + relational + always
    return catalyst.join(left, right, "LeftOuter", on, fits_broadcast(planning, right, keys)), run, present
