"""Runs plans over Arrow tables: AI operators through engine sessions, all else in numpy. No Spark.

As in Spark, a chain of operators with the same anchor is one pipeline: each of `tasks` threads takes a contiguous share of
the anchors and pushes a batch of them after the other through all operators of the chain, a session for each, so that KV
which one operator keeps is there for the next. What the anchors meet is run before, and whole. Joins are inner joins.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from row_sets import Rows, concatenated, distinct, meeting, members, runs, take

from quail_spark.engine.evaluator import Answers, Counts, Session
from quail_spark.optimizer.errors import ConfigError, EngineError
from quail_spark.optimizer.logical import (
    AiFilter,
    AiJoin,
    AiPredicate,
    Plan,
    Project,
    Relation,
    TextRef,
    anchor_of,
    relations,
)
from quail_spark.optimizer.plan import TRUE, Argument, OperatorSpec, Predicate

BATCH_ROWS, BLOCK_ROWS, PAIRS = (
    256,
    1024,
    4096,
)  # anchors a batch, partners a block, pairs a call: the connector's defaults


def run_plan(
    plan: Plan, tables: Mapping[str, pa.Table], open_session: Callable[[OperatorSpec], Session], tasks: int = 2
) -> tuple[Rows, list[Counts]]:
    """The rows of a planned query (anchors are set), and what each call of the engine did.

    Raises ConfigError for a join that is not inner or has no anchor, EngineError for a row that can't be answered.
    """
    run = _Run(tables, open_session, tasks)
    return run.rows(plan), run.counts


@dataclass
class _Run:
    tables: Mapping[str, pa.Table]
    open_session: Callable[[OperatorSpec], Session]
    tasks: int
    counts: list[Counts] = field(default_factory=list)
    _texts: dict[TextRef, list] = field(default_factory=dict)

    def rows(self, plan: Plan) -> Rows:
        """Run the chain of operators at the top of a plan, and before it what the chain stands on."""
        if isinstance(plan, Relation):
            return {plan.name: np.arange(self.tables[plan.name].num_rows)}
        operators, base = self._chain(plan)
        rows = self.rows(base)
        if not operators:
            return rows
        anchor = next((op.anchor for op in operators if op.anchor), min(rows))
        rows = take(rows, np.argsort(rows[anchor], kind="stable"))
        anchors = max(1, len(np.unique(rows[anchor])))
        shares = list(runs(rows[anchor], -(-anchors // self.tasks))) or [(0, 0)]
        parts = _in_threads([lambda s=slice(*s): self._task(take(rows, s), anchor, operators) for s in shares])
        return concatenated(parts)

    def _chain(self, plan: Plan) -> tuple[list["_Operator"], Plan]:
        """The operators of one anchor at the top of a plan, innermost first, and the plan below them."""
        anchor, operators, node = None, [], plan
        while not isinstance(node, Relation):
            if isinstance(node, Project):
                node = node.child
                continue
            node = _of_one_anchor(node) if isinstance(node, AiFilter) else node
            own = _anchor(node)
            if anchor and own and own != anchor:
                break
            anchor = anchor or own
            stream, other = _sides(node, anchor)
            operators.append(_Operator(self, node, own, None if other is None else self.rows(other)))
            node = stream
        return operators[::-1], node

    def _task(self, rows: Rows, anchor: str, operators: list["_Operator"]) -> Rows:
        """Push the rows of one task through the chain, batch by batch."""
        sessions = [self.open_session(op.spec) if op.spec else None for op in operators]
        found = []
        for batch in list(runs(rows[anchor], BATCH_ROWS)) or [(0, 0)]:
            left = take(rows, slice(*batch))
            for op, session in zip(operators, sessions, strict=True):
                left = op.after(left, session)
            found.append(left)
        for session in sessions:
            if session:
                session.close()
        return concatenated(found)

    def values(self, ref: TextRef) -> list:
        """A column as Python values."""
        if ref not in self._texts:
            self._texts[ref] = self.tables[ref.relation][ref.column].to_pylist()
        return self._texts[ref]

    def true(self, answers: Answers) -> np.ndarray:
        """Note a call; bool [items]: TRUE for every question."""
        if answers.errors:
            raise EngineError(answers.errors[0][2])
        self.counts.append(answers.counts)
        return (answers.codes == TRUE).all(axis=1)


@dataclass
class _Operator:
    """One node of a plan. `anchor`: None for a join of equal columns alone. `other`: what a join's stream of rows meets."""

    run: _Run
    node: AiFilter | AiJoin
    anchor: str | None
    other: Rows | None
    _partners: dict[tuple[int, ...], list] = field(default_factory=dict)

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The relations that the questions read, the anchor first."""
        found = dict.fromkeys(name for predicate in self.node.predicates for name in predicate.relations)
        return tuple(sorted(found, key=lambda name: name != self.anchor))

    @cached_property
    def columns(self) -> tuple[list[TextRef], list[TextRef]]:
        """Texts of the anchor's rows, and of the other relations'."""
        used = dict.fromkeys(text for predicate in self.node.predicates for text in predicate.used)
        return [t for t in used if t.relation == self.read[0]], [t for t in used if t.relation != self.read[0]]

    @cached_property
    def spec(self) -> OperatorSpec | None:
        """What the engine is asked for; None: nothing."""
        node = self.node
        if not node.predicates:
            return None
        anchors = node.anchors if isinstance(node, AiFilter) else [anchor_of(node, p) for p in node.predicates]
        name = " AND ".join(predicate.words for predicate in node.predicates)
        predicates = tuple(map(self._predicate, node.predicates, anchors))
        kind = "pairs" if len(self.read) > 1 else "filter"
        return OperatorSpec(name, kind, predicates, node.layout or "document_first", retain=node.keeps)

    def _predicate(self, predicate: AiPredicate, anchor: str) -> Predicate:
        places = {text: Argument(n, side == 1) for side in (0, 1) for n, text in enumerate(self.columns[side])}
        arguments = tuple(
            places.get(text, Argument(0)) for text in predicate.arguments
        )  # one that is not used may be anything
        front = predicate.front(anchor)
        placeholders = tuple(i for i, text in enumerate(predicate.arguments) if text in front)
        return Predicate(predicate.template, arguments, placeholders, predicate.selectivity)

    def after(self, rows: Rows, session: Session | None) -> Rows:
        """What is left of a batch behind this operator."""
        if self.other is not None:
            return self._joined(rows, session)
        return take(rows, self._true(rows, session))

    def _joined(self, rows: Rows, session: Session | None) -> Rows:
        """Distinct rows of both sides that meet, those pairs of them that are TRUE, and all rows that they stand for."""
        keys = [pair if pair[0].relation in rows else pair[::-1] for pair in self.node.keys]
        sets, sizes, places = [], [], []
        for number, side in enumerate((rows, self.other)):
            wanted = [*(name for name in self.read if name in side), *(key[number].relation for key in keys)]
            names = list(dict.fromkeys(wanted))
            combinations, place = distinct(side, names)
            sets.append(dict(zip(names, combinations.T, strict=True)))
            sizes.append(len(combinations))
            places.append(place)
        i, j = meeting(*sizes, [tuple(map(self._at, pair, sets)) for pair in keys])
        if self.spec:
            true = self._true(take(sets[0], i) | take(sets[1], j), session)
            i, j = i[true], j[true]
        left, right = members((i, j), *places)
        return take(rows, left) | take(self.other, right)

    def _at(self, ref: TextRef, rows: Rows) -> list:
        values = self.run.values(ref)
        return [values[number] for number in rows[ref.relation].tolist()]

    def _true(self, rows: Rows, session: Session) -> np.ndarray:
        """Which places of `rows` are TRUE for every question; each distinct combination is asked once."""
        combinations, place = distinct(rows, self.read)
        if self.spec.kind == "filter":
            texts = [self._texts(self.columns[0], number) for number in combinations[:, 0].tolist()]
            calls = (session.rows(texts[start : start + BATCH_ROWS]) for start in range(0, len(texts), BATCH_ROWS))
        else:
            calls = (session.pairs(*call) for call in self._calls(combinations))
        return np.concatenate([np.zeros(0, bool), *map(self.run.true, calls)])[place]

    def _calls(self, combinations: np.ndarray) -> Iterator[tuple[list, list[int], list[list]]]:
        """At most `PAIRS` pairs each: anchors' texts and numbers, and for each a block of partners' texts."""
        known = self._partners
        call, size = ([], [], []), 0
        for start, end in runs(combinations[:, 0], 1, BLOCK_ROWS):
            if size and size + end - start > PAIRS:
                yield call
                call, size = ([], [], []), 0
            anchor = int(combinations[start, 0])
            for partner in (partners := list(map(tuple, combinations[start:end, 1:].tolist()))):
                if partner not in known:
                    rows = dict(zip(self.read[1:], partner, strict=True))
                    known[partner] = [self.run.values(text)[rows[text.relation]] for text in self.columns[1]]
            call[0].append(self._texts(self.columns[0], anchor))
            call[1].append(anchor)
            call[2].append([known[partner] for partner in partners])
            size += end - start
        if size:
            yield call

    def _texts(self, columns: list[TextRef], number: int) -> list[str | None]:
        return [self.run.values(text)[number] for text in columns]


def _anchor(node: AiFilter | AiJoin) -> str | None:
    """The relation whose rows a node goes through; None for a join of equal columns alone. Raises ConfigError."""
    if isinstance(node, AiFilter):
        return node.anchors[0]
    if node.kind != "inner" or (node.predicates and not node.anchor):
        raise ConfigError(
            f"the join is of kind {node.kind!r} with anchor {node.anchor!r}; accepted here: inner, planned"
        )
    return node.anchor if node.predicates else None


def _sides(node: AiFilter | AiJoin, anchor: str | None) -> tuple[Plan, Plan | None]:
    """The input that has the anchors, and the other one of a join."""
    if isinstance(node, AiFilter):
        return node.child, None
    left = anchor is None or anchor in relations(node.left)
    return (node.left, node.right) if left else (node.right, node.left)


def _of_one_anchor(node: AiFilter) -> AiFilter:
    """The last questions of a filter that have one anchor, on top of a filter with those before."""
    cut = next((n for n in range(len(node.anchors), 0, -1) if node.anchors[n - 1] != node.anchors[-1]), 0)
    if not cut:
        return node
    below = replace(node, predicates=node.predicates[:cut], anchors=node.anchors[:cut], keeps=False)
    return replace(node, predicates=node.predicates[cut:], anchors=node.anchors[cut:], child=below)


def _in_threads(work: list[Callable[[], Rows]]) -> list[Rows]:
    """The results of all, each on a thread of its own; the first error is raised."""
    found: list[Rows | None] = [None] * len(work)
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            found[number] = work[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found
