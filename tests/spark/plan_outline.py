"""An optimised plan of Spark as a few lines: joins, filters and AI operators, without what only carries columns."""

import re

from quail_spark.scala import items, kind

CARRYING = ("Project", "Repartition", "RepartitionByExpression", "Sort")
TEMPLATE = re.compile(r"'((?:[^'\\]|\\.)*)'")


def outline(plan, indent: int = 0) -> str:
    """A node per line, inputs below it. Leaves are named by their table."""
    name, children = kind(plan), items(plan.children())
    if name in CARRYING or (name == "MapInArrow" and _function(plan).startswith("ai_blocks")):
        return outline(children[0], indent)
    lines = ["  " * indent + _line(plan, name), *(outline(child, indent + 1) for child in children)]
    return "\n".join(lines)


def _line(plan, name: str) -> str:
    if name == "MapInArrow":
        operator, _, asked = _function(plan).partition(": ")
        return f"{operator.split('-')[0]} {asked}"
    if name == "Join":
        condition = plan.condition().get().sql() if plan.condition().isDefined() else ""
        hint = re.search(r"strategy=(\w+)", plan.hint().toString())
        return " ".join(filter(None, (plan.joinType().sql(), "JOIN", condition, hint and hint[1])))
    if name == "Filter":
        return f"Filter {plan.condition().sql()}"
    return name if items(plan.children()) else _table(plan)


def _function(plan) -> str:
    return plan.productElement(0).name()


def _table(plan) -> str:
    """A leaf by the names of its columns, of which tests give each table its own."""
    return ", ".join(a.name() for a in items(plan.output()))
