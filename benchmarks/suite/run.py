"""The suite: QUAIL-B's query shapes, planned, run and compared with the same queries in written order.

    python benchmarks/suite/run.py --scripted [--data DIRECTORY] [--part dev] [--scale 0.05]    counts, without a model
    python benchmarks/suite/run.py --model DIRECTORY --device cuda:0 [--scale 0.2] [--budget 240] on a card, by the clock

Without `--data` tables are made of random words. Answers are a fixed function with the published pass rates. "Seconds" are
those of a run by the clock; with `--scripted` those that the cost model gives for the work that the engine would have done:
scheduling, KV pages and prefix sharing are the engine's own, and only the forward pass is left out. The share of light
compares with the datasheet's time for the tokens and attention pairs of that run, without those computed again.
"""

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from plan_runner import run_plan
from sql_plan import Query, read_sql
from suite_engines import Gate, counting_engine, model_engine
from suite_queries import SuiteQuery, read_queries
from suite_tables import FILES, random_tables, read_tables
from written_order import written_order

from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.device import DeviceSpec, find_device
from quail_spark.optimizer.estimate import estimate_plan
from quail_spark.optimizer.logical import AiFilter, AiJoin, Plan, nodes, render
from quail_spark.optimizer.model_spec import ModelSpec, known_model
from quail_spark.optimizer.roofline import Roofline
from quail_spark.optimizer.rules import optimize

MOST_PLANNING_S, MOST_SLOWER, LEAST_MEAN = 0.5, 1.03, 1.3


@dataclass
class Measured:
    """One plan, run. Names end in their unit where they have one; `expected_s` is the estimate before the run."""

    seconds: float
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
    """A query: planned and in written order (None: the plans are the same)."""

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


class Suite:
    """`by_clock`: seconds are those of the run, else those of its counted work."""

    def __init__(self, evaluator, tables, context: PlanContext, by_clock: bool, tasks: int, runs: int):
        self._evaluator, self._tables, self._context = evaluator, tables, context
        self._by_clock, self._tasks, self._runs = by_clock, tasks, runs

    def outcome(self, query: SuiteQuery) -> Outcome:
        """Plan and run one query, the two plans in turns."""
        read = read_sql(query.sql, self._tables, self._tokens)
        began = time.perf_counter()
        planned = optimize(read.plan, self._context)
        planning_s = time.perf_counter() - began
        written = written_order(read.plan, self._context)
        plans = [(planned, False)] + ([(written, True)] if render(written) != render(planned) else [])
        runs = [[self._measured(read, *plan) for plan in plans] for _ in range(self._runs)]
        results = [self._median([run[n] for run in runs]) for n in range(len(plans))]
        if len({measured.rows for measured, _ in results}) > 1:
            raise AssertionError(f"{query.name}: the plans give {[m.rows for m, _ in results]} rows")
        asked = sum(len(node.predicates) for node in _operators(read.plan))
        choice = asked > 1 or any(isinstance(node, AiJoin) for node in _operators(read.plan))
        chosen = results[0][0]
        result_rows = len(read.result(results[0][1])) if read.ends else chosen.rows
        written_run = results[1][0] if len(results) > 1 else None
        return Outcome(query, planning_s, render(planned), choice, chosen, written_run, result_rows)

    def _tokens(self, text: str) -> float:
        return len(self._evaluator.tokens.encode([text])[0])

    def _measured(self, query: Query, plan: Plan, in_order: bool):
        rates = {p.template: p.selectivity for node in _operators(query.plan) for p in node.predicates}
        gate = Gate(self._evaluator, rates, in_order)
        began = time.perf_counter()
        rows, counts = run_plan(plan, query.tables, gate.open, self._tasks)
        clock = time.perf_counter() - began
        work, roofline = self._evaluator.runner.work, self._context.roofline
        recomputed = sum(c.recomputed_tokens for c in counts)
        light = roofline.speed_of_light()(work) * (1 - recomputed / max(1, work.fresh))
        measured = Measured(
            seconds=clock if self._by_clock else float(roofline(work)),
            expected_s=estimate_plan(plan, self._context).seconds,
            fresh=int(work.fresh),
            reused=sum(c.reused_tokens for c in counts),
            recomputed=recomputed,
            answers=sum(c.evaluations for c in counts),
            rows=len(next(iter(rows.values()))),
            light_s=float(light),
            engine_s=sum(c.seconds for c in counts),
        )
        return measured, rows

    @staticmethod
    def _median(runs: list):
        middle = statistics.median_low(measured.seconds for measured, _ in runs)
        return next(run for run in runs if run[0].seconds == middle)


def _operators(plan: Plan) -> list[AiFilter | AiJoin]:
    return [node for node in nodes(plan) if isinstance(node, AiFilter | AiJoin) and node.predicates]


def table(outcomes: list[Outcome]) -> str:
    """A line for each query."""
    lines = [
        f"{'query':8} {'plan ms':>7} {'rows':>8} {'answers':>8} {'expected':>9} {'seconds':>9} {'light':>6}"
        f" {'fresh':>9} {'reused':>10} {'again':>7} {'written':>9} {'ratio':>6}"
    ]
    for o in outcomes:
        c = o.chosen
        written = f"{o.written.seconds:8.2f}s" if o.written else "     same" if o.choice else "        -"
        lines.append(
            f"{o.query.name:8} {o.planning_s * 1e3:7.1f} {o.result_rows:8,} {c.answers:8,} {c.expected_s:8.2f}s {c.seconds:8.2f}s"
            f" {c.share_of_light:6.0%} {c.fresh:9,} {c.reused:10,} {c.recomputed:7,} {written} {o.ratio if o.choice else 1:6.2f}"
        )
    return "\n".join(lines)


