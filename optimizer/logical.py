"""A small algebra of queries with AI predicates, in the query's own words. Plans are immutable trees.

Names of relations are those of the query (aliases); one name stands for one relation in a plan.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from .errors import ConfigError, PromptError
from .statistics import TableStats
from .template import Placeholder, check_arguments, parse_template, placeholders

JOIN_KINDS = ("inner", "left", "right", "full", "semi", "anti")
_WORD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


class TextRef(NamedTuple):
    """A column of a relation; a prompt reads its text."""

    relation: str
    column: str

    def __str__(self) -> str:
        return f"{self.relation}.{self.column}"

    @staticmethod
    def of(words: str) -> "TextRef":
        """From `relation.column`. Raises PromptError for another form."""
        relation, dot, column = words.strip().partition(".")
        if not (relation and dot and column):
            raise PromptError(f"{words!r} does not name a column; accepted: relation.column")
        return TextRef(relation, column)


@dataclass(frozen=True)
class AiPredicate:
    """A question: its template and, for placeholder `{i}`, `arguments[i]`. `selectivity`, `anchor` and
    `layout` are the call's options (layout None: the operator's)."""

    template: str
    arguments: tuple[TextRef, ...]
    selectivity: float | None = None
    anchor: str | None = None
    layout: str | None = None

    def __post_init__(self):
        check_arguments(self.template, len(self.arguments))
        if not self.used:
            raise PromptError(f"the question {self.template!r} reads no column; accepted: at least one placeholder")

    @staticmethod
    def of(words: str, selectivity: float | None = None, anchor: str | None = None) -> "AiPredicate":
        """From a template that names its columns: `{r.body} is polite`."""
        found: dict[TextRef, int] = {}

        def number(match: re.Match) -> str:
            if match[1] is None:
                return match[0]
            return f"{{{found.setdefault(TextRef.of(match[1]), len(found))}}}"

        template = _WORD.sub(number, words)
        return AiPredicate(template, tuple(found), selectivity, anchor)

    @cached_property
    def used(self) -> tuple[TextRef, ...]:
        """The texts that the template reads, in order of first use."""
        return tuple(dict.fromkeys(self.arguments[i] for i in placeholders(self.template)))

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """Names of the relations it reads, in order of first use."""
        return tuple(dict.fromkeys(text.relation for text in self.used))

    @property
    def words(self) -> str:
        """The template with its columns in the places, on one line."""
        parts = parse_template(self.template)
        shown = (f"{{{self.arguments[p.index]}}}" if isinstance(p, Placeholder) else p.text for p in parts)
        return " ".join("".join(shown).split())

    def hinted(self) -> tuple[TextRef, ...]:
        """The texts that the option `anchor` names, by relation, column, or numbers (`0,2`); none without the option.

        Raises ConfigError when it names nothing that the question reads, or columns of two relations.
        """
        if self.anchor is None:
            return ()
        name, texts = self.anchor.strip().lower(), self.used
        if re.fullmatch(r"\d+(,\d+)*", name):
            numbers = [int(n) for n in name.split(",")]
            found = tuple(t for n in numbers if n < len(self.arguments) and (t := self.arguments[n]) in texts)
        else:
            found = tuple(t for t in texts if name in (t.relation.lower(), str(t).lower(), t.column.lower()))
        if len({text.relation for text in found}) != 1:
            raise ConfigError(
                f"option anchor is {self.anchor!r} of the question {self.words!r}; "
                f"accepted: one of {', '.join((*self.relations, *map(str, texts)))}"
            )
        return found

    def front(self, relation: str) -> tuple[TextRef, ...]:
        """The texts that stand before the question when `relation` is the anchor."""
        own = tuple(text for text in self.used if text.relation == relation)
        hinted = self.hinted()
        if len(self.relations) > 1:
            return own
        return hinted or own[:1]


@dataclass(frozen=True)
class Relation:
    """A table, or any plan without AI predicates, under its name in the query."""

    name: str
    stats: TableStats = field(compare=False)


@dataclass(frozen=True)
class AiFilter:
    """Rows of `child` for which every predicate is TRUE, asked in this order. Predicates may read several relations of it.

    `anchors[p]` is the relation whose text stands first (set by the planner). `keeps`: the KV of the last question's
    document stays for the operator above.
    """

    predicates: tuple[AiPredicate, ...]
    child: "Plan"
    anchors: tuple[str, ...] = ()
    keeps: bool = False
    layout: str | None = None


@dataclass(frozen=True)
class AiJoin:
    """A join on equal `keys` (left, right) and `predicates`; without predicates a relational join. Kinds: `JOIN_KINDS`.

    `anchor`: the relation whose KV serves all its partners (set by the planner). `keeps` as in `AiFilter`.
    """

    kind: str
    left: "Plan"
    right: "Plan"
    keys: tuple[tuple[TextRef, TextRef], ...] = ()
    predicates: tuple[AiPredicate, ...] = ()
    anchor: str | None = None
    keeps: bool = False
    layout: str | None = None

    def __post_init__(self):
        if self.kind not in JOIN_KINDS:
            raise ConfigError(f"join kind is {self.kind!r}; accepted: {', '.join(JOIN_KINDS)}")


@dataclass(frozen=True)
class Project:
    """The named columns of `child`."""

    columns: tuple[TextRef, ...]
    child: "Plan"


Plan = Relation | AiFilter | AiJoin | Project


def anchor_of(join: AiJoin, predicate: AiPredicate) -> str:
    """The relation whose text stands first in a question of a join: the join's anchor, if the question reads it."""
    return join.anchor if join.anchor in predicate.relations else predicate.relations[0]


