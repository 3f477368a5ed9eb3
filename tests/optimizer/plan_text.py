"""Plans as text, for fixtures: the inverse of `logical.render`.

A fixture has a section `relations` (name, rows, then `column tokens` pairs; `column distinct n` is a statistic of a key,
`source name` the table),
perhaps `context` (`layout auto`), and the plans `before` and `after`, or `before` and `error` with a part of the message.
"""

import re
from pathlib import Path

from make import context, table

from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.logical import AiFilter, AiJoin, AiPredicate, Plan, Project, Relation, TextRef
from quail_spark.optimizer.statistics import TableStats

QUESTION = re.compile(r'"([^"]*)"(?: \(([^)]*)\))?')


def sections(path: Path) -> dict[str, str]:
    """The sections of a fixture by heading; lines that start with # are remarks."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith(" "):
            found[line.strip()] = lines = []
        else:
            lines.append(line[2:])
    return {name: "\n".join(lines) for name, lines in found.items()}


def read_tables(text: str) -> dict[str, TableStats]:
    found = {}
    for line in text.splitlines():
        name, rows, *columns = line.split()
        tokens, distinct, source, words = {}, {}, None, iter(columns)
        for column in words:
            value = next(words)
            if column == "source":
                source = value
            elif value == "distinct":
                distinct[column] = float(next(words))
            else:
                tokens[column] = float(value)
        stats = table(float(rows), **tokens)
        found[name] = TableStats(stats.rows, stats.texts, distinct, source)
    return found


def read_context(text: str) -> PlanContext:
    return context(**dict(line.split() for line in text.splitlines()))


def read_plan(text: str, tables: dict[str, TableStats]) -> Plan:
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines()]
    plan, rest = _node(lines, tables)
    assert not rest, rest
    return plan


def _node(lines: list, tables: dict[str, TableStats]) -> tuple[Plan, list]:
    (indent, line), rest = lines[0], lines[1:]
    inputs = []
    while rest and rest[0][0] > indent:
        plan, rest = _node(rest, tables)
        inputs.append(plan)
    return _make(line, inputs, tables), rest


def _make(line: str, inputs: list[Plan], tables: dict[str, TableStats]) -> Plan:
    kind, _, words = line.partition(" ")
    if kind == "Project":
        return Project(tuple(map(TextRef.of, words.split(", "))), *inputs)
    if kind not in ("AiFilter", "AiJoin", "Join"):
        return Relation(line, tables[line])
    words, marks = (*words[:-1].rsplit(" [", 1), "")[:2] if words.endswith("]") else (words, "")
    marks = marks.split(", ") if marks else []
    layout = next((mark for mark in marks if mark in ("document_first", "literal")), None)
    questions = [_question(match) for match in QUESTION.finditer(words)]
    predicates, keeps = tuple(predicate for predicate, _ in questions), "keeps KV" in marks
    if kind == "AiFilter":
        anchors = tuple(anchor or p.relations[0] for p, anchor in questions)
        return AiFilter(
            predicates,
            *inputs,
            anchors=anchors if layout or any(anchor for _, anchor in questions) else (),
            keeps=keeps,
            layout=layout,
        )
    anchor = next((mark.removeprefix("anchor ") for mark in marks if mark.startswith("anchor ")), None)
    keys = tuple((TextRef.of(a), TextRef.of(b)) for a, b in re.findall(r"([\w.]+) = ([\w.]+)", QUESTION.sub("", words)))
    return AiJoin(words.split()[0], *inputs, keys, predicates, anchor, keeps, layout)


def _question(match: re.Match) -> tuple[AiPredicate, str | None]:
    rate = hint = anchor = None
    for option in (match[2] or "").split(", "):
        if option.startswith("hint "):
            hint = option.removeprefix("hint ")
        elif option.startswith("anchor "):
            anchor = option.removeprefix("anchor ")
        elif option:
            rate = float(option)
    return AiPredicate.of(match[1], rate, hint), anchor
