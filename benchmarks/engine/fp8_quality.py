"""How good a real model's answers are with FP8 products, by row and by block: emulated on the CPU, real text, real labels.

    python benchmarks/engine/fp8_quality.py MODEL REVIEWS.parquet [--rows 100] [--draws]

The same prompts through transformers in float32 with bfloat16 weights, and with weights and activations of all layers'
products quantised to e4m3: by block as published checkpoints are (128 × 128, activations 1 × 128); by row, weights
requantised from the block-scaled ones as the engine does at load; and "bounded", by row with attention's output and SwiGLU scaled by
bounds, as on Hopper. Queries and keys in e4m3 besides, as where heads are normed (here each has a scale of its own). And the
engine in float32 with the documents' KV rounded to FP8. `--draws`: weights alone, in scales up to 1.7 times as large as they must be,
which makes each rounding another one. Prints logit differences, answers that differ, and the area under the ROC curve
against the reviews' labels.
"""

import argparse
import json

import numpy as np
import pandas as pd
import torch
from parity import WORDS, margins, prompts
from transformers import AutoModelForCausalLM, AutoTokenizer

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model, resolve_checkpoint
from quail_spark.engine.runner import Runner, Segment
from quail_spark.kernels import fp8
from quail_spark.kernels.emulated import KINDS, emulate, round_scores

SCORES = ", scores in FP8"
DRAWS = {
    f"weights by {kind}, scales × {factor}": (kind, factor)
    for kind in fp8.KINDS
    for factor in (1, 1.15, 1.3, 1.45, 1.7)
}


def round_weights(model, kind: str = "block", factor: float = 1.0) -> None:
    """Round the layers' weights to FP8, in place: as published checkpoints, or by `kind` in scales `factor` times as large as they must be."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in name:
            _, scales = fp8.quantise_weight(module.weight, kind)
            unit = factor * fp8.dequantise_weight(torch.ones_like(module.weight), scales)
            module.weight.copy_((module.weight / unit).to(fp8.FP8).float() * unit)


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Share of (positive, negative) pairs that the scores order rightly."""
    positive, negative = scores[labels], scores[~labels]
    return float((positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean())


def behind_fp8_kv(directory, pairs, ids: list[int]) -> np.ndarray:
    """Logits float32 [pairs, ids] of questions behind documents whose keys and values are rounded as `ScaledHeads` are."""
    config = EngineConfig(str(directory), page_size=16)
    runner = Runner(load_model(str(directory), dtype="float32"), config, ids)
    rows = []
    for document, question in pairs:
        _, (node,) = runner.run([Segment(document, keep=len(document), answer=False)])
        for pool in (runner.page_pool.keys.flatten(1, 2), runner.page_pool.values.flatten(1, 2)):
            kept = pool[:, node.slots]
            pool[:, node.slots] = fp8.dequantise(fp8.quantise(kept.flatten(0, 2), "row")).view_as(kept)
        rows.append(runner.run([Segment(question, node)])[0][0])
        node.release()
    return np.stack(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("reviews", help="Parquet with columns `review` and `label` (1: positive)")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--draws", action="store_true", help="only weights, rounded in several ways")
    arguments = parser.parse_args()
    directory = resolve_checkpoint(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = [i for (i,) in (tokenizer.encode(word, add_special_tokens=False) for word in WORDS)]
    table = pd.read_parquet(arguments.reviews).head(arguments.rows)
    labels = table["label"].to_numpy() == table["label"].max()
    pairs = prompts(tokenizer, table["review"].tolist())
    texts = [np.concatenate(pair) for pair in pairs]
    found = {}
    with torch.inference_mode():
        others = DRAWS if arguments.draws else (*KINDS, f"bfloat16 weights{SCORES}", f"bounded{SCORES}")
        for kind in ("bfloat16 weights", *others):
            model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).float().eval()
            products = kind.removesuffix(SCORES)
            if kind in DRAWS:
                round_weights(model, *DRAWS[kind])
            elif products != "bfloat16 weights":
                round_weights(model)
                emulate(model, products)
            if products != kind:
                round_scores(model)
            found[kind] = np.stack(
                [model(torch.from_numpy(t.astype(np.int64))[None], logits_to_keep=1).logits[0, -1, ids] for t in texts]
            )
            del model
    if not arguments.draws:
        found["float32, KV in FP8"] = behind_fp8_kv(directory, pairs, ids)
    base = margins(found["bfloat16 weights"])
    for kind, logits in found.items():
        differ = (margins(logits) > 0) != (base > 0)
        row = {
            "products": kind,
            "rows": len(texts),
            "mean_logit_difference": float(np.abs(logits - found["bfloat16 weights"]).mean()),
            "max_logit_difference": float(np.abs(logits - found["bfloat16 weights"]).max()),
            "mean_margin_difference": float(np.abs(margins(logits) - base).mean()),
            "margins_move_by": [float((margins(logits) - base).mean()), float((margins(logits) - base).std())],
            "answers_that_differ": int(differ.sum()),
            "largest_margin_among_them": float(np.abs(base[differ]).max()) if differ.any() else None,
            "area_under_curve": area(margins(logits), labels),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
