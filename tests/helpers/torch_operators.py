"""The operators of tasks 4, 6 and 7 in plain PyTorch, and tiny models: for tests of the Python around the kernels."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from common.kernels.gpt2.engine_kernels import EngineKernels
from task7.front_door.kernel_attention import KernelAttention

VOCABULARY = 50


class TorchOps:
    """The taught operators of tasks 4, 6 and 7, computed in float64 and just as strict about layouts."""

    device = torch.device("cpu")
    backend = "simulator"

    def scores(self, query, key, scale):
        scale = query.size(-1) ** -0.5 if scale is None else scale
        return query.double() @ key.double().transpose(-1, -2) * scale

    def flash_attention(self, query, key, value, causal, scale=None, lower_right=False):
        assert key.shape == value.shape and query.shape[:2] == key.shape[:2]
        assert all(x.is_contiguous() and x.dtype == torch.float32 for x in (query, key, value))
        scores = self.scores(query, key, scale)
        if causal:
            first = 1 + (key.size(2) - query.size(2) if lower_right else 0)
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(first), -torch.inf)
        return (scores.softmax(-1) @ value.double()).float()

    def update_cache(self, k_cache, v_cache, key, value, positions):
        assert all(x.is_contiguous() and x.dtype == torch.float32 for x in (key, value))
        for b, at in enumerate(positions.tolist()):
            k_cache[b, :, at : at + key.size(2)] = key[b]
            v_cache[b, :, at : at + key.size(2)] = value[b]

    def decode_attention(self, query, k_cache, v_cache, lengths, scale=None):
        assert query.size(2) == 1 and all(x.is_contiguous() for x in (query, k_cache, v_cache))
        group = query.size(1) // k_cache.size(1)
        out = []
        for b, n in enumerate(lengths.tolist()):
            k, v = (x[b, :, :n].repeat_interleave(group, 0) for x in (k_cache, v_cache))
            out.append((self.scores(query[b], k, scale).softmax(-1) @ v.double()).float())
        return torch.stack(out)

    def layernorm(self, x, residual, weight, bias, eps):
        sums = x if residual is None else x + residual
        return F.layer_norm(sums.double(), x.shape[-1:], weight.double(), bias.double(), eps).float(), sums

    def bias_gelu(self, x, bias):
        return F.gelu(x.double() + bias.double(), approximate="tanh").float()


def torch_kernels(flash=None, decode=None, gpt2=None):
    """EngineKernels of TorchOps, or of the given operators."""
    return EngineKernels(flash or TorchOps(), decode or TorchOps(), gpt2 or TorchOps(), "solution")


GROUPED = {
    "llama": (LlamaConfig, {}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 12}),
}


def tiny_config(model_type: str = "gpt2", **config):
    """GPT-2 with 2 heads; the others with 4 query heads and 2 KV heads; 2 layers, head_dim 16, a context of 32."""
    special = {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3, "vocab_size": VOCABULARY}
    if model_type == "gpt2":
        return GPT2Config(**special | {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32} | config)
    made, own = GROUPED[model_type]
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
    }
    return made(**special | sizes | own | config)


def tiny_model(model_type: str = "gpt2", **config):
    """Random weights, large enough for attention to matter. Returns the model in eval mode, on sdpa."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(model_type, **config)).eval()


def attached(model):
    """A copy of the model on our attention, with TorchOps as kernels. Returns (copy, KernelAttention)."""
    attention = KernelAttention(TorchOps(), TorchOps())
    return attention.attach(copy.deepcopy(model)), attention


def tokens(batch: int, length: int, seed: int = 1):
    """int64 [batch, length], without 0, which is end-of-text."""
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(ids, *lengths: int, left: bool = True):
    """(ids with 0 for padding, the attention mask): sequence b keeps lengths[b] tokens."""
    at = torch.arange(ids.size(1))[None]
    counts = torch.tensor(lengths)[:, None]
    mask = (at >= ids.size(1) - counts) if left else (at < counts)
    return ids * mask, mask.long()


def positions(mask):
    """Each token's position, not counting padding."""
    return (mask.cumsum(-1) - 1).clamp(min=0)
