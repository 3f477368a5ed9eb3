"""Every kernel of one decoder layer on a CUDA card: µs per 1,000 tokens and its share of the measured ceiling.

    python benchmarks/kernels/layer.py [--json FILE] [--only norm,attention] [--rows 32768] [--shape qwen3-4b]

The card is power-limited, so it is heated by FP8 products for a second before each figure, and a figure is the mean of
back-to-back launches for a quarter of a second. Ceilings are measured in the same way: a device-to-device copy for what moves bytes (bytes read
once and written once), one large product (bfloat16, or FP8 with row scales) for what multiplies.
"""

import argparse
import json
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from quail_spark.kernels import fp8
from quail_spark.kernels.fp8 import FP8
from quail_spark.kernels.gluon_gate_up import COLUMNS, gate_up_swiglu, pieces
from quail_spark.kernels.mlp import BoundedMlp
from quail_spark.kernels.ragged import PrefixGroup, Ragged
from quail_spark.kernels.scaled_linear import ScaledLinear, scaled_kinds
from quail_spark.kernels.scores import Scoring, plain
from quail_spark.kernels.triton_quantise import empty_quantised, quantise, rms_norm, swiglu
from quail_spark.kernels.triton_ragged import TritonAttention
from quail_spark.kernels.triton_rope import turn_heads

SECONDS, HEATING = 0.25, 1.0


