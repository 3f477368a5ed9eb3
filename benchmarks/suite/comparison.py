"""One query of the suite, planned and in written order: what both cost. See run.py."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from plan_runner import run_plan
from row_sets import Rows
from sql_plan import Query, read_sql
from suite_engines import Gate
from suite_queries import SuiteQuery
from written_order import written_order

from quail_spark.engine.model_evaluator import ModelEvaluator
from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.estimate import estimate_plan
from quail_spark.optimizer.explain import explain_plan
from quail_spark.optimizer.logical import AiFilter, AiJoin, Plan, children, nodes, render, with_children
from quail_spark.optimizer.rules import optimize


@dataclass
class Measured:
    """One plan, run. Names end in their unit where they have one.

    `seconds`: by the clock, or `counted_s`: the cost model's for the work that was done. `expected_s`: its estimate before
    the run. `engine_s`: what the engine says that its passes took. `fresh`, `reused`, `recomputed`: tokens.
    """

    seconds: float
    counted_s: float
    expected_s: float
    fresh: int
    reused: int
    recomputed: int
    answers: int
    rows: int
    light_s: float
    engine_s: float

    @property
    def share_of_light(self) -> float:
        return self.light_s / self.seconds if self.seconds else 1.0


@dataclass
class Outcome:
    """A query: planned and in written order (None: the plans are the same). `plan`: as people read it."""

    query: SuiteQuery
    planning_s: float
    plan: str
    choice: bool
    chosen: Measured
    written: Measured | None
    result_rows: int

    @property
    def ratio(self) -> float:
        """How many times as long the written order takes."""
        return self.written.seconds / self.chosen.seconds if self.written and self.chosen.seconds else 1.0


@dataclass
class Prepared:
    """A query with its plans, each with whether it is the written order: the chosen one first. `expected_s`: of all runs."""

    query: SuiteQuery
    read: Query
    plans: list[tuple[Plan, bool]]
    planning_s: float
    expected_s: float


class Suite:
    """Queries over `tables`. `by_clock`: seconds are those of the run, else those of its counted work. `tasks` threads ask at
    the same time; each plan is run `runs` times, the median counts. `hints`: the planner knows the pass rates."""

    def __init__(
        self,
        evaluator: ModelEvaluator,
        tables: Mapping[str, pa.Table],
        context: PlanContext,
        *,
        by_clock: bool,
        tasks: int = 2,
        runs: int = 1,
        hints: bool = True,
    ):
        self._evaluator, self._tables, self._context = evaluator, tables, context
        self._by_clock, self._tasks, self._runs, self._hints = by_clock, tasks, runs, hints

    def prepared(self, query: SuiteQuery) -> Prepared:
        """Plan one query."""
        read = read_sql(query.sql, self._tables, self._tokens)
        given = read.plan if self._hints else without_hints(read.plan)
        began = time.perf_counter()
        planned = optimize(given, self._context)
        planning_s = time.perf_counter() - began
        written = written_order(given, self._context)
        plans = [(planned, False)] + ([(written, True)] if render(written) != render(planned) else [])
        expected = self._runs * sum(estimate_plan(plan, self._context).seconds for plan, _ in plans)
        return Prepared(query, read, plans, planning_s, expected)

    def outcome(self, prepared: Prepared) -> Outcome:
        """Run one query, the two plans in turns."""
        read, plans = prepared.read, prepared.plans
        runs = [[self._measured(read, *plan) for plan in plans] for _ in range(self._runs)]
        results = [self._median([run[n] for run in runs]) for n in range(len(plans))]
        if len({measured.rows for measured, _ in results}) > 1:
            raise AssertionError(f"{prepared.query.name}: the plans give {[m.rows for m, _ in results]} rows")
        asked = sum(len(node.predicates) for node in _operators(read.plan))
        choice = asked > 1 or any(isinstance(node, AiJoin) for node in _operators(read.plan))
        chosen = results[0][0]
        result_rows = len(read.result(results[0][1])) if read.ends else chosen.rows
        written = results[1][0] if len(results) > 1 else None
        plan = explain_plan(estimate_plan(plans[0][0], self._context))
        return Outcome(prepared.query, prepared.planning_s, plan, choice, chosen, written, result_rows)

    def _tokens(self, text: str) -> float:
        return len(self._evaluator.tokens.encode([text])[0])

    def _measured(self, query: Query, plan: Plan, in_order: bool) -> tuple[Measured, Rows]:
        rates = {p.template: p.selectivity for node in _operators(query.plan) for p in node.predicates}
        gate = Gate(self._evaluator, rates, in_order)
        began = time.perf_counter()
        rows, counts = run_plan(plan, query.tables, gate.open, self._tasks)
        clock = time.perf_counter() - began
        work, roofline = self._evaluator.runner.work, self._context.roofline
        counted, recomputed = roofline(work), sum(c.recomputed_tokens for c in counts)
        light = roofline.speed_of_light()(work) * (1 - recomputed / max(1, work.fresh))
        measured = Measured(
            seconds=clock if self._by_clock else counted,
            counted_s=counted,
            expected_s=estimate_plan(plan, self._context).seconds,
            fresh=int(work.fresh),
            reused=sum(c.reused_tokens for c in counts),
            recomputed=recomputed,
            answers=sum(c.evaluations for c in counts),
            rows=len(next(iter(rows.values()))),
            light_s=light,
            engine_s=sum(c.seconds for c in counts),
        )
        return measured, rows

    @staticmethod
    def _median(runs: list[tuple[Measured, Rows]]) -> tuple[Measured, Rows]:
        middle = statistics.median_low(measured.seconds for measured, _ in runs)
        return next(run for run in runs if run[0].seconds == middle)


def without_hints(plan: Plan) -> Plan:
    """The plan as if nobody had said how often its questions are TRUE."""
    plan = with_children(plan, tuple(map(without_hints, children(plan))))
    if not isinstance(plan, AiFilter | AiJoin):
        return plan
    return replace(plan, predicates=tuple(replace(p, selectivity=None) for p in plan.predicates))


def _operators(plan: Plan) -> list[AiFilter | AiJoin]:
    return [node for node in nodes(plan) if isinstance(node, AiFilter | AiJoin) and node.predicates]
