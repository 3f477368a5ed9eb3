"""The forward pass of a dense decoder on a GPU: the kernels of `kernels/triton_*` between FP8 or bfloat16 products.

The same function as `decoder.Decoder`, its oracle. A chunk runs through each layer whole:

    norm → QKV product → head norm + rotary + KV write → attention → O product onto the residual
         → norm → gate-up product → SwiGLU → down product onto the residual → next layer

Where a product takes FP8, the kernel before it quantises; by row, attention does so itself (`values`), and on Hopper the gate-up
product with SwiGLU (`mlp.BoundedMlp`). Where KV pages hold keys in FP8, attention's scores are products in FP8 too (`scores`).
The last layer computes K and V of all rows and everything behind them only for the answer rows.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from quail_spark.kernels import scores
from quail_spark.kernels.fp8 import FP8, FP8_MAX, Quantised
from quail_spark.kernels.rows import adjacent_pairs
from quail_spark.kernels.scaled_linear import scaled_kinds
from quail_spark.kernels.sending import send
from quail_spark.kernels.triton_quantise import empty_quantised, quantise, rms_norm
from quail_spark.kernels.triton_ragged import COPIED_SHARE, TritonAttention
from quail_spark.kernels.triton_rope import turn_heads
from quail_spark.kernels.values import can_fold, fold

from ..batch import Batch
from ..kv import PagePool
from .decoder import HeadRows
from .facts import ModelFacts
from .rope import rotary
from .weights import Matrix, mlp, paired, plain, product, stacked


class CudaLayer:
    """Weights of one layer, fused as in `decoder.Layer`; the norms are float32. `scoring`: of queries and keys in its number type.

    `fp8_scoring`: of those in FP8, or None.
    """

    def __init__(self, facts: ModelFacts, weights: dict[str, Matrix], last: bool, kind: str | None, dtype: torch.dtype):
        """`weights` as for `decoder.Layer`; `kind`: scales of FP8 products, or None."""
        dim = facts.head_dim

        def bias(*names: str) -> torch.Tensor | None:
            parts = [weights.get(f"{name}_bias") for name in names]
            if parts[0] is None:
                return None
            turned = [adjacent_pairs(p, dim) if n in "qk" else p for n, p in zip(names, parts, strict=True)]
            return torch.cat(turned).to(dtype)

        def fused(*names: str):
            parts = [paired(weights[n], dim) if n in ("q", "k") else weights[n] for n in names]
            return product(stacked(parts), kind, bias(*names), dtype)

        self.attention_norm, self.mlp_norm = weights["attention_norm"].float(), weights["mlp_norm"].float()
        norms = tuple(adjacent_pairs(weights[f"{n}_norm"].float(), dim) for n in "qk") if facts.qk_norm else None
        self.scoring = scores.plain(norms, dim, dtype)
        self.fp8_scoring = scores.in_fp8(*norms, dtype) if norms else None
        if last:
            self.q, self.kv = fused("q"), fused("k", "v")
        else:
            self.qkv = fused("q", "k", "v")
        first, o = self.kv if last else self.qkv, weights["o"]
        self.bounded_values = can_fold(first, tuple(o.shape), kind)
        if self.bounded_values:
            o = fold(first, self.attention_norm, plain(o, torch.float32), facts.heads, facts.kv_heads)
        self.o = product(o, kind, bias("o"), dtype)
        self.mlp = mlp(fused("gate", "up"), weights["down"], kind, bias("down"), dtype)


@dataclass
class _Sent:
    """A batch on the device, int32, in one copy. `slots` and `answer_rows` as in `Batch`."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor | None
    answer_rows: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> "_Sent":
        kept = batch.slots is not None
        parts = [batch.tokens, batch.positions, *([batch.slots] if kept else []), batch.answer_rows]
        sent = send(parts, device)
        return cls(sent[0], sent[1], sent[2] if kept else None, sent[-1])


@dataclass
class _Pass:
    """What a forward pass has beside its rows. `scored`: whether queries and keys are in FP8; `scales`: of rows with bounded values."""

    sent: _Sent
    pool: PagePool
    attention: TritonAttention
    scored: bool
    scales: torch.Tensor

    def scoring(self, layer: CudaLayer) -> scores.Scoring:
        """Of queries and keys as they are in this pass."""
        return layer.fp8_scoring if self.scored else layer.scoring

    def keep(self, index: int):
        """Where keys and values of layer `index` go, as `turn_heads` takes it."""
        return None if self.sent.slots is None else (self.sent.slots, *self.pool.layer(index))


