"""The forward pass of a dense decoder over packed rows: no padding, no token-by-token state.

Between two attentions everything is row-wise, so a block of rows runs through O projection, MLP and the next layer's
QKV projection while it is in the cache.
"""

import torch
from quail_spark.kernels.linear import GatedMLP, Linear
from quail_spark.kernels.rows import qk_norm_rope, rms_norm, rope

from ..batch import Batch
from ..kv import PagePool
from .facts import ModelFacts
from .rope import rotary

BLOCK_ROWS = 256


class Layer:
    """Weights of one layer, fused: Q, K, V in one product, gate and up in one. The last layer splits Q from K, V."""

    def __init__(self, facts: ModelFacts, weights: dict[str, torch.Tensor], last: bool):
        """`weights` under short names: `qkv`, `qkv_bias`, `o`, `gate_up`, `down`, `attention_norm`, `mlp_norm`, …"""
        get = weights.get
        self.attention_norm, self.mlp_norm = weights["attention_norm"], weights["mlp_norm"]
        self.q_norm, self.k_norm = get("q_norm"), get("k_norm")
        bias = get("qkv_bias")
        if last:
            width = facts.heads * facts.head_dim
            self.q = Linear(weights["qkv"][:width], None if bias is None else bias[:width])
            self.kv = Linear(weights["qkv"][width:], None if bias is None else bias[width:])
        else:
            self.qkv = Linear(weights["qkv"], bias)
        self.o = Linear(weights["o"], get("o_bias"))
        self.mlp = GatedMLP(weights["gate_up"], weights["down"], get("gate_up_bias"), get("down_bias"))


class Decoder:
    """A loaded model. `config` are its facts; `dtype` of weights, activations and KV."""

    def __init__(
        self,
        facts: ModelFacts,
        embedding: torch.Tensor,
        layers: list[Layer],
        final_norm: torch.Tensor,
        head: torch.Tensor,
    ):
        """`embedding`, `head` [vocab, hidden] (one tensor when tied)."""
        self.config, self.layers = facts, layers
        self.embedding, self.final_norm, self.head = embedding, final_norm, head
        self.dtype, self.device = embedding.dtype, embedding.device

    def forward(self, batch: Batch, pool: PagePool, head_rows: torch.Tensor) -> torch.Tensor:
        """Logits float32 [answers, answer ids] at the answer rows; writes the KV that the batch keeps into the pool.

        `head_rows` float32 [answer ids, hidden]: the head's rows of the answer tokens.
        """
        x = self.embedding[batch.tokens]
        turn = rotary(self.config.rope, self.config.head_dim, batch.positions)
        for index, layer in enumerate(self.layers[:-1]):
            q, k, v = self._qkv(layer, x, turn)
            self._keep(batch, pool, index, k, v)
            mixed = batch.attention.attend(q, k, v, *pool.layer(index))
            x = self._after_attention(layer, mixed.flatten(1), x)
        x = self._last_layer(batch, pool, x, turn)
        return rms_norm(x, self.final_norm, self.config.norm_eps).float() @ head_rows.T

    def _last_layer(self, batch: Batch, pool: PagePool, x, turn):
        """K and V of all rows; Q, attention, O and MLP at the answer rows only."""
        c, layer, rows = self.config, self.layers[-1], batch.answer_rows
        normed = rms_norm(x, layer.attention_norm, c.norm_eps)
        k, v = layer.kv(normed).unflatten(1, (2 * c.kv_heads, c.head_dim)).split(c.kv_heads, dim=1)
        k = self._turned(k, layer.k_norm, turn)
        self._keep(batch, pool, c.layers - 1, k, v)
        q = layer.q(normed[rows]).unflatten(1, (c.heads, c.head_dim))
        q = self._turned(q, layer.q_norm, tuple(t[rows] for t in turn))
        mixed = batch.attention.attend_last(q, k, v, *pool.layer(c.layers - 1))
        return self._after_attention(layer, mixed.flatten(1), x[rows])

    def _qkv(self, layer: Layer, x, turn):
        c = self.config
        qkv = layer.qkv(rms_norm(x, layer.attention_norm, c.norm_eps)).unflatten(1, (-1, c.head_dim))
        q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads), dim=1)
        return self._turned(q, layer.q_norm, turn), self._turned(k, layer.k_norm, turn), v

    def _turned(self, x, norm, turn):
        return rope(x, *turn) if norm is None else qk_norm_rope(x, norm, self.config.norm_eps, *turn)

    def _after_attention(self, layer: Layer, mixed, x):
        x = layer.o.plus(mixed, x)
        return layer.mlp.plus(rms_norm(x, layer.mlp_norm, self.config.norm_eps), x)

    def _keep(self, batch: Batch, pool: PagePool, index: int, k, v):
        if len(batch.keep_rows):
            keys, values = pool.layer(index)
            keys[batch.keep_slots] = k[batch.keep_rows]
            values[batch.keep_slots] = v[batch.keep_rows]
