"""The five yardstick workloads through the whole engine on one GPU: seconds, share of speed of light, ratio to vLLM.

    python benchmarks/engine/yardstick.py [--model DIRECTORY] [--fp8 row,block] [--only filter,bio] [--runs 3]
                                          [--scale 1] [--sessions 2] [--rows 256] [--budget 32768] [--json FILE] [--profile] [--leave GIB] [--kv fp8]

Without `--model`, a random checkpoint in the layout of Qwen3-4B-FP8 is written first. Prompts are ready token ids; the
clock runs from the first call to the last answer. `--sessions` streams call at the same time, as Spark's tasks do, with
`--rows` rows or one anchor a call. Duplicates and remembered answers play no part. The card is heated for two seconds before
each run. Speed of light: every distinct prefix once, linear layers at the FP8 and attention at the bfloat16 datasheet rate.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from id_sessions import ROWS, Gate, IdQuestions, calls_of
from workloads import WORKLOADS, Workload

from quail_spark.engine.config import KV_SETTINGS, EngineConfig
from quail_spark.engine.evaluator import Counts
from quail_spark.engine.interpreter import favour_launches
from quail_spark.engine.loader import load_model
from quail_spark.engine.model_evaluator import ModelEvaluator
from quail_spark.engine.random_checkpoint import SHAPES, write_random_checkpoint
from quail_spark.engine.readout import Readout
from quail_spark.engine.runner import Runner, Segment
from quail_spark.engine.warm_up import warm_up

FP8_FLOPS, BF16_FLOPS = 1.979e15, 0.989e15  # NVIDIA H100 and H200 datasheets, dense
# vLLM 0.26.0, Qwen3-4B block FP8, one H200, seconds
VLLM = {"filter": 16.90, "filters3": 27.05, "join": 22.51, "bio": 34.13, "agent": 5.68}
READOUT = Readout((20611, 8214, 2514, 3007, 30351, 7833, 4049, 3557), 4)  # Qwen3's forms of TRUE and FALSE
HEATING = 2.0
GAPS = (0, 3, 10, 100, 1000, float("inf"))  # microseconds between kernels, by which a profile sorts them


def least_work(workload: Workload) -> tuple[int, float]:
    """Tokens and (query, key) pairs when every distinct prefix is computed once."""
    runs: list[tuple[int, int]] = []  # new tokens, tokens before them
    before = 0
    for index, document in enumerate(workload.documents):
        previous = workload.documents[index - 1] if index else document[:0]
        shared = len(previous) if np.array_equal(previous, document[: len(previous)]) else 0
        runs.append((len(document) - shared, shared))
        before = len(document)
        if workload.kind == "pairs":
            runs.append((len(workload.frame), before))
            runs += [(len(tail), before + len(workload.frame)) for tail in workload.partners]
    live = np.ones(len(workload.documents), bool)
    for question, passed in zip(workload.questions, workload.passes, strict=True):
        runs += [(len(question), len(workload.documents[i])) for i in np.flatnonzero(live)]
        live &= passed
    return sum(n for n, _ in runs), sum(n * k + n * (n + 1) / 2 for n, k in runs)


def speed_of_light(workload: Workload, facts) -> float:
    """Seconds."""
    tokens, pairs = least_work(workload)
    width = facts.heads * facts.head_dim
    matrices = facts.hidden * (2 * width + 2 * facts.kv_heads * facts.head_dim + 3 * facts.intermediate)
    return facts.layers * (2 * matrices * tokens / FP8_FLOPS + 4 * pairs * width / BF16_FLOPS)


def heat(runner: Runner) -> None:
    rng, end = np.random.default_rng(), time.perf_counter() + HEATING
    while time.perf_counter() < end:
        runner.run([Segment(rng.integers(0, 1000, 512).astype(np.int32)) for _ in range(16)])


def run_once(evaluator: ModelEvaluator, workload: Workload, sessions: int, rows: int = ROWS) -> dict:
    """One measured run. The keys end in their unit."""
    questions, gate = IdQuestions(workload), Gate(workload)
    streams = [calls_of(workload, evaluator, questions, gate, part, sessions, rows) for part in range(sessions)]
    counts: list[Counts] = []
    errors: list[BaseException] = []

    def work(stream) -> None:
        try:
            for call in stream:
                answers = call()
                assert not answers.errors, answers.errors[:3]
                counts.append(answers.counts)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - began
    if errors:
        raise errors[0]
    fresh, reused = sum(c.fresh_tokens for c in counts), sum(c.reused_tokens for c in counts)
    return {
        "wall_s": wall,
        "fresh_tokens": fresh,
        "requested_tokens": fresh + reused,
        "recomputed_tokens": sum(c.recomputed_tokens for c in counts),
        "evaluations": sum(c.evaluations for c in counts),
        "gpu_s": sum(c.seconds for c in counts),
        "margins": gate.margins,
    }


def unshared_difference(runner: Runner, workload: Workload, margins: dict, count: int = 48) -> dict:
    """Margins of a sample beside those of the same prompts alone, whole, without any sharing.

    Random weights hardly tell prompts apart that share most of their tokens, so the measure is the spread of the logits.
    """
    rng = np.random.default_rng()
    keys = sorted(margins)
    chosen = [keys[i] for i in rng.choice(len(keys), min(count, len(keys)), replace=False)]
    logits = np.concatenate([runner.run([Segment(Gate.prompt(workload, key))])[0] for key in chosen])
    alone = READOUT.margins(logits)
    got = np.array([margins[key] for key in chosen])
    return {
        "sample": len(chosen),
        "max_margin_difference": float(np.abs(alone - got).max()),
        "spread_of_logits": float(logits.std()),
        "answers_that_differ": int(((alone > 0) != (got > 0)).sum()),
    }


def measure(evaluator: ModelEvaluator, workload: Workload, arguments) -> dict:
    light = speed_of_light(workload, evaluator.runner.model.config)
    runs = []
    for _ in range(arguments.runs):
        heat(evaluator.runner)
        runs.append(run_once(evaluator, workload, arguments.sessions, arguments.rows))
    check = unshared_difference(evaluator.runner, workload, runs[-1]["margins"])
    wall = statistics.median(run["wall_s"] for run in runs)
    last = {k: v for k, v in runs[-1].items() if k not in ("margins", "wall_s")}
    return last | {
        "workload": workload.name,
        "fp8": evaluator.runner.model.fp8,
        "wall_s": wall,
        "walls_s": [run["wall_s"] for run in runs],
        "speed_of_light_s": light,
        "share_of_light": light / wall,
        "least_fresh_tokens": least_work(workload)[0],
        "requested_tokens_per_s": last["requested_tokens"] / wall,
        "gpu_share": statistics.median(run["gpu_s"] / run["wall_s"] for run in runs),
        "times_vllm": VLLM[workload.name] / wall if arguments.scale == 1 else None,
        "check": check,
    }


def shown(row: dict) -> str:
    times = f"{row['times_vllm']:5.2f}× vLLM" if row["times_vllm"] else ""
    return (
        f"{row['fp8'] or 'bf16':5} {row['workload']:8} {row['wall_s']:7.2f} s  {100 * row['share_of_light']:5.1f} % of light"
        f"  {row['requested_tokens_per_s'] / 1e6:6.2f} M requested tokens/s  {row['fresh_tokens']:>9,} fresh"
        f" ({row['recomputed_tokens']:,} again)  GPU {100 * row['gpu_share']:4.1f} %  {times}"
        f"  margins differ by {row['check']['max_margin_difference']:.3f} at most (logits' spread {row['check']['spread_of_logits']:.1f})"
    )


def profile(evaluator: ModelEvaluator, workload: Workload, sessions: int, path: str | None) -> dict:
    """Share of the time from the first kernel to the last in which one runs; where the time goes, and where it stands still."""
    heat(evaluator.runner)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run_once(evaluator, workload, sessions)
    kernels = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((e.time_range.start, e.time_range.end, e.name) for e in kernels)
    began, reach = spans[0][:2]
    gaps = []  # microseconds, when, before which kernel
    for start, end, name in spans:
        if start > reach:
            gaps.append((start - reach, reach - began, name))
        reach = max(reach, end)
    whole = reach - began
    by_name: dict[str, float] = {}
    for e in kernels:
        by_name[e.name] = by_name.get(e.name, 0.0) + (e.time_range.end - e.time_range.start) / 1e6
    top = sorted(by_name.items(), key=lambda item: -item[1])[:14]
    result = {"workload": workload.name, "busy": 1 - sum(gap for gap, *_ in gaps) / whole, "kernels_s": top}
    result["idle_by_gap_us"] = {}
    for least, most in pairwise(GAPS):
        chosen = [gap for gap, *_ in gaps if least < gap <= most]
        result["idle_by_gap_us"][f"up to {most:g}"] = [sum(chosen) / 1e6, len(chosen)]
    result["longest_gaps"] = sorted(gaps, reverse=True)[:12]
    print(f"profile of {workload.name}: a kernel runs {100 * result['busy']:.1f} % of {whole / 1e6:.3f} s")
    for words, (seconds, count) in result["idle_by_gap_us"].items():
        print(f"    idle {seconds:7.3f} s  in {count} gaps of {words} µs")
    for gap, when, name in result["longest_gaps"]:
        print(f"    idle {gap / 1e3:7.3f} ms at {when / 1e6:.3f} s, before {name[:80]}")
    for name, seconds in top:
        print(f"    {seconds:7.3f} s  {name[:110]}")
    return result


def engine(directory: Path, fp8: str, arguments) -> ModelEvaluator:
    began = time.perf_counter()
    config = EngineConfig(
        str(directory),
        device=arguments.device,
        fp8=fp8,
        kv=arguments.kv,
        token_budget=arguments.budget,
        answer_memory=0,
    )
    runner = Runner(load_model(directory, device=config.device, fp8=fp8), config, READOUT.ids)
    loaded = time.perf_counter()
    warm_up(runner)
    favour_launches()
    print(f"{fp8}: loaded in {loaded - began:.1f} s, warm after {time.perf_counter() - loaded:.1f} s more", flush=True)
    print(json.dumps(runner.describe()), flush=True)
    return ModelEvaluator(config, None, READOUT, runner, "yardstick")


def taken(arguments) -> torch.Tensor:
    """Memory that other programs could hold, so that `--leave` GiB are free."""
    free, _ = torch.cuda.mem_get_info(arguments.device)
    return torch.empty(int(free - arguments.leave * (1 << 30)), dtype=torch.uint8, device=arguments.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", default="qwen3-4b", choices=SHAPES)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--fp8", default="row,block", help="scales, or `off` for bfloat16; several behind one another")
    parser.add_argument("--kv", default="auto", choices=KV_SETTINGS, help="number type of KV pages")
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of a filter's call")
    parser.add_argument("--budget", type=int, default=0, help="tokens of a pass; 0: what suits the memory")
    parser.add_argument("--json")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--leave", type=float, help="GiB of the card to leave free: how a smaller one would be planned")
    arguments = parser.parse_args()
    balloon = taken(arguments) if arguments.leave else None
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.model or write_random_checkpoint(
            SHAPES[arguments.shape], Path(scratch), fp8=arguments.fp8 != "off", device=arguments.device
        )
        rows, profiles = [], []
        for fp8 in arguments.fp8.split(","):
            evaluator = engine(directory, fp8, arguments)
            for name in arguments.only.split(","):
                workload = WORKLOADS[name](arguments.scale)
                rows.append(measure(evaluator, workload, arguments))
                print(shown(rows[-1]), flush=True)
                if arguments.profile:
                    profiles.append(profile(evaluator, workload, arguments.sessions, arguments.json))
            del evaluator
            torch.cuda.empty_cache()
    del balloon
    if arguments.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": arguments.shape}
        Path(arguments.json).write_text(json.dumps(about | {"rows": rows, "profiles": profiles}, indent=1))


if __name__ == "__main__":
    main()
