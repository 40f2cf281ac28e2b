"""GPT-2's forward pass on any number of rows: linear layers, and task 7's kernels between them.

A linear layer is torch's or, on Hopper, up to a few hundred rows, our own (linear.cuh). Prefill and decode differ in
`attend`:

    prefill   every token attends to those before it in its sequence       -> task 4's flash_attention
    decode    one token per sequence attends to the KV cache               -> task 6's decode_attention
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from common.kernels.gpt2.engine_kernels import EngineKernels
from common.kernels.gpt2.weights import Affine, Weights

# attend(layer, normed): a layer's attention: its normalized input [rows, width] -> the heads' outputs [rows, width]
Attend = Callable[[int, Tensor], Tensor]


def embed(weights: Weights, tokens: Tensor, positions: Tensor) -> Tensor:
    """[rows, width]: the first block's input. tokens: int64 [rows]; positions: integers [rows]."""
    return F.embedding(tokens, weights.wte) + F.embedding(positions, weights.wpe)


def blocks(weights: Weights, gpt2, x: Tensor, attend: Attend) -> Tensor:
    """All blocks and the last layernorm: embeddings [rows, width] -> [rows, width]. gpt2: task 7's operators."""
    return rest(weights, gpt2, *up_to_last_attention(weights, gpt2, x, attend))


def up_to_last_attention(weights: Weights, gpt2, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
    """(residual stream, output of the last block's heads), both [rows, width]. x: the model's input.

    From here on rows are independent of each other. Every `x +` of the model is done by the layernorm that follows it.
    """
    heads = addend = None  # addend: not yet added to the residual stream x
    for number, layer in enumerate(weights.layers):
        if number > 0:
            x, addend = _behind_attention(weights, gpt2, number - 1, x, heads)
        normed, x = gpt2.layernorm(x, addend, layer.norm_1.weight, layer.norm_1.bias, weights.eps)
        heads = attend(number, normed)
    return x, heads


def rest(weights: Weights, gpt2, x: Tensor, heads: Tensor) -> Tensor:
    """The last block after its attention, and the last layernorm: [rows, width], for any of the rows."""
    x, addend = _behind_attention(weights, gpt2, len(weights.layers) - 1, x, heads)
    return gpt2.layernorm(x, addend, weights.norm.weight, weights.norm.bias, weights.eps)[0]


def _behind_attention(weights: Weights, gpt2, number: int, x: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
    """(residual stream, what is not yet added to it) at the end of a block."""
    layer = weights.layers[number]
    addend = linear(gpt2, heads, layer.proj)
    normed, x = gpt2.layernorm(x, addend, layer.norm_2.weight, layer.norm_2.bias, weights.eps)
    return x, linear(gpt2, _expanded(gpt2, normed, layer.fc1), layer.fc2)


def linear(gpt2, x: Tensor, affine: Affine) -> Tensor:
    """x @ weight^T + bias: [rows, in] -> [rows, out]."""
    if _has_kernel(gpt2, x, affine):
        return gpt2.linear(x, affine.weight, affine.bias)
    return F.linear(x, affine.weight, affine.bias)


def _has_kernel(gpt2, x: Tensor, affine: Affine) -> bool:
    return x.is_cuda and hasattr(gpt2, "linear_fits") and gpt2.linear_fits(x, affine.weight)


def _expanded(gpt2, normed: Tensor, fc1: Affine) -> Tensor:
    """gelu(normed @ weight^T + bias), tanh approximation."""
    if _has_kernel(gpt2, normed, fc1):
        return gpt2.linear(normed, fc1.weight, fc1.bias, True)
    if normed.is_cuda and normed.dtype != torch.float32:
        # cuBLASLt fuses bias and gelu into the GEMM. Not used for float32, because of its approximation of tanh.
        return torch._addmm_activation(fc1.bias, normed, fc1.weight.t(), use_gelu=True)
    return gpt2.bias_gelu(F.linear(normed, fc1.weight), fc1.bias)


def split_heads(weights: Weights, qkv: Tensor, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [batch * seq_len, 3 * width] -> query, key, value [batch, heads, seq_len, head_dim], views of it."""
    return qkv.view(batch, -1, 3, weights.heads, weights.head_dim).permute(2, 0, 3, 1, 4).unbind(0)


class PrefillAttention:
    """`attend` for whole sequences, starting at their first token.

    batch: sequences, all of the same length, including padding on the right: under the causal mask only later tokens,
        which are padding themselves, would see it.
    caches: per layer (k_cache, v_cache) [batch, heads, max_seq_len, head_dim], filled from slot 0 on; None: not stored.
    """

    def __init__(self, weights: Weights, kernels: EngineKernels, batch: int, caches=None) -> None:
        self.weights, self.kernels, self.batch, self.caches = weights, kernels, batch, caches
        self.positions = torch.zeros(batch, dtype=torch.int32, device=kernels.device)

    def __call__(self, number: int, normed: Tensor) -> Tensor:
        layer, gpt2, flash = self.weights.layers[number], self.kernels.gpt2, self.kernels.flash
        caches, scale = (None, None) if self.caches is None else self.caches[number], layer.scale
        if self.caches is not None and self.weights.head_dim % 8 == 0 and _has_kernel(gpt2, normed, layer.qkv):
            query = gpt2.linear_qkv(normed, layer.qkv.weight, layer.qkv.bias, *caches)
            query = query.view(self.batch, -1, self.weights.heads, self.weights.head_dim).transpose(1, 2)
            key, value = (cache[:, :, : query.size(2)] for cache in caches)
            return flash.flash_attention_rows(query, key, value, True, scale).view(normed.shape)
        qkv = linear(gpt2, normed, layer.qkv)
        query, key, value = split_heads(self.weights, qkv, self.batch)
        if self.kernels.variant == "tuned":
            return gpt2.store_heads(flash.flash_attention(query, key, value, True, scale), qkv, *caches)
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        if self.caches is not None:
            self.kernels.decode.update_cache(*caches, key, value, self.positions)
        return flash.flash_attention(query, key, value, True, scale).transpose(1, 2).reshape(len(qkv), -1)


class DecodeAttention:
    """`attend` for one new token per sequence.

    caches: per layer (k_cache, v_cache) [batch, heads, max_seq_len, head_dim].
    positions: int32 [batch], the slots of the new tokens. lengths: int32 [batch], positions + 1. Both stay on the
        device and are read when the kernels run.
    """

    def __init__(self, weights: Weights, kernels: EngineKernels, caches, positions: Tensor, lengths: Tensor) -> None:
        self.weights, self.kernels, self.caches = weights, kernels, caches
        self.positions, self.lengths = positions, lengths

    def __call__(self, number: int, normed: Tensor) -> Tensor:
        batch, qkv = len(normed), linear(self.kernels.gpt2, normed, self.weights.layers[number].qkv)
        query, key, value = split_heads(self.weights, qkv, batch)
        if self.kernels.variant != "tuned":
            key, value = key.contiguous(), value.contiguous()
        decode = self.kernels.decode
        decode.update_cache(*self.caches[number], key, value, self.positions)
        scale = self.weights.layers[number].scale
        out = decode.decode_attention(query.contiguous(), *self.caches[number], self.lengths, scale)
        return out.view(batch, -1)