@dataclass(frozen=True)
class Shape:
    """Of one layer; `qk_norm` as in Qwen3."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    dim: int
    qk_norm: bool


SHAPES = {
    "qwen3-4b": Shape(2560, 9728, 32, 8, 128, True),
    "qwen3-0.6b": Shape(1024, 3072, 16, 8, 128, True),
    "qwen2.5-0.5b": Shape(896, 4864, 14, 2, 64, False),
    "qwen2.5-7b": Shape(3584, 18944, 28, 4, 128, False),
    "llama-8b": Shape(4096, 14336, 32, 8, 128, False),
}


class Bench:
    """Collects rows of the table."""

    def __init__(self, rows: int):
        self.rows, self.table = rows, []
        a, b = (torch.randn(8192, 8192, device="cuda").to(FP8) for _ in "ab")
        one = torch.ones(8192, 1, device="cuda")
        self._hot = lambda: torch._scaled_mm(a, b.t(), one, one.t(), out_dtype=torch.bfloat16, use_fast_accum=True)
        big, target = torch.randn(2, 1 << 29, device="cuda").bfloat16()
        self.copy = 2 * big.nbytes / self.seconds(lambda: target.copy_(big))
        x, w = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "xw")
        self.bf16, self.fp8 = (2 * 8192**3 / self.seconds(f) for f in (lambda: x @ w.t(), self._hot))

    def seconds(self, run) -> float:
        """Mean time of one call on the hot card."""
        run()
        torch.cuda.synchronize()
        end = time.perf_counter() + HEATING
        while time.perf_counter() < end:
            for _ in range(20):
                self._hot()
            torch.cuda.synchronize()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        count = max(3, int(SECONDS * 1e3 / max(start.elapsed_time(stop), 0.02)))
        start.record()
        for _ in range(count):
            run()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3 / count

    def add(
        self, name: str, run, bytes_moved: float = 0, flops: float = 0, ceiling: str = "bf16", rows: int | None = None
    ) -> None:
        rows = rows or self.rows
        seconds = self.seconds(run)
        rate, unit, most = (
            (flops / seconds, "TFLOPS", getattr(self, ceiling)) if flops else (bytes_moved / seconds, "TB/s", self.copy)
        )
        row = {
            "kernel": name,
            "us_per_1000_tokens": seconds * 1e9 / rows,
            "rate": rate / 1e12,
            "unit": unit,
            "share": rate / most,
        }
        self.table.append(row)
        print(
            f"{name:58s} {row['us_per_1000_tokens']:9.2f} µs  {row['rate']:8.2f} {unit:6s} {100 * row['share']:5.1f} %",
            flush=True,
        )


def elementwise(b: Bench, s: Shape) -> None:
    """Bytes: what is read, and the result without its scales."""
    n = b.rows
    residual = torch.randn(n, s.hidden, device="cuda").bfloat16()
    weight = torch.rand(s.hidden, device="cuda") + 0.5
    for kind in (*scaled_kinds("cuda"), None):
        out = 2 if kind is None else 1
        b.add(
            f"norm, {kind or 'plain'}",
            lambda kind=kind: rms_norm(residual, weight, 1e-6, kind),
            n * s.hidden * (2 + out),
        )
    gate_up = torch.randn(n, 2 * s.intermediate, device="cuda").bfloat16()
    for kind in (*scaled_kinds("cuda"), None):
        b.add(
            f"SwiGLU, {kind or 'plain'}",
            lambda kind=kind: swiglu(gate_up, kind),
            n * s.intermediate * (4 + (2 if kind is None else 1)),
        )
    mixed = torch.randn(n, s.heads * s.dim, device="cuda").bfloat16()
    for kind in scaled_kinds("cuda"):
        b.add(f"quantise attention output, {kind}", lambda kind=kind: quantise(mixed, kind), mixed.numel() * 3)


def rope(b: Bench, s: Shape) -> None:
    qkv = torch.randn(b.rows, s.heads + 2 * s.kv_heads, s.dim, device="cuda").bfloat16()
    positions = torch.arange(b.rows, device="cuda", dtype=torch.int32) % 400
    angles = torch.rand(4096, s.dim // 2, device="cuda")
    turn = torch.polar(torch.ones_like(angles), angles)
    norms = tuple(torch.ones(s.dim, device="cuda") for _ in "qk") if s.qk_norm else None
    slots = (
        torch.randperm(b.rows // 16, device="cuda")
        .repeat_interleave(16)
        .mul_(16)
        .view(-1, 16)
        .add_(torch.arange(16, device="cuda"))
        .flatten()
        .int()
    )
    pools = [torch.zeros(b.rows, s.kv_heads, s.dim, device="cuda", dtype=torch.bfloat16) for _ in "kv"]
    in_fp8 = torch.empty(b.rows, s.heads + s.kv_heads, s.dim, device="cuda", dtype=FP8)
    turned = (s.heads + s.kv_heads) * s.dim * 4 * b.rows
    kept = s.kv_heads * s.dim * 6 * b.rows
    name = "head norm + rotary" if norms else "rotary"
    b.add(name, lambda: turn_heads(qkv, s.heads, s.kv_heads, turn, positions, norms, 1e-6), turned)
    b.add(
        f"{name} + KV write",
        lambda: turn_heads(qkv, s.heads, s.kv_heads, turn, positions, norms, 1e-6, (slots, *pools)),
        turned + kept,
    )
    if norms:
        b.add(
            f"{name}, to FP8",
            lambda: turn_heads(qkv, s.heads, s.kv_heads, turn, positions, norms, 1e-6, None, in_fp8),
            turned * 3 / 4,
        )
        keep = (slots, pools[0].to(FP8), pools[1])
        b.add(
            f"{name}, to FP8 + KV write",
            lambda: turn_heads(qkv, s.heads, s.kv_heads, turn, positions, norms, 1e-6, keep, in_fp8),
            turned * 3 / 4 + kept * 5 / 6,
        )


def products(b: Bench, s: Shape) -> None:
    width = (s.heads + 2 * s.kv_heads) * s.dim
    shapes = {
        "QKV": (width, s.hidden),
        "O": (s.hidden, s.heads * s.dim),
        "gate-up": (2 * s.intermediate, s.hidden),
        "down": (s.hidden, s.intermediate),
    }
    for name, (out, into) in shapes.items():
        x = torch.randn(b.rows, into, device="cuda").bfloat16()
        weight = torch.randn(out, into, device="cuda") / into**0.5
        flops = 2 * b.rows * out * into
        for kind in scaled_kinds("cuda"):
            layer, xq = ScaledLinear.from_plain(weight, kind), quantise(x, kind)
            b.add(f"{name} product, {kind}", lambda layer=layer, xq=xq: layer(xq), flops=flops, ceiling="fp8")
            if out == s.hidden:
                residual = torch.zeros(b.rows, out, device="cuda").bfloat16()
                run = partial(layer.add_to, residual, xq)
                b.add(f"{name} product onto the residual, {kind}", run, flops=flops, ceiling="fp8")
        w = weight.bfloat16()
        b.add(f"{name} product, bf16", lambda x=x, w=w: F.linear(x, w), flops=flops)
    if BoundedMlp.serves(gate_up := _row_scaled(2 * s.intermediate, s.hidden)):
        rows = fp8.bound(torch.randn(b.rows, s.hidden, device="cuda"))
        plain, flops = fp8.Quantised(*rows[:2]), 4 * b.rows * s.intermediate * s.hidden
        weight = pieces(gate_up.weight, COLUMNS)
        b.add("gate-up product, SwiGLU, row", lambda: swiglu(gate_up(plain), "row"), flops=flops, ceiling="fp8")
        b.add(
            "gate-up product with SwiGLU inside, row",
            lambda: gate_up_swiglu(*rows, weight, gate_up.scales),
            flops=flops,
            ceiling="fp8",
        )


def _row_scaled(out: int, into: int) -> ScaledLinear:
    return ScaledLinear.from_plain(torch.randn(out, into, device="cuda") / into**0.5, "row")


def documents(rows: int) -> Ragged:
    """About 390 tokens each, as the filter workload."""
    rng = np.random.default_rng(7)
    lengths = []
    while sum(lengths) < rows:
        lengths.append(int(np.clip(rng.lognormal(5.88, 0.42), 16, 2000)))
    lengths[-1] -= sum(lengths) - rows
    return Ragged([0, *np.cumsum(lengths).tolist()], [], list(range(len(lengths))))


def suffixes(queries: int, prefix: int, page: int, groups: int = 1) -> Ragged:
    """Partners of about ten tokens behind one anchor."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(4, 17, queries // 10).tolist()
    each = len(lengths) // groups
    pages = rng.permutation(2 * groups * prefix // page + 2) if page else np.arange(groups)
    page = page or prefix
    count = -(-prefix // page)
    slots = [
        np.concatenate([np.arange(p * page, (p + 1) * page) for p in pages[g * count : (g + 1) * count]])[:prefix]
        for g in range(groups)
    ]
    prefixes = [PrefixGroup(g * each, (g + 1) * each, torch.from_numpy(slots[g])) for g in range(groups)]
    return Ragged([0, *np.cumsum(lengths[: each * groups]).tolist()], prefixes, list(range(each * groups)))


def attention_flops(ragged: Ragged, s: Shape) -> float:
    lengths = np.diff(ragged.starts).astype(float)
    pairs = (lengths * (lengths + 1) / 2).sum()
    pairs += sum((ragged.starts[g.last] - ragged.starts[g.first]) * len(g.slots) for g in ragged.groups)
    return 4 * pairs * s.heads * s.dim


def attend(
    b: Bench,
    s: Shape,
    name: str,
    ragged: Ragged,
    bounded=False,
    quantised=None,
    scored=False,
) -> None:
    """`scored`: queries and keys in FP8; rates count their products like those in bfloat16."""
    qkv = torch.randn(ragged.rows, s.heads + 2 * s.kv_heads, s.dim, device="cuda").bfloat16()
    slots = max((int(g.slots.max()) + 1 for g in ragged.groups), default=1)
    pools = [torch.randn(slots, s.kv_heads, s.dim, device="cuda").bfloat16() for _ in "kv"]
    plan = TritonAttention(ragged, s.heads, s.kv_heads, s.dim, "cuda", scored)
    if quantised == "block":
        out = empty_quantised(ragged.rows, s.heads * s.dim, "block", "cuda")
    else:
        dtype = fp8.FP8 if quantised == "values" else torch.bfloat16
        out = torch.empty(ragged.rows, s.heads, s.dim, device="cuda", dtype=dtype)
    q, k, v = qkv.split((s.heads, s.kv_heads, s.kv_heads), dim=1)
    scoring = plain(None, s.dim)
    if bounded:
        q, scoring = q * scoring.factor, Scoring(None, 1.0, True)
    if scored:
        q, k, pools[0] = (x.to(fp8.FP8) for x in (q, k, pools[0]))
    b.add(name, lambda: plan.attend(q, k, v, *pools, out, scoring), flops=attention_flops(ragged, s), rows=ragged.rows)


def attentions(b: Bench, s: Shape) -> None:
    docs = documents(b.rows)
    start = time.perf_counter()
    TritonAttention(docs, s.heads, s.kv_heads, s.dim, "cpu")
    print(f"plan of the documents' chunk on the CPU: {1e3 * (time.perf_counter() - start):.1f} ms")
    attend(b, s, "attention, documents", docs)
    attend(b, s, "attention, documents, no running maximum", docs, bounded=True)
    attend(b, s, "attention, documents, output in FP8 by the values' bounds", docs, quantised="values")
    both = {"bounded": True, "quantised": "values", "scored": True}
    attend(b, s, "attention, documents, scores and output in FP8", docs, **both)
    if s.dim == 128:
        attend(b, s, "attention, documents, output by block", docs, quantised="block")
    for name, page in (("contiguous", 0), ("scattered pages of 64", 64), ("scattered pages of 16", 16)):
        attend(b, s, f"attention, 11k suffixes on 4,100, {name}", suffixes(11270, 4100, page))
    attend(b, s, "attention, 11k suffixes on 4,100, no running maximum", suffixes(11270, 4100, 0), bounded=True)
    attend(b, s, "attention, 11k suffixes on 4,100, scores and output in FP8", suffixes(11270, 4100, 0), **both)
    attend(b, s, "attention, 30-token questions behind 1,000 documents of 360", questions(1000, 360, 30))
    attend(b, s, "attention, the same questions, scores and output in FP8", questions(1000, 360, 30), **both)
    count = b.rows // 390
    q, k, v = (torch.randn(count, h, 390, s.dim, device="cuda").bfloat16() for h in (s.heads, s.kv_heads, s.kv_heads))
    flops = 2 * count * 390 * 391 * s.heads * s.dim
    sdpa = torch.nn.attention
    for backend in (sdpa.SDPBackend.CUDNN_ATTENTION, sdpa.SDPBackend.FLASH_ATTENTION):
        with sdpa.sdpa_kernel(backend):
            b.add(
                f"torch {backend.name}, equal documents of 390",
                lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                flops=flops,
                rows=count * 390,
            )


def questions(documents: int, prefix: int, tokens: int) -> Ragged:
    prefixes = [PrefixGroup(i, i + 1, torch.arange(i * 384, i * 384 + prefix)) for i in range(documents)]
    return Ragged(list(range(0, (documents + 1) * tokens, tokens)), prefixes, list(range(documents)))


PARTS = {"norm": elementwise, "rope": rope, "products": products, "attention": attentions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--only", default="norm,rope,products,attention", help=f"of {','.join(PARTS)}")
    parser.add_argument("--rows", type=int, default=32768, help="tokens of the chunk")
    parser.add_argument("--shape", default="qwen3-4b", choices=SHAPES)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device")
    torch.manual_seed(int(time.time()))
    bench = Bench(options.rows)
    ceilings = {"copy_TBps": bench.copy / 1e12, "bf16_TFLOPS": bench.bf16 / 1e12, "fp8_TFLOPS": bench.fp8 / 1e12}
    print(torch.cuda.get_device_name(), {k: round(v, 2) for k, v in ceilings.items()}, flush=True)
    for part in options.only.split(","):
        PARTS[part](bench, SHAPES[options.shape])
    if options.json:
        result = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "shape": options.shape,
            "rows": options.rows,
            "ceilings": ceilings,
            "kernels": bench.table,
        }
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
