"""A plan with its estimates as text for people. At most 80 columns."""

import textwrap

from .context import PlanContext
from .estimate import OperatorEstimate, PlanEstimate, QuestionEstimate
from .logical import AiFilter, AiJoin

WIDTH = 80
COLUMNS = 24  # of tokens, seconds, share at the right
LAYOUTS = {"document_first": "the document before the question", "literal": "texts where the template has them"}
JOINS = {"left": "Left join", "right": "Right join", "full": "Full join", "semi": "Semi join", "anti": "Anti join"}


def explain_plan(estimate: PlanEstimate, currency: str = "$") -> str:
    """One screen: totals, then every AI operator in the order in which they run, then what the estimates rest on."""
    if not estimate.operators:
        return "No AI operators in this plan."
    lines = [*_header(estimate, currency), _row("step", "tokens", "time", "share")]
    for operator in estimate.operators:
        lines += _operator(operator, estimate)
    return "\n".join([*lines, *_sources(estimate)])


def operator_line(operator: OperatorEstimate, context: PlanContext, currency: str = "$") -> str:
    """One line for an operator alone: `about 13.5k answers, 1.7M tokens computed, 2.7M spared; 11.6 s on H200 …`."""
    work, device, seconds = operator.work, context.roofline.device, operator.seconds.total
    cost = f", {money(seconds / 3600 * context.price, currency)}" if context.price else ""
    guess = " (speed assumed)" if device.assumed else f" (speed of light {duration(operator.light)})"
    return (
        f"about {amount(work.answers)} answers, {amount(work.fresh)} tokens computed, {amount(work.reused)} spared; "
        f"{duration(seconds)}{cost} on {device.name}{guess}"
    )


def duration(seconds: float) -> str:
    """`0.03 s`, `8.1 s`, `12 min`, `3.4 h`."""
    if 0 < seconds < 0.005:
        return "<0.01 s"
    if seconds >= 5400:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 300:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 99.5 else f"{seconds:.1f} s" if seconds >= 0.995 else f"{seconds:.2f} s"


def amount(number: float) -> str:
    """`0.3`, `950`, `12k`, `1.6M`, `44.7M`, `2.1G`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            value = number / size
            return f"{value:,.0f}{unit}" if value >= 99.5 else f"{value:.1f}{unit}"
    return count(number)


def count(number: float) -> str:
    """Rows: `5,000`; a decimal where less than ten are expected."""
    return f"{number:,.0f}" if number >= 9.95 else f"{max(0.0, number):.1f}".removesuffix(".0")


def money(value: float, currency: str) -> str:
    """`$1.20`, `<$0.01`."""
    return f"{currency}{value:,.2f}" if value >= 0.005 or not value else f"<{currency}0.01"


def percent(share: float) -> str:
    """`80%`, `0.2%`."""
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}" if share >= 0.00095 else "<0.1%"


def _header(estimate: PlanEstimate, currency: str) -> list[str]:
    context, work = estimate.context, estimate.work
    device, precision = context.roofline.device, context.roofline.precision
    numbers = f" ({precision})" if precision != "auto" else ""
    steps = f"{len(estimate.operators)} AI step{'s' * (len(estimate.operators) > 1)}"
    layout = next(operator.plan.layout for operator in estimate.operators) or context.layout
    cost = f", {money(estimate.cost, currency)} at {money(context.price, currency)} an hour" if context.price else ""
    share = percent(estimate.light / estimate.seconds) if estimate.seconds else "100%"
    guess = ", device speed assumed" if device.assumed else ""
    return [
        f"{steps}, {context.roofline.model.name} on {device.name}{numbers}; prompts: {LAYOUTS[layout]}",
        f"About {duration(estimate.seconds)}{cost}{guess}; speed of light {duration(estimate.light)} ({share})",
        f"{amount(work.answers)} answers; {amount(work.fresh)} tokens computed, {amount(work.reused)} more spared by kept KV",
    ]


def _operator(operator: OperatorEstimate, estimate: PlanEstimate) -> list[str]:
    numbers = (amount(operator.work.fresh), duration(operator.seconds.total), percent(estimate.share(operator)))
    lines = [_row(f"{operator.number} {_kind(operator)} {_flow(operator)}", *numbers)]
    if isinstance(operator.plan, AiJoin):
        lines.append(_cut(f"    {_how(operator)}", WIDTH))
    for question in operator.questions:
        lines.append(_question(question, operator))
        if question.again >= 0.005:
            lines.append(f"        {percent(question.again)} of them known from another name of the table")
    return lines


def _kind(operator: OperatorEstimate) -> str:
    return "Filter" if isinstance(operator.plan, AiFilter) else JOINS.get(operator.plan.kind, "Join")


def _flow(operator: OperatorEstimate) -> str:
    first = operator.questions[0]
    rows = f"{' x '.join(f'{count(n)} {name}' for name, n in operator.rows_in)} -> {count(operator.rows_out)} rows"
    if len(first.predicate.relations) > 1:
        rows = rows.replace(" ->", f" = {amount(first.asked)} pairs ->")
    return rows


def _how(operator: OperatorEstimate) -> str:
    anchor = operator.plan.anchor
    partners = ", ".join(name for name, _ in operator.rows_in if name != anchor)
    start = "on equal keys; " if operator.plan.keys else ""
    held = "its KV is there from the step before" if _held(operator) else f"each {anchor} is computed once"
    hints = {h[0].relation for predicate in operator.plan.predicates if (h := predicate.hinted())}
    ignored = " (option anchor has no effect here)" if hints - {anchor} else ""
    return f"{start}anchor {anchor}{ignored}: {held}, every {partners or anchor} is asked behind it"


def _held(operator: OperatorEstimate) -> bool:
    plan = operator.plan
    sides = (plan.child,) if isinstance(plan, AiFilter) else (plan.left, plan.right)
    return any(isinstance(side, AiFilter | AiJoin) and side.keeps for side in sides)


def _question(question: QuestionEstimate, operator: OperatorEstimate) -> str:
    rate = f"TRUE {percent(question.rate.value)} [{question.rate.source}]"
    words = f"    {question.predicate.words}"
    room = WIDTH - len(rate) - 1
    return f"{_cut(words, room - 1):{room}} {rate}"


def _sources(estimate: PlanEstimate) -> list[str]:
    """Where rows and lengths are from, grouped by source."""
    rows: dict[str, list[str]] = {}
    tokens: dict[str, list[str]] = {}
    for text in dict.fromkeys(t for o in estimate.operators for q in o.questions for t in q.predicate.used):
        stats = estimate.tables[text.relation]
        rows.setdefault(stats.rows.source, []).append(text.relation)
        length = stats.text(text.column).tokens
        tokens.setdefault(length.source, []).append(f"{text} {amount(length.value)}")
    parts = [f"rows of {', '.join(dict.fromkeys(names))} [{source}]" for source, names in rows.items()]
    parts += [f"tokens a row: {', '.join(texts)} [{source}]" for source, texts in tokens.items()]
    return textwrap.wrap("From " + "; ".join(parts), WIDTH, subsequent_indent="  ", max_lines=3, placeholder=" …")


def _row(head: str, *columns: str) -> str:
    room = WIDTH - COLUMNS
    return f"{_cut(head, room):{room}}{columns[0]:>9}{columns[1]:>9}{columns[2]:>6}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
