"""Model families. One file each, one line here."""

from . import llama, qwen2, qwen3

# Name in the checkpoint's `architectures` → the family's reader of facts.
FAMILIES = {
    "LlamaForCausalLM": llama.facts,
    "Qwen2ForCausalLM": qwen2.facts,
    "Qwen3ForCausalLM": qwen3.facts,
}
