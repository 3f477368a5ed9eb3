"""Layout `auto`: all questions of a query are laid out the way that makes the whole plan cheaper."""

from dataclasses import replace

from ..context import PlanContext
from ..logical import AiFilter, AiJoin, Plan, children, with_children
from ..plan import LAYOUTS


def choose_layout(plan: Plan, context: PlanContext) -> Plan:
    """Note the layout in every AI operator. One layout for the query: answers depend on it, so equal questions must share it.

    With `auto` the rest of the rules plans the query in each layout; of equally cheap ones the first of `LAYOUTS` is taken.
    """
    if context.layout != "auto":
        return _laid_out(plan, context.layout)
    from ..estimate import estimate_plan
    from . import optimize

    def seconds(layout: str) -> float:
        fixed = replace(context, layout=layout)
        return estimate_plan(optimize(plan, fixed), fixed).seconds

    return _laid_out(plan, min(LAYOUTS, key=seconds))


def _laid_out(plan: Plan, layout: str) -> Plan:
    plan = with_children(plan, tuple(_laid_out(child, layout) for child in children(plan)))
    if isinstance(plan, AiFilter) or (isinstance(plan, AiJoin) and plan.predicates):
        return replace(plan, layout=layout)
    return plan
