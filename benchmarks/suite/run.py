"""The suite: QUAIL-B's query shapes, planned, run and compared with the same queries in written order.

    python benchmarks/suite/run.py --scripted [--data DIRECTORY] [--part dev] [--scale 0.2]      counts, without a model
    python benchmarks/suite/run.py --model DIRECTORY --device cuda:0 [--budget 160] [--json FILE]  on a card, by the clock
    python benchmarks/suite/run.py --shape qwen3-4b --device cuda:0                    the same with random FP8 weights

Without `--data` tables are made of random words. Answers are a fixed function with the published pass rates. "Seconds" are
those of a run by the clock; with `--scripted` those that the cost model gives for the work that the engine would have done:
scheduling, KV pages and prefix sharing are the engine's own, and only the forward pass is left out. The share of light
compares with the datasheet's time for the tokens and attention pairs of that run, without those computed again.

With `--budget` the queries run cheapest first, and one whose plans are not expected to fit into what is left is left out.
A query that fails is told, and the next one runs. `--json` holds what was measured so far at any time.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from comparison import Outcome, Suite
from suite_engines import counting_engine, model_engine
from suite_queries import SuiteQuery, chosen_queries, read_queries
from suite_tables import FILES, random_tables, read_tables

from quail_spark.engine.interpreter import favour_launches
from quail_spark.engine.model_evaluator import ModelEvaluator
from quail_spark.engine.random_checkpoint import SHAPES, write_random_checkpoint
from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.device import find_device
from quail_spark.optimizer.model_spec import ModelSpec, known_model
from quail_spark.optimizer.roofline import Roofline

MOST_PLANNING_S, MOST_SLOWER, LEAST_MEAN = 0.5, 1.03, 1.3


HEADING = (
    f"{'query':8} {'plan ms':>7} {'rows':>10} {'answers':>8} {'expected':>9} {'seconds':>9} {'light':>6}"
    f" {'fresh':>10} {'reused':>11} {'again':>9} {'written':>9} {'ratio':>6}"
)


def line(o: Outcome) -> str:
    """A query's line of the table; the ratio is that of the written order, where there is a choice."""
    c = o.chosen
    written = f"{o.written.seconds:8.2f}s" if o.written else "     same" if o.choice else "        -"
    return (
        f"{o.query.name:8} {o.planning_s * 1e3:7.1f} {o.result_rows:10,} {c.answers:8,} {c.expected_s:8.2f}s {c.seconds:8.2f}s"
        f" {c.share_of_light:6.0%} {c.fresh:10,} {c.reused:11,} {c.recomputed:9,} {written} {o.ratio:6.2f}"
    )


def verdicts(outcomes: list[Outcome]) -> list[tuple[str, bool]]:
    """What the suite asks of the planner, and whether it holds."""
    ratios = [o.ratio for o in outcomes if o.choice]
    mean = math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 1.0
    slowest, dearest = max((o.planning_s for o in outcomes), default=0.0), min(ratios, default=1.0)
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


@dataclass
class Results:
    """What was measured, and which queries were not: `failed` and `left_out`, with the reason."""

    arguments: argparse.Namespace
    outcomes: list[Outcome] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        """All figures, with the plans and what was asked for, to the file that was asked for, in one step."""
        path = self.arguments.json
        if path is None:
            return
        order = list(read_queries())
        rows = [
            asdict(o) | {"query": o.query._asdict(), "ratio": o.ratio, "share_of_light": o.chosen.share_of_light}
            for o in sorted(self.outcomes, key=lambda o: order.index(o.query.name))
        ]
        about = {name: str(value) for name, value in vars(self.arguments).items()}
        found = {"arguments": about, "queries": rows, "verdicts": verdicts(self.outcomes)}
        beside = path.with_name(f"{path.name}.part")
        beside.write_text(json.dumps(found | {"failed": self.failed, "left_out": self.left_out}, indent=1))
        os.replace(beside, path)


def engine_of(arguments: argparse.Namespace, scratch: Path) -> tuple[ModelEvaluator, PlanContext]:
    """An engine, and what the planner is told of its model and device; without a model, of Qwen3-4B on an H200."""
    if arguments.scripted:
        roofline = Roofline(known_model("qwen3-4b"), find_device("H200"))
        return counting_engine(arguments.tokenizer), PlanContext(roofline, layout=arguments.layout)
    on_card = arguments.device != "cpu"
    directory = arguments.model or write_random_checkpoint(
        SHAPES[arguments.shape], scratch, fp8=on_card, device=arguments.device
    )
    evaluator = model_engine(directory, arguments.device, arguments.fp8)
    model = ModelSpec.from_config(json.loads((directory / "config.json").read_text()), directory.name)
    device = find_device(_device_name(arguments.device), cores=2) or find_device("H200")
    precision = "fp8" if evaluator.runner.model.fp8 else "bfloat16"
    return evaluator, PlanContext(Roofline(model, device, precision), layout=arguments.layout)