def verdicts(outcomes: list[Outcome]) -> list[tuple[str, bool]]:
    """What the suite asks of the planner, and whether it holds."""
    ratios = [o.ratio for o in outcomes if o.choice]
    mean = math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 1.0
    slowest, dearest = max(o.planning_s for o in outcomes), min(ratios, default=1.0)
    return [
        (
            f"planning took {slowest * 1e3:.1f} ms at most (asked: below {MOST_PLANNING_S * 1e3:.0f})",
            slowest < MOST_PLANNING_S,
        ),
        (f"the least ratio is {dearest:.2f} (asked: no plan more than 3 % slower)", dearest * MOST_SLOWER >= 1),
        (
            f"geometric mean of {len(ratios)} queries with a choice: {mean:.2f} (asked: {LEAST_MEAN})",
            mean >= LEAST_MEAN,
        ),
    ]


def as_json(outcomes: list[Outcome], arguments: argparse.Namespace) -> str:
    rows = [asdict(o) | {"ratio": o.ratio, "share_of_light": o.chosen.share_of_light} for o in outcomes]
    about = {name: str(value) for name, value in vars(arguments).items()}
    return json.dumps({"arguments": about, "queries": rows, "verdicts": verdicts(outcomes)}, indent=1)


def context_of(arguments: argparse.Namespace) -> PlanContext:
    """What the planner is told of model and device; without a model, or a known one, Qwen3-4B on an H200."""
    device: DeviceSpec | None = None
    model: ModelSpec | None = None
    if arguments.model:
        model = ModelSpec.from_config(json.loads((arguments.model / "config.json").read_text()), arguments.model.name)
        device = find_device(_device_name(arguments.device), cores=2)
    return PlanContext(Roofline(model or known_model("qwen3-4b"), device or find_device("H200")))


def _device_name(device: str) -> str:
    import torch

    return "cpu" if device == "cpu" else torch.cuda.get_device_name(device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine = parser.add_mutually_exclusive_group(required=True)
    engine.add_argument("--scripted", action="store_true", help="count without a model")
    engine.add_argument("--model", type=Path, help="a checkpoint's directory")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fp8", default="auto")
    parser.add_argument(
        "--tokenizer", type=Path, help="with --scripted: a tokenizer's directory; else 4 bytes are a token"
    )
    parser.add_argument("--data", type=Path, help="directory of Parquet files; else random words")
    parser.add_argument("--part", default="dev")
    parser.add_argument("--table", action="append", default=[], metavar="NAME=PATH", help=f"of {', '.join(FILES)}")
    parser.add_argument("--scale", type=float, default=0.05, help="share of the full rows; joins grow with its square")
    parser.add_argument("--only", help="ids, or beginnings of them: IMDB,FEV-8")
    parser.add_argument("--layout", default="document_first")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1, help="of each plan, in turns; the median counts")
    parser.add_argument("--budget", type=float, help="seconds after which no further query is begun")
    parser.add_argument("--plans", action="store_true", help="show the plans")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    files = dict(each.split("=", 1) for each in arguments.table)
    given = arguments.data or files
    tables = (
        read_tables(arguments.data or Path(), arguments.part, arguments.scale, files)
        if given
        else random_tables(0, arguments.scale)
    )
    context = context_of(arguments)
    context = PlanContext(context.roofline, layout=arguments.layout)
    evaluator = (
        model_engine(arguments.model, arguments.device, arguments.fp8)
        if arguments.model
        else counting_engine(arguments.tokenizer)
    )
    suite = Suite(evaluator, tables, context, bool(arguments.model), arguments.tasks, arguments.runs)
    outcomes, left, began = [], [], time.perf_counter()
    for name, query in read_queries().items():
        if arguments.only and not any(
            name == only or name.startswith(f"{only}-") for only in arguments.only.split(",")
        ):
            continue
        if arguments.budget and time.perf_counter() - began > arguments.budget:
            left.append(name)
            continue
        outcomes.append(suite.outcome(query))
        if arguments.plans:
            print(f"-- {name}: {query.shape}\n{outcomes[-1].plan}\n", flush=True)
        elif arguments.model:
            print(table(outcomes[-1:]).splitlines()[1], flush=True)
    print(table(outcomes))
    totals = [sum(o.chosen.seconds for o in outcomes), sum(o.written.seconds for o in outcomes if o.written)]
    print(
        f"{totals[0]:.1f} s as planned, {totals[1]:.1f} s for the {sum(bool(o.written) for o in outcomes)} written orders that differ"
    )
    if left:
        print(f"left out for want of time: {', '.join(left)}")
    for words, holds in verdicts(outcomes):
        print(f"{'holds' if holds else 'FAILS'}: {words}")
    if arguments.json:
        arguments.json.write_text(as_json(outcomes, arguments))
    return 0 if all(holds for _, holds in verdicts(outcomes)) else 1


if __name__ == "__main__":
    sys.exit(main())