def children(plan: Plan) -> tuple[Plan, ...]:
    """The inputs of a node."""
    if isinstance(plan, AiJoin):
        return plan.left, plan.right
    return () if isinstance(plan, Relation) else (plan.child,)


def with_children(plan: Plan, inputs: tuple[Plan, ...]) -> Plan:
    """The node over other inputs; the same object when they are the same."""
    if all(new is old for new, old in zip(inputs, children(plan), strict=True)):
        return plan
    if isinstance(plan, AiJoin):
        return replace(plan, left=inputs[0], right=inputs[1])
    return replace(plan, child=inputs[0])


def nodes(plan: Plan) -> Iterator[Plan]:
    """Every node, inputs first."""
    for child in children(plan):
        yield from nodes(child)
    yield plan


def relations(plan: Plan) -> frozenset[str]:
    """Names of the relations whose columns the plan's rows have. A semi or anti join gives the left ones only."""
    if isinstance(plan, Relation):
        return frozenset([plan.name])
    if isinstance(plan, AiJoin) and plan.kind in ("semi", "anti"):
        return relations(plan.left)
    return frozenset().union(*map(relations, children(plan)))


def tables(plan: Plan) -> dict[str, TableStats]:
    """Statistics by relation. Raises ConfigError when a name stands for two relations."""
    found: dict[str, TableStats] = {}
    for node in nodes(plan):
        if isinstance(node, Relation):
            if node.name in found:
                raise ConfigError(
                    f"relation {node.name!r} is named twice in one plan; accepted: a name of its own each"
                )
            found[node.name] = node.stats
    return found


def undecided(plan: Plan) -> Plan:
    """The plan without what the planner sets: anchors, layout, kept KV."""
    plan = with_children(plan, tuple(map(undecided, children(plan))))
    if isinstance(plan, AiFilter):
        return replace(plan, anchors=(), keeps=False, layout=None)
    return replace(plan, anchor=None, keeps=False, layout=None) if isinstance(plan, AiJoin) else plan


def render(plan: Plan, indent: int = 0) -> str:
    """The plan as indented text, a node per line, outermost first."""
    line = "  " * indent + _line(plan)
    return "\n".join([line, *(render(child, indent + 1) for child in children(plan))])


def _line(plan: Plan) -> str:
    if isinstance(plan, Relation):
        return plan.name
    if isinstance(plan, Project):
        return f"Project {', '.join(map(str, plan.columns))}"
    marks = [plan.layout] if plan.layout else []
    marks += ["keeps KV"] if plan.keeps else []
    if isinstance(plan, AiFilter):
        anchors = plan.anchors or ("",) * len(plan.predicates)
        shown = [_question(p, a if len(p.relations) > 1 else "") for p, a in zip(plan.predicates, anchors, strict=True)]
        return f"AiFilter {' AND '.join(shown)}{_marks(marks)}"
    marks = ([f"anchor {plan.anchor}"] if plan.anchor else []) + marks
    on = [f"{left} = {right}" for left, right in plan.keys] + [_question(p, "") for p in plan.predicates]
    name = "AiJoin" if plan.predicates else "Join"
    return f"{name} {plan.kind}{' on ' if on else ''}{' AND '.join(on)}{_marks(marks)}"


def _question(predicate: AiPredicate, anchor: str) -> str:
    options = [] if predicate.selectivity is None else [f"{predicate.selectivity:g}"]
    options += [] if predicate.anchor is None else [f"hint {predicate.anchor}"]
    options += [f"anchor {anchor}"] if anchor else []
    return f'"{predicate.words}"' + (f" ({', '.join(options)})" if options else "")


def _marks(marks: list[str]) -> str:
    return f" [{', '.join(marks)}]" if marks else ""
