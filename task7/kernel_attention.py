"""GPT-2's attention through the kernels of tasks 4 and 6.

`KernelAttention.attach(model)` tells a transformers model to call `KernelAttention.forward` wherever it would
call its own attention. transformers offers this door itself (`AttentionInterface`); nothing in it is patched.

    prefill   nothing was cached before this call: as many keys as queries -> task 4's flash_attention, causal
    decode    one query, all keys in the KV cache                          -> task 6's decode_attention

The cache comes first: the model calls `cache.update(key, value)`, then the attention function with what that
returned. `KernelCache` (cache.py) returns a view of its keys that carries the cache itself as the attribute
`kv_cache`.

The kernels are float32. A float16 or bfloat16 model has its queries, keys and values converted here, and the
result converted back; the cache stays in float32.

Source: https://huggingface.co/docs/transformers/attention_interface
"""

import itertools

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from task7.kernels import CountedOperators

MAX_HEAD_DIM = 128
_numbers = itertools.count()


class KernelAttention:
    """Attention of one set of kernels, registered with transformers under a name of its own.

    flash_ops: operators with `flash_attention(query, key, value, causal, scale)` (task 4).
    decode_ops: operators with `update_cache` and `decode_attention` (task 6).
    `name` is what `model.set_attn_implementation` takes; `calls` counts the operators' calls.
    """

    def __init__(self, flash_ops, decode_ops):
        self.flash_ops = CountedOperators(flash_ops)
        self.decode_ops = CountedOperators(decode_ops)
        self.name = f"course_kernels_{next(_numbers)}"
        AttentionInterface.register(self.name, self.forward)
        AttentionMaskInterface.register(self.name, refuse_masks)

    @property
    def device(self):
        """Where the model must live."""
        return self.flash_ops.device

    @property
    def backend(self):
        """Which backend runs the kernels: "cuda" or "simulator"."""
        return self.flash_ops.backend

    @property
    def calls(self):
        """Counter of finished calls per operator since the last `reset_calls`."""
        return self.flash_ops.calls + self.decode_ops.calls

    def reset_calls(self):
        self.flash_ops.calls.clear()
        self.decode_ops.calls.clear()

    def attach(self, model):
        """Moves `model` to the kernels' device and makes it use them. Returns it.

        Raises ValueError if the model has no attention that these kernels can do (see `check_config`).
        """
        check_config(model.config)
        model.to(self.device).set_attn_implementation(self.name)
        return model

    def forward(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        """The attention function of one layer, as transformers calls it.

        query: [batch, heads, new_tokens, head_dim]; key, value: [batch, heads, all_tokens, head_dim].
        scaling: factor on q.k (None: head_dim ** -0.5). Returns ([batch, new_tokens, heads, head_dim], None).
        Raises ValueError for what the kernels cannot do yet.
        """
        _refuse(attention_mask is not None, "an attention mask")
        _refuse(dropout > 0.0, f"dropout={dropout} (call model.eval())")
        _refuse(kwargs.get("sliding_window") is not None, f"sliding_window={kwargs.get('sliding_window')}")
        _refuse(not getattr(module, "is_causal", True), "attention that is not causal")
        _refuse(
            query.requires_grad and torch.is_grad_enabled(),
            "training: the kernels have no backward pass (use torch.no_grad())",
        )
        _refuse(key.size(1) != query.size(1), f"{query.size(1)} query heads on {key.size(1)} key heads")

        new_tokens, all_tokens = query.size(2), key.size(2)
        scale = query.size(-1) ** -0.5 if scaling is None else scaling
        q = _for_kernels(query)
        if new_tokens == all_tokens:
            out = self.flash_ops.flash_attention(q, _for_kernels(key), _for_kernels(value), True, scale)
        elif new_tokens > 1:
            raise ValueError(several_new_tokens(new_tokens, all_tokens - new_tokens))
        elif hasattr(key, "kv_cache"):
            out = key.kv_cache.attend(q, scale)
        else:  # another Cache, such as DynamicCache: its tensors are a KV cache that is exactly full
            lengths = torch.full((key.size(0),), all_tokens, dtype=torch.int32, device=key.device)
            k, v = _for_kernels(key), _for_kernels(value)
            out = self.decode_ops.decode_attention(q, k, v, lengths, scale)
        return out.to(query.dtype).transpose(1, 2), None


def check_config(config):
    """Raises ValueError unless the kernels can do the attention of a model with this transformers config."""
    if config.model_type != "gpt2":
        raise ValueError(
            f"model_type is {config.model_type!r}; allowed: 'gpt2' (other architectures are not supported yet)"
        )
    head_dim = config.hidden_size // config.num_attention_heads
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim is {head_dim} (n_embd {config.hidden_size} / n_head "
            f"{config.num_attention_heads}); allowed: at most {MAX_HEAD_DIM}"
        )
    if config.add_cross_attention:
        raise ValueError("add_cross_attention is true; allowed: false (cross-attention is not supported yet)")


def refuse_masks(attention_mask=None, allow_is_causal_skip=True, local_size=None, **kwargs):
    """The mask function that goes with `KernelAttention.forward`: always None, or an error.

    Without one, transformers would drop a padding mask silently and the padding would be attended to.
    attention_mask: bool [batch, all_tokens], False where there is padding.
    """
    _refuse(
        attention_mask is not None and not bool(attention_mask.all()),
        "a padding mask: all sequences of a batch must have the same length",
    )
    _refuse(not allow_is_causal_skip, "packed sequences and masks other than the causal one")
    _refuse(local_size is not None, f"sliding_window={local_size}")
    return None


def several_new_tokens(new_tokens, cached):
    """The error text for a prefill on a cache that is not empty."""
    return (
        f"{new_tokens} new tokens on a KV cache that holds {cached}: not supported yet. Start with an empty "
        "cache, or pass one token at a time"
    )


def _for_kernels(x):
    """float32 and contiguous, as every kernel wants it; the same tensor where it is that already."""
    return x.float().contiguous()


def _refuse(condition, what):
    if condition:
        raise ValueError(f"the course's attention kernels do not support {what} yet")