def _device_name(device: str) -> str:
    import torch

    return "cpu" if device == "cpu" else torch.cuda.get_device_name(device)


def run_all(suite: Suite, results: Results) -> Iterator[Outcome]:
    """The queries one after the other; with a budget the cheapest first, and none that is not expected to end within it."""
    began, budget = time.perf_counter(), results.arguments.budget
    prepared = []
    for query in chosen_queries(results.arguments.only):
        with _failure_of(query, results):
            prepared.append(suite.prepared(query))
    if budget:
        prepared.sort(key=lambda p: p.expected_s)
    expected = spent = 0.0
    for each in prepared:
        need = each.expected_s * max(1.0, spent / expected if expected else 1.0)
        left = budget - (time.perf_counter() - began) if budget else need
        if need > left:
            results.left_out[each.query.name] = f"expected to take {need:.0f} s, {left:.0f} s of the budget are left"
            print(f"{each.query.name:8} left out: {results.left_out[each.query.name]}", flush=True)
            results.write()
            continue
        start, outcome = time.perf_counter(), None
        with _failure_of(each.query, results):
            outcome = suite.outcome(each)
            expected, spent = expected + each.expected_s, spent + time.perf_counter() - start
            results.outcomes.append(outcome)
        results.write()
        if outcome:
            yield outcome


@contextmanager
def _failure_of(query: SuiteQuery, results: Results) -> Iterator[None]:
    """Tell an error and note it, instead of ending the run."""
    try:
        yield
    except Exception as error:
        results.failed[query.name] = f"{type(error).__name__}: {error}"
        print(f"{query.name:8} FAILED: {results.failed[query.name]}", flush=True)
        traceback.print_exc()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine = parser.add_mutually_exclusive_group(required=True)
    engine.add_argument("--scripted", action="store_true", help="count without a model")
    engine.add_argument("--model", type=Path, help="a checkpoint's directory")
    engine.add_argument(
        "--shape", choices=SHAPES, help="random weights of a known shape, such as qwen3-4b; in FP8 on a card"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fp8", default="auto")
    parser.add_argument("--tokenizer", type=Path, help="with --scripted: its directory; else 4 bytes are a token")
    parser.add_argument("--data", type=Path, help="directory of Parquet files; else random words")
    parser.add_argument("--part", default="dev")
    parser.add_argument("--table", action="append", default=[], metavar="NAME=PATH", help=f"of {', '.join(FILES)}")
    parser.add_argument("--scale", type=float, default=0.2, help="share of the full rows; joins grow with its square")
    parser.add_argument("--only", help="ids, or beginnings of them: IMDB,FEV-8")
    parser.add_argument("--no-hints", action="store_true", help="plan without the pass rates")
    parser.add_argument("--layout", default="document_first")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1, help="of each plan, in turns; the median counts")
    parser.add_argument("--budget", type=float, help="seconds for the queries, without loading")
    parser.add_argument("--plans", action="store_true", help="show the plans, step by step")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    files = dict(each.split("=", 1) for each in arguments.table)
    if arguments.data or files:
        tables = read_tables(arguments.data or Path(), arguments.part, arguments.scale, files)
    else:
        tables = random_tables(0, arguments.scale)
    results = Results(arguments)
    print(HEADING)
    with tempfile.TemporaryDirectory() as scratch:
        evaluator, context = engine_of(arguments, Path(scratch))
        favour_launches()
        more = {"tasks": arguments.tasks, "runs": arguments.runs, "hints": not arguments.no_hints}
        suite = Suite(evaluator, tables, context, by_clock=not arguments.scripted, **more)
        for outcome in run_all(suite, results):
            print(line(outcome), flush=True)
            if arguments.plans:
                print(f"-- {outcome.query.shape}\n{outcome.plan}\n")
    outcomes = results.outcomes
    differ = [o.written.seconds for o in outcomes if o.written]
    chosen = sum(o.chosen.seconds for o in outcomes)
    print(f"{chosen:.1f} s as planned; {sum(differ):.1f} s for the {len(differ)} written orders that differ")
    if results.failed or results.left_out:
        print(f"failed: {', '.join(results.failed) or 'none'}; left out: {', '.join(results.left_out) or 'none'}")
    for words, holds in verdicts(outcomes):
        print(f"{'holds' if holds else 'FAILS'}: {words}")
    return 0 if all(holds for _, holds in verdicts(outcomes)) and not results.failed else 1


if __name__ == "__main__":
    sys.exit(main())
