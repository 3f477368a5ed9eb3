"""The forward pass of a dense decoder over packed rows: no padding, no token-by-token state.

Between two attentions everything is row-wise: a block of rows runs through O projection, MLP and the next layer's QKV
projection while it is in the cache, and blocks run at the same time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from quail_spark.kernels.attention import Attention
from quail_spark.kernels.linear import GatedMLP, Linear
from quail_spark.kernels.rows import adjacent_pairs, qk_norm_rope, rms_norm, rope

from ..batch import ROW_MULTIPLE, Batch
from ..kv import PagePool
from ..workers import Workers
from .facts import ModelFacts
from .rope import rotary

# Rows that go through the row-wise layers together: what the caches hold (256 was fastest of 32 … 1,024).
BLOCK_ROWS = 256


# Only the rows of the answer tokens are ever needed, so a head of its own is not held in memory.
HeadRows = Callable[[Sequence[int]], torch.Tensor]


class Layer:
    """Weights of one layer, fused: Q, K, V in one product, gate and up in one. The last layer has Q apart from K, V.

    Heads of Q and K, their biases and norms, have rotary pairs side by side (`adjacent_pairs`). Norms are float32.
    """

    def __init__(self, facts: ModelFacts, weights: dict[str, torch.Tensor], last: bool):
        """`weights` as in the checkpoint, under short names: q, k, v, o, gate, up, down, q_bias, …, norms."""
        get, dim = weights.get, facts.head_dim
        self.attention_norm = weights["attention_norm"].float()
        self.mlp_norm = weights["mlp_norm"].float()
        self.q_norm = self.k_norm = self.qk_norm = None
        if facts.qk_norm:
            self.q_norm = adjacent_pairs(weights["q_norm"].float(), dim).expand(facts.heads, dim)
            self.k_norm = adjacent_pairs(weights["k_norm"].float(), dim).expand(facts.kv_heads, dim)
            self.qk_norm = torch.cat([self.q_norm, self.k_norm])
        q, k = (adjacent_pairs(weights[name], dim) for name in "qk")
        bias_q, bias_k = (adjacent_pairs(weights[f"{n}_bias"], dim) if facts.qkv_bias else None for n in "qk")
        if last:
            self.q = Linear(q, bias_q)
            self.kv = Linear(torch.cat([k, weights["v"]]), _join(bias_k, get("v_bias")))
        else:
            self.qkv = Linear(torch.cat([q, k, weights["v"]]), _join(bias_q, bias_k, get("v_bias")))
        self.o = Linear(weights["o"], get("o_bias"))
        gate_up = torch.cat([weights["gate"], weights["up"]])
        self.mlp = GatedMLP(gate_up, weights["down"], _join(get("gate_bias"), get("up_bias")), get("down_bias"))


@dataclass
class _Block:
    """Rows that go through the row-wise layers together, and the buffers' views of them.

    `x` [rows, hidden]; `turn` complex64 [rows, 1, head_dim/2]; `qkv`, `kv` (last layer), `mixed` [rows, heads,
    head_dim]; `keep_rows` (within the block) and `keep_slots`: whose K and V go where.
    """

    x: torch.Tensor
    turn: torch.Tensor
    qkv: torch.Tensor
    kv: torch.Tensor
    mixed: torch.Tensor
    keep_rows: torch.Tensor
    keep_slots: torch.Tensor


class Decoder:
    """A loaded model on the CPU. `config` are its facts; `dtype` of weights, activations and KV; `workers` compute."""

    fp8 = None  # scales of FP8 products
    serves_fp8_kv = serves_fp8_keys = False
    row_bytes = 0  # activations are small beside what a CPU's memory has free

    def __init__(self, facts: ModelFacts, embedding: torch.Tensor, layers: list[Layer], final_norm, head: HeadRows):
        """`embedding` [vocab, hidden]; `head(ids)` gives those rows of the head, float32 [ids, hidden]."""
        self.config, self.layers = facts, layers
        self.embedding, self.final_norm, self.head = embedding, final_norm.float(), head
        self.dtype, self.device = embedding.dtype, embedding.device
        self.workers = Workers(1)

    def warm_up(self, runner) -> None:
        """Nothing is compiled at the first pass."""

    def forward(self, batch: Batch, pool: PagePool, head_rows: torch.Tensor) -> torch.Tensor:
        """Logits float32 [answers, answer ids] at the answer rows; writes the KV that the batch keeps into the pool.

        `head_rows` float32 [answer ids, hidden]: the head's rows of the answer tokens.
        """
        c, rows, workers = self.config, len(batch.tokens), self.workers
        tokens, positions, answer_rows = (
            torch.from_numpy(a).long() for a in (batch.tokens, batch.positions, batch.answer_rows)
        )
        slots = None if batch.slots is None else torch.from_numpy(batch.slots).long()
        attention = Attention(batch.ragged)
        turn = rotary(c.rope, c.head_dim, positions).unsqueeze(1)
        qkv, kv = self._heads(rows, c.heads + 2 * c.kv_heads), self._heads(rows, 2 * c.kv_heads)
        mixed = self._heads(rows, c.heads).zero_()
        blocks = [
            _Block(self.embedding[tokens[s]], turn[s], qkv[s], kv[s], mixed[s].flatten(1), *_kept(slots, s))
            for s in workers.split(rows, BLOCK_ROWS, ROW_MULTIPLE)
        ]
        workers.each(lambda block: self._project(0, block, pool), blocks)
        for index in range(c.layers - 1):
            attention.attend(qkv, c.heads, *pool.layer(index), mixed, workers.each)
            workers.each(lambda block, index=index: self._between(index, block, pool), blocks)
        x = torch.cat([block.x for block in blocks])[answer_rows]
        answers = self._answers(attention, pool, x, turn[answer_rows], kv)
        return rms_norm(answers.float(), self.final_norm, c.norm_eps) @ head_rows.T

    def _between(self, index: int, block: _Block, pool: PagePool) -> None:
        """From the attention of layer `index` to the next one's."""
        block.x = self._after_attention(self.layers[index], block.mixed, block.x)
        self._project(index + 1, block, pool)

    def _project(self, index: int, block: _Block, pool: PagePool) -> None:
        """Q, K, V of a block into its `qkv`, or for the last layer K, V into its `kv`; keeps what is to be kept."""
        c, layer = self.config, self.layers[index]
        normed = rms_norm(block.x, layer.attention_norm, c.norm_eps)
        if index < c.layers - 1:
            self._turned(layer.qkv(normed), c.heads + c.kv_heads, layer.qk_norm, block.turn, block.qkv)
            kv = block.qkv[:, c.heads :]
        else:
            self._turned(layer.kv(normed), c.kv_heads, layer.k_norm, block.turn, block.kv)
            kv = block.kv
        if len(block.keep_rows):
            for target, part in zip(pool.layer(index), kv[block.keep_rows].chunk(2, dim=1), strict=True):
                target.index_copy_(0, block.keep_slots, part)

    def _answers(self, attention: Attention, pool: PagePool, x, turn, kv) -> torch.Tensor:
        """The last layer at the answer rows: `x` [answers, hidden] → its output there."""
        c, layer = self.config, self.layers[-1]
        q = self._heads(len(x), c.heads)
        self._turned(layer.q(rms_norm(x, layer.attention_norm, c.norm_eps)), c.heads, layer.q_norm, turn, q)
        mixed = attention.attend_last(q, kv, *pool.layer(c.layers - 1), self.workers.each)
        return self._after_attention(layer, mixed.flatten(1), x)

    def _turned(self, flat, turned_heads: int, norm, turn, out) -> None:
        """Split `flat` [rows, heads · head_dim] into heads; norm and rotate the first ones into `out`, copy the rest."""
        heads = flat.unflatten(1, (-1, self.config.head_dim))
        if norm is None:
            rope(heads, turned_heads, turn, out)
        else:
            qk_norm_rope(heads, norm, self.config.norm_eps, turn, out)

    def _after_attention(self, layer: Layer, mixed, x) -> torch.Tensor:
        x = layer.o.plus(mixed, x)
        return layer.mlp.plus(rms_norm(x, layer.mlp_norm, self.config.norm_eps), x)

    def _heads(self, rows: int, heads: int) -> torch.Tensor:
        return torch.empty(rows, heads, self.config.head_dim, dtype=self.dtype, device=self.device)


def _kept(slots: torch.Tensor | None, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the rows in `rows`: which are kept, counted from its start, and their slots; int64."""
    chosen = torch.full((0,), -1) if slots is None else slots[rows]
    kept = (chosen >= 0).nonzero().squeeze(1)
    return kept, chosen[kept]


def _join(*parts: torch.Tensor | None) -> torch.Tensor | None:
    return None if parts[0] is None else torch.cat(parts)
