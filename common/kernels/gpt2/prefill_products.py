"""A prefill of four products and the attention per layer (prefill_product.cu): Hopper GPUs, 16 bits, heads of 64.

    products = PrefillProducts.of(weights)        once per model; PrefillProducts.fit(weights, kernels) says whether
    x, heads = products.up_to_last_attention(weights, kernels, x, caches)

Every layernorm is part of the product behind it, every `x +` of the one before; keys and values go from their product
into the caches; a product reads what the heads found where the attention left it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from common.kernels.gpt2.engine_kernels import EngineKernels
from common.kernels.gpt2.forward import split_heads
from common.kernels.gpt2.weights import Affine, Weights


@dataclass(frozen=True)
class FoldedProduct:
    """A linear layer behind a layernorm, whose weight is multiplied into the layer's.

    weight: [N, K]. weight_sum: float32 [N], what the mean is multiplied by. bias: float32 [N].
    """

    weight: Tensor
    weight_sum: Tensor
    bias: Tensor

    @classmethod
    def of(cls, norm: Affine, linear: Affine) -> FoldedProduct:
        wide = linear.weight.double()
        folded = (wide * norm.weight.double()).to(linear.weight.dtype)
        # The sum of the rounded weights, so that an input that is the mean throughout gives exactly the bias
        return cls(folded, folded.double().sum(1).float(), (wide @ norm.bias.double() + linear.bias.double()).float())


@dataclass(frozen=True)
class PrefillProducts:
    """layers: (qkv, projection, expand, contract) of each; the biases of all are float32."""

    layers: list[tuple[FoldedProduct, Affine, FoldedProduct, Affine]]

    @classmethod
    def of(cls, weights: Weights) -> PrefillProducts:
        return cls(
            [
                (
                    FoldedProduct.of(layer.norm_1, layer.qkv),
                    Affine(layer.projection.weight, layer.projection.bias.float()),
                    FoldedProduct.of(layer.norm_2, layer.expand),
                    Affine(layer.contract.weight, layer.contract.bias.float()),
                )
                for layer in weights.layers
            ]
        )

    @staticmethod
    def fit(weights: Weights, kernels: EngineKernels) -> bool:
        """Whether there are kernels for these weights on this GPU."""
        if kernels.variant != "tuned" or weights.head_dim != 64:
            return False
        layer = weights.layers[0]
        row = weights.wte.new_empty(1, 1, max(layer.expand.weight.shape))
        return all(
            kernels.gpt2.prefill_fits(row[..., : affine.weight.size(1)].contiguous(), affine.weight)
            for affine in (layer.qkv, layer.projection, layer.expand, layer.contract)
        )

    def up_to_last_attention(
        self, weights: Weights, kernels: EngineKernels, x: Tensor, caches
    ) -> tuple[Tensor, Tensor]:
        """As that of forward.py, of x [batch, seq_len, width], which is overwritten.

        caches: per layer (k_cache, v_cache) [batch, heads, max_seq_len, 64], filled from slot 0 on.
        """
        ops, (batch, seq_len, width) = kernels.gpt2, x.shape
        qkv, hidden = x.new_empty(batch, seq_len, 3 * width), x.new_empty(batch, seq_len, len(self.layers[0][2].bias))
        heads = None
        for number, (qkv_product, *_) in enumerate(self.layers):
            if number > 0:
                _, projection, expand, contract = self.layers[number - 1]
                ops.prefill_product_add(heads, projection.weight, projection.bias, x)
                ops.prefill_product(x, expand.weight, expand.bias, expand.weight_sum, weights.eps, True, hidden)
                ops.prefill_product_add(hidden, contract.weight, contract.bias, x)
            given = (qkv_product.weight, qkv_product.bias, qkv_product.weight_sum, weights.eps)
            ops.prefill_product(x, *given, False, qkv, *caches[number])
            query, key, value = split_heads(weights, qkv.view(-1, 3 * width), batch)
            heads = kernels.flash.flash_attention(query, key, value, True, weights.layers[number].scale)
        return x.view(-1, width), ops.store_heads(heads, qkv.view(-1, 3 * width), None, None)
