"""The forward pass of a dense decoder on a GPU: the kernels of `kernels/triton_*` between FP8 or bfloat16 products.

The same function as `decoder.Decoder`, its oracle. A chunk runs through each layer whole:

    norm → QKV product → head norm + rotary + KV write → attention → O product onto the residual
         → norm → gate-up product → SwiGLU → down product onto the residual → next layer

Where a product takes FP8, the kernel before it quantises; by row, attention does so itself (`values`), and on Hopper the gate-up
product with SwiGLU (`mlp.BoundedMlp`). The last layer computes K and V of all rows and everything
behind them only for the answer rows.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from quail_spark.kernels.fp8 import FP8, FP8_MAX, Quantised
from quail_spark.kernels.rows import adjacent_pairs
from quail_spark.kernels.scaled_linear import scaled_kinds
from quail_spark.kernels.sending import send
from quail_spark.kernels.triton_quantise import empty_quantised, quantise, rms_norm
from quail_spark.kernels.triton_ragged import COPIED_SHARE, TritonAttention, scores_are_bounded
from quail_spark.kernels.triton_rope import turn_heads
from quail_spark.kernels.values import can_fold, fold

from ..batch import Batch
from ..kv import PagePool
from .decoder import HeadRows
from .facts import ModelFacts
from .rope import rotary
from .weights import Matrix, mlp, paired, plain, product, stacked


class CudaLayer:
    """Weights of one layer, fused as in `decoder.Layer`; the norms are float32. `norms`: of query and key heads, or None."""

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
        self.norms = None
        if facts.qk_norm:
            self.norms = tuple(adjacent_pairs(weights[f"{n}_norm"].float(), dim) for n in "qk")
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
        self._bounded = facts.qk_norm and all(scores_are_bounded(*layer.norms) for layer in layers)

    @property
    def serves_fp8_kv(self) -> bool:
        """Whether its kernels read and write FP8 pages; in Triton's interpreter they do."""
        return self.device.type == "cpu" or bool(scaled_kinds(self.device))

    @property
    def row_bytes(self) -> int:
        """Bytes of activations that live at the same time, of one new token: the MLP's or attention's, whichever are more."""
        c, item = self.config, self.dtype.itemsize
        residual, normed = c.hidden * item, c.hidden * item
        width = (c.heads + 2 * c.kv_heads) * c.head_dim
        # qkv, attention's output (plain and quantised), and prefixes that are copied together
        attention = width * item + c.heads * c.head_dim * (item + 1) + COPIED_SHARE * 2 * c.kv_heads * c.head_dim * item
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
        c = self.config
        sent = _Sent.of(batch, self.device)
        scaled = pool.keys.dtype == FP8
        attention = TritonAttention(batch.ragged, c.heads, c.kv_heads, c.head_dim, self.device, self._bounded, scaled)
        x = F.embedding(sent.tokens, self.embedding)
        scales = torch.full((len(x), 1), 1 / FP8_MAX, device=self.device)
        for index, layer in enumerate(self.layers[:-1]):
            normed = rms_norm(x, layer.attention_norm, c.norm_eps, layer.qkv.kind)
            qkv = layer.qkv(normed).unflatten(1, (-1, c.head_dim))
            self._turned(qkv, c.heads, c.kv_heads, sent.positions, layer.norms, self._keep(sent, pool, index))
            self._behind(layer, x, self._attended(attention, layer, qkv, scales, *pool.layer(index)))
        return self._answers(sent, pool, attention, x) @ head_rows.T

    def _answers(self, sent: _Sent, pool: PagePool, attention: TritonAttention, x) -> torch.Tensor:
        """The last layer and the final norm: float32 [answers, hidden]."""
        c, layer, last = self.config, self.layers[-1], self.config.layers - 1
        kv = layer.kv(rms_norm(x, layer.attention_norm, c.norm_eps, layer.kv.kind)).unflatten(1, (-1, c.head_dim))
        self._turned(kv, 0, c.kv_heads, sent.positions, layer.norms, self._keep(sent, pool, last))
        if not len(sent.answer_rows):
            return torch.empty(0, c.hidden, device=self.device)
        x = x.index_select(0, sent.answer_rows)
        q = layer.q(rms_norm(x, layer.attention_norm, c.norm_eps, layer.q.kind)).unflatten(1, (-1, c.head_dim))
        self._turned(q, c.heads, 0, sent.positions.index_select(0, sent.answer_rows), layer.norms, None)
        mixed = attention.attend_last(q, kv, *pool.layer(last)).flatten(1)
        self._behind(layer, x, self._quantised(mixed, layer.o.kind))
        return rms_norm(x.float(), self.final_norm, c.norm_eps, None)

    def _behind(self, layer: CudaLayer, x, mixed) -> None:
        """What follows attention's output in a layer, added to `x`."""
        layer.o.add_to(x, mixed)
        layer.mlp.add_to(x, rms_norm(x, layer.mlp_norm, self.config.norm_eps, layer.mlp.kind))

    def _attended(self, attention: TritonAttention, layer: CudaLayer, qkv, scales, pool_k, pool_v):
        """Attention of all rows, as the O product takes it. `scales`: of rows with bounded values."""
        c, rows, kind = self.config, len(qkv), layer.o.kind
        if kind == "block" and c.head_dim == 128:
            out = empty_quantised(rows, c.heads * c.head_dim, kind, self.device)
            attention.attend(qkv, c.heads, pool_k, pool_v, out)
            return out
        dtype = FP8 if layer.bounded_values else self.dtype
        out = torch.empty(rows, c.heads, c.head_dim, dtype=dtype, device=self.device)
        attention.attend(qkv, c.heads, pool_k, pool_v, out)
        return Quantised(out.flatten(1), scales) if layer.bounded_values else self._quantised(out.flatten(1), kind)

    def _quantised(self, x, kind: str | None):
        return x if kind is None else quantise(x, kind)

    def _turned(self, heads_of_rows, heads: int, kv_heads: int, positions, norms, keep) -> None:
        turn_heads(heads_of_rows, heads, kv_heads, self._turn, positions, norms, self.config.norm_eps, keep)

    def _keep(self, sent: _Sent, pool: PagePool, index: int):
        return None if sent.slots is None else (sent.slots, *pool.layer(index))
