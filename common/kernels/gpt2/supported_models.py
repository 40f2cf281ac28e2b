"""check_config(config): whether the course's attention kernels support a transformers model, or why not."""

from __future__ import annotations

from common.kernels.decode.cache import MAX_HEAD_DIM

# tests/task7/front_door/test_transformers_attention.py compares each with transformers' own attention
MODEL_TYPES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")


def check_config(config) -> None:
    """Raises a ValueError that names the setting, unless the kernels support the attention of a model with this config.

    config: a PreTrainedConfig. Supported is causal self-attention over all previous tokens, with as many kv_heads as
    heads or a divisor of their number; not windows, sinks, caps or latent keys (MLA).
    """
    if config.model_type not in MODEL_TYPES:
        allowed = ", ".join(map(repr, MODEL_TYPES))
        latent = " (its keys and values are latent: MLA)" if getattr(config, "kv_lora_rank", None) else ""
        raise ValueError(
            f"model_type is {config.model_type!r}{latent}; allowed: {allowed} (other architectures are not supported)"
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim is {head_dim} (hidden_size {config.hidden_size}, {config.num_attention_heads} heads); allowed: "
            f"at most {MAX_HEAD_DIM}"
        )
    if getattr(config, "add_cross_attention", False):
        raise ValueError("add_cross_attention is true; allowed: false (cross-attention is not supported)")
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"]
    if others := sorted(set(layer_types) - {"full_attention"}):
        at_most = f" (up to {window} tokens the model does the same with sliding_window=None)" if window else ""
        raise ValueError(
            f"layers are {', '.join(map(repr, others))}, sliding_window is {window}; allowed: 'full_attention' in "
            f"every layer{at_most}"
        )
