"""`input_file_name()` in a query with AI calls is read before the rows go to Python. Driver-side.

Spark evaluates it where it stands. Above a Python UDF or an operator of ours the scan has gone on meanwhile, perhaps to
the next file, whose name it then gives. Delta Lake's DELETE and UPDATE find the files that they rewrite by this function.
"""

from .planning import Planning
from .scala import JavaObject, conjuncts, items, kind

PASSING = ("Project", "Filter", "Sort", "GlobalLimit", "LocalLimit", "Window")  # nodes that can pass a column on


def read_file_names_first(planning: Planning, plan: JavaObject) -> JavaObject:
    """The plan with file names as a column from below its AI calls, where a Project reads both; else the same plan."""
    if not planning.builder.namesFiles(plan):
        return plan
    children = items(plan.children())
    rewritten = [read_file_names_first(planning, child) for child in children]
    if any(new is not old for new, old in zip(rewritten, children, strict=True)):
        plan = plan.withNewChildren(planning.catalyst.seq(rewritten))
    names_file = any(planning.builder.namesFile(e) for e in items(plan.expressions()))
    chain = _down_to_ai(planning, plan) if names_file and kind(plan) == "Project" else []
    return _rebuilt(planning, chain) if chain else plan


def _down_to_ai(planning: Planning, reader: JavaObject) -> list[JavaObject]:
    """The reader of a name and the nodes below it down to the lowest that calls AI; none where there is no such."""
    chain, length = [], 0
    node = reader
    while kind(node) in PASSING:
        chain.append(node)
        if any(map(planning.calls_ai, items(node.expressions()))):
            length = len(chain)
        node = node.child()
    return chain[:length]


def _rebuilt(planning: Planning, chain: list[JavaObject]) -> JavaObject:
    catalyst, (*above, lowest) = planning.catalyst, chain
    source, asking = lowest.child(), conjuncts(lowest.condition()) if kind(lowest) == "Filter" else []
    first = [c for c in asking if not planning.calls_ai(c)]
    source = catalyst.filter(first, source)
    name = catalyst.alias(catalyst.input_file_name(), "file")
    file = name.toAttribute()
    plan = catalyst.project([*items(source.output()), name], source)
    if asking:
        plan = catalyst.filter([c for c in asking if planning.calls_ai(c)], plan)
    for node in reversed(above if asking else chain):
        if kind(node) != "Project":
            plan = node.withNewChildren(catalyst.seq([plan]))
            continue
        columns = [_with(catalyst, e, file) for e in items(node.projectList())]
        plan = catalyst.project(columns if node is chain[0] else [*columns, file], plan)
    return plan


def _with(catalyst, expression: JavaObject, file: JavaObject) -> JavaObject:
    """The expression with `file` in place of `input_file_name()`."""
    if kind(expression) == "InputFileName":
        return file
    children = [_with(catalyst, child, file) for child in items(expression.children())]
    return expression.withNewChildren(catalyst.seq(children)) if children else expression
