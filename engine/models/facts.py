"""What the forward pass must know of a dense decoder, read from a transformers configuration and checked."""

from dataclasses import dataclass

from quail_spark.optimizer.errors import ModelError

from .rope import Rope, read_rope


@dataclass(frozen=True)
class ModelFacts:
    """Shapes and switches of one checkpoint. `max_context` in tokens; biases and norms say which tensors exist."""

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    norm_eps: float
    rope: Rope
    tied: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def kv_token_bytes(self, key_bytes: int, value_bytes: int, scale_bytes: int = 0) -> int:
        """Bytes of K and V of one token over all layers, from those of an element and of each head's scale."""
        return self.layers * self.kv_heads * (self.head_dim * (key_bytes + value_bytes) + 2 * scale_bytes)


def dense_facts(hf, family: str, **switches: bool) -> ModelFacts:
    """The facts that all dense families spell alike. Raises ModelError for what the forward pass does not compute."""
    if hf.hidden_act != "silu":
        raise ModelError(f"{family}: activation {hf.hidden_act!r} is not supported; accepted: silu")
    if not getattr(hf, "is_causal", True):
        raise ModelError(f"{family}: is_causal is false (every token sees all others); accepted: true")
    heads = hf.num_attention_heads
    head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // heads
    kv_heads = hf.num_key_value_heads or heads
    if heads % kv_heads:
        raise ModelError(f"{family}: {heads} attention heads do not divide over {kv_heads} key/value heads")
    return ModelFacts(
        family=family,
        layers=hf.num_hidden_layers,
        hidden=hf.hidden_size,
        intermediate=hf.intermediate_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=hf.vocab_size,
        max_context=_full_attention_context(hf),
        norm_eps=hf.rms_norm_eps,
        rope=read_rope(hf, family),
        tied=bool(hf.tie_word_embeddings),
        **switches,
    )


def _full_attention_context(hf) -> int:
    """Tokens up to which every layer sees all earlier ones: a sliding window ends it, since windows are not computed."""
    window = getattr(hf, "sliding_window", None)
    sliding = getattr(hf, "use_sliding_window", True) and "sliding_attention" in (
        getattr(hf, "layer_types", None) or ()
    )
    return min(hf.max_position_embeddings, window) if sliding and window else hf.max_position_embeddings