class CudaDecoder:
    """A loaded model on a GPU; attributes as `decoder.Decoder`. `fp8`: kind of scales of its products, or None."""

    def __init__(
        self,
        facts: ModelFacts,
        embedding: torch.Tensor,
        layers: list[CudaLayer],
        final_norm: torch.Tensor,
        head: HeadRows,
        fp8: str | None,
    ):
        self.config, self.layers, self.fp8 = facts, layers, fp8
        self.embedding, self.final_norm, self.head = embedding, final_norm.float(), head
        self.dtype, self.device = embedding.dtype, embedding.device
        self._turn = rotary(facts.rope, facts.head_dim, torch.arange(facts.max_context, device=self.device))

    @property
    def serves_fp8_kv(self) -> bool:
        """Whether its kernels read and write FP8 pages; in Triton's interpreter they do."""
        return self.device.type == "cpu" or bool(scaled_kinds(self.device))

    @property
    def serves_fp8_keys(self) -> bool:
        """Whether queries and keys may be in FP8 in units of their bounds, which head norms give."""
        return self.serves_fp8_kv and self.config.qk_norm

    @property
    def row_bytes(self) -> int:
        """Bytes of activations that live at the same time, of one new token: the MLP's or attention's, whichever are more."""
        c, item = self.config, self.dtype.itemsize
        residual, normed = c.hidden * item, c.hidden * item
        width = (c.heads + 2 * c.kv_heads) * c.head_dim
        # qkv, turned heads in FP8, attention's output (plain and quantised), and prefixes that are copied together
        attention = width * (item + 1) + c.heads * c.head_dim * (item + 1)
        attention += COPIED_SHARE * 2 * c.kv_heads * c.head_dim * item
        mlp = 2 * c.intermediate * item + c.intermediate * item + c.hidden * item
        return residual + normed + max(attention, mlp)

    def warm_up(self, runner) -> None:
        """Compile every variant of the kernels, and take the memory of a full pass. Raises EngineError when a pass fails."""
        from ..warm_up import warm_up

        warm_up(runner)

    def forward(self, batch: Batch, pool: PagePool, head_rows: torch.Tensor) -> torch.Tensor:
        """Logits float32 [answers, answer ids] at the answer rows; writes the KV that the batch keeps into the pool.

        `head_rows` float32 [answer ids, hidden]: the head's rows of the answer tokens.
        """
        c, sent = self.config, _Sent.of(batch, self.device)
        scored = pool.keys.dtype == FP8 and not pool.scaled
        attention = TritonAttention(
            batch.ragged, c.heads, c.kv_heads, c.head_dim, self.device, scored, pool.scaled, self.dtype
        )
        x = F.embedding(sent.tokens, self.embedding)
        scales = torch.full((len(x), 1), 1 / FP8_MAX, device=self.device)
        run = _Pass(sent, pool, attention, scored, scales)
        for index, layer in enumerate(self.layers[:-1]):
            layer.o.add_to(x, self._mixed(run, layer, x, index))
            self._add_mlp(layer, x)
        return self._answers(run, x) @ head_rows.T

    def _mixed(self, run: _Pass, layer: CudaLayer, x, index: int):
        """Attention over `x`, as the O product takes it. Nothing else of it lives on: the memory plan counts on that."""
        c = self.config
        normed = rms_norm(x, layer.attention_norm, c.norm_eps, layer.qkv.kind)
        qkv = layer.qkv(normed).unflatten(1, (-1, c.head_dim))
        q, k = self._turned(run, layer, qkv, c.heads, c.kv_heads, run.sent.positions, run.keep(index))
        return self._attended(run, layer, q, k, qkv[:, c.heads + c.kv_heads :], index)

    def _answers(self, run: _Pass, x) -> torch.Tensor:
        """The last layer and the final norm: float32 [answers, hidden]."""
        c, layer, last, sent = self.config, self.layers[-1], self.config.layers - 1, run.sent
        kv = layer.kv(rms_norm(x, layer.attention_norm, c.norm_eps, layer.kv.kind)).unflatten(1, (-1, c.head_dim))
        _, k = self._turned(run, layer, kv, 0, c.kv_heads, sent.positions, run.keep(last))
        if not len(sent.answer_rows):
            return torch.empty(0, c.hidden, device=self.device)
        x = x.index_select(0, sent.answer_rows)
        q = layer.q(rms_norm(x, layer.attention_norm, c.norm_eps, layer.q.kind)).unflatten(1, (-1, c.head_dim))
        positions = sent.positions.index_select(0, sent.answer_rows)
        q, _ = self._turned(run, layer, q, c.heads, 0, positions, None)
        mixed = run.attention.attend_last(q, k, kv[:, c.kv_heads :], *run.pool.layer(last), run.scoring(layer))
        layer.o.add_to(x, self._quantised(mixed.flatten(1), layer.o.kind))
        self._add_mlp(layer, x)
        return rms_norm(x.float(), self.final_norm, c.norm_eps, None)

    def _add_mlp(self, layer: CudaLayer, x) -> None:
        layer.mlp.add_to(x, rms_norm(x, layer.mlp_norm, self.config.norm_eps, layer.mlp.kind))

    def _turned(self, run: _Pass, layer: CudaLayer, x, heads: int, kv_heads: int, positions, keep):
        """Queries and keys behind head norm and rotary embedding."""
        out, norms = x, run.scoring(layer).norms
        if run.scored:
            out = torch.empty(len(x), heads + kv_heads, x.shape[2], dtype=FP8, device=self.device)
        turn_heads(x, heads, kv_heads, self._turn, positions, norms, self.config.norm_eps, keep, out)
        return out[:, :heads], out[:, heads : heads + kv_heads]

    def _attended(self, run: _Pass, layer: CudaLayer, q, k, v, index: int):
        """Attention of all rows, as the O product takes it."""
        rows, heads, dim = q.shape
        kind, pools, scoring = layer.o.kind, run.pool.layer(index), run.scoring(layer)
        if kind == "block" and dim == 128:
            out = empty_quantised(rows, heads * dim, kind, self.device)
            run.attention.attend(q, k, v, *pools, out, scoring)
            return out
        dtype = FP8 if layer.bounded_values else self.dtype
        out = torch.empty(rows, heads, dim, dtype=dtype, device=self.device)
        run.attention.attend(q, k, v, *pools, out, scoring)
        return Quantised(out.flatten(1), run.scales) if layer.bounded_values else self._quantised(out.flatten(1), kind)

    def _quantised(self, x, kind: str | None):
        return x if kind is None else quantise(x, kind)
