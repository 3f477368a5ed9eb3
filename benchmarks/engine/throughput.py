"""Tokens a second of the forward pass, beside the same chunk's matrix products alone.

    python benchmarks/engine/throughput.py MODEL [--dtype bfloat16] [--threads 2] [--repeat 5] [--profile]

Shapes: documents (about 250 tokens each, lengths like film reviews, question included), and a join (one anchor of 1,000
tokens, 500 partners of 20). Tokens are random; medians over `--repeat` runs after one warm-up.
"""

import argparse
import json
import statistics
import time
from functools import partial

import numpy as np
import torch

from quail_spark.engine.batch import ROW_MULTIPLE
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model
from quail_spark.engine.models.decoder import BLOCK_ROWS
from quail_spark.engine.runner import Runner, Segment

CLOCK = time.perf_counter


def documents(rng, tokens: int, vocab: int) -> list[Segment]:
    """Log-normal lengths (median 215, mean about 260), cut to exactly `tokens` in all."""
    lengths = []
    while sum(lengths) < tokens:
        lengths.append(int(np.clip(rng.lognormal(np.log(215), 0.6), 20, 2000)))
    lengths[-1] -= sum(lengths) - tokens
    return [Segment(rng.integers(0, vocab, n).astype(np.int32)) for n in lengths if n]


def median_seconds(work, repeat: int) -> float:
    work()
    times = []
    for _ in range(repeat):
        start = CLOCK()
        work()
        times.append(CLOCK() - start)
    return statistics.median(times)


def products_alone(runner: Runner, rows: int):
    """The linear layers of one chunk on random input, in the forward pass's blocks and threads, and nothing else."""
    model, c = runner.model, runner.model.config
    sizes = [s.stop - s.start for s in runner.model.workers.split(rows, BLOCK_ROWS, ROW_MULTIPLE)]
    blocks = [
        (torch.randn(n, c.hidden).to(model.dtype), torch.randn(n, c.heads * c.head_dim).to(model.dtype)) for n in sizes
    ]

    def one_layer(layer, block):
        x, mixed = block
        layer.qkv(x)
        layer.o.plus(mixed, x)
        layer.mlp.plus(x, x)

    def work():
        for layer in model.layers[:-1]:
            model.workers.each(partial(one_layer, layer), blocks)
        model.workers.each(lambda block: model.layers[-1].kv(block[0]), blocks)

    return work


def run_join(runner: Runner, anchor: Segment, partners: list[Segment], budget: int):
    """The anchor once, then its partners in chunks of at most `budget` new tokens."""
    _, (node,) = runner.run([anchor])
    chunk, size = [], 0
    for partner in [*partners, None]:
        if chunk and (partner is None or size + len(partner.tokens) > budget):
            runner.run([Segment(p.tokens, node) for p in chunk])
            chunk, size = [], 0
        if partner is not None:
            chunk.append(partner)
            size += len(partner.tokens)
    node.release()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--chunks", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--profile", action="store_true", help="print where one 4,096-token chunk spends its time")
    args = parser.parse_args()
    config = EngineConfig(model=args.model, dtype=args.dtype, threads=args.threads)
    model = load_model(args.model, device=config.device, dtype=config.dtype)
    runner, rng, vocab = Runner(model, config, [0, 1]), np.random.default_rng(0), model.config.vocab
    results = {"dtype": str(model.dtype), "threads": torch.get_num_threads()}
    for rows in args.chunks:
        segments = documents(rng, rows, vocab)
        whole = rows / median_seconds(lambda s=segments: runner.run(s), args.repeat)
        alone = rows / median_seconds(products_alone(runner, rows), args.repeat)
        results[f"documents_{rows}"] = {
            "tokens_s": round(whole),
            "products_tokens_s": round(alone),
            "share": round(whole / alone, 3),
        }
    anchor = Segment(rng.integers(0, vocab, 1000).astype(np.int32), keep=1000, answer=False)
    partners = [Segment(rng.integers(0, vocab, 20).astype(np.int32)) for _ in range(500)]
    seconds = median_seconds(
        lambda: run_join(runner, anchor, partners, runner.plan.token_budget), max(1, args.repeat // 2)
    )
    results["join"] = {
        "seconds": round(seconds, 3),
        "new_tokens_s": round(11_000 / seconds),
        "pairs_s": round(500 / seconds, 1),
    }
    print(json.dumps(results, indent=1))
    if args.profile:
        segments = documents(rng, 4096, vocab)
        with torch.profiler.profile() as profile:
            runner.run(segments)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=45))


if __name__ == "__main__":
    main()
