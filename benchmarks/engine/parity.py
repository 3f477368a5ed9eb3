"""A real model's answers beside transformers' own, on real documents.

    python benchmarks/engine/parity.py MODEL REVIEWS.parquet [--rows 50] [--dtype float32] [--threads 2]

Every prompt is run three ways: in one packed pass, as a question behind kept documents, and by transformers in float32
alone, without padding or cache. Prints the largest differences of the answer tokens' logits and whether TRUE/FALSE agree.
"""

import argparse
import json

import numpy as np
import pandas as pd
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model, resolve_checkpoint
from quail_spark.engine.runner import Runner, Segment

QUESTION = "\n\nQuestion: Is the text above a positive review? Answer with TRUE or FALSE only."
WORDS = ("TRUE", " TRUE", "True", " True", "FALSE", " FALSE", "False", " False")


def prompts(tokenizer, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(document part, question part) of each prompt, encoded apart."""
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "@@"}], tokenize=False, add_generation_prompt=True
    )
    head, tail = chat.split("@@")

    def encode(text: str) -> np.ndarray:
        return np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)

    return [(encode(head + text), encode(QUESTION + tail)) for text in texts]


def chunks(parts, budget: int):
    """Lists of (index, part) of at most `budget` tokens."""
    chunk, size = [], 0
    for item in enumerate(parts):
        if chunk and size + len(item[1]) > budget:
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += len(item[1])
    yield chunk


def run_packed(runner, pairs, budget):
    whole = [np.concatenate(pair) for pair in pairs]
    return np.concatenate([runner.run([Segment(t) for _, t in chunk])[0] for chunk in chunks(whole, budget)])


def run_behind_kept(runner, pairs, budget):
    out = []
    for chunk in chunks([d for d, _ in pairs], budget):
        _, nodes = runner.run([Segment(d, keep=len(d), answer=False) for _, d in chunk])
        out.append(runner.run([Segment(pairs[i][1], node) for (i, _), node in zip(chunk, nodes, strict=True)])[0])
        for node in nodes:
            node.release()
    return np.concatenate(out)


def margins(logits: np.ndarray) -> np.ndarray:
    """log P(TRUE) − log P(FALSE) over all surface forms."""
    return np.logaddexp.reduce(logits[:, :4], 1) - np.logaddexp.reduce(logits[:, 4:], 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("reviews", help="Parquet with a column `review`")
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    directory = resolve_checkpoint(args.model)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = [i for (i,) in (tokenizer.encode(word, add_special_tokens=False) for word in WORDS)]
    pairs = prompts(tokenizer, pd.read_parquet(args.reviews)["review"].head(args.rows).tolist())
    config = EngineConfig(model=args.model, dtype=args.dtype, threads=args.threads)
    runner = Runner(load_model(directory, device="cpu", dtype=args.dtype), config, ids)
    ours = {
        "packed": run_packed(runner, pairs, runner.plan.token_budget),
        "behind kept": run_behind_kept(runner, pairs, runner.plan.token_budget),
    }
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        want = np.stack(
            [
                theirs(torch.from_numpy(np.concatenate(p).astype(np.int64))[None], logits_to_keep=1)
                .logits[0, -1, ids]
                .numpy()
                for p in pairs
            ]
        )
    truth = margins(want)
    report = {
        "rows": len(pairs),
        "tokens": sum(map(len, map(np.concatenate, pairs))),
        "dtype": args.dtype,
        "true": int((truth > 0).sum()),
    }
    for name, logits in ours.items():
        differ = (margins(logits) > 0) != (truth > 0)
        report[name] = {
            "max_logit_difference": float(np.abs(logits - want).max()),
            "max_margin_difference": float(np.abs(margins(logits) - truth).max()),
            "answers_that_differ": int(differ.sum()),
            "largest_margin_among_them": float(np.abs(truth[differ]).max()) if differ.any() else None,
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
