"""GPT-2's weights in the engine's layout: one dtype, one device, every matrix [out, in].

transformers stores GPT-2's matrices as [in, out] (`Conv1D`, as OpenAI published them). A GEMM with few rows reads each
output's weights contiguously if they are [out, in], which is also what `torch.nn.functional.linear` takes. They are
transposed once, here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.kernels.gpt2.supported_models import check_config


@dataclass(frozen=True)
class Affine:
    """weight and bias: of a linear layer [out, in] and [out], of a layernorm [width] each."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Layer:
    """One block of GPT-2. scale: the factor on its attention scores."""

    norm_1: Affine
    qkv: Affine
    proj: Affine
    norm_2: Affine
    fc1: Affine
    fc2: Affine
    scale: float


@dataclass(frozen=True)
class Weights:
    """A whole GPT-2.

    wte: [vocab, width], the token embeddings. wpe: [context, width], the position embeddings. head: [vocab, width],
        usually wte itself.
    """

    wte: Tensor
    wpe: Tensor
    layers: tuple[Layer, ...]
    norm: Affine
    head: Tensor
    eps: float
    heads: int

    @property
    def width(self) -> int:
        return self.wte.size(1)

    @property
    def vocab(self) -> int:
        return self.wte.size(0)

    @property
    def context(self) -> int:
        """Tokens per sequence, prompt and new ones."""
        return self.wpe.size(0)

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


@torch.no_grad()
def weights_of(model, dtype: torch.dtype, device: torch.device) -> Weights:
    """The weights of a transformers GPT2LMHeadModel; see check_model for what is not supported."""
    check_model(model)

    def moved(x: Tensor) -> Tensor:
        return x.detach().to(device=device, dtype=dtype).contiguous()

    def norm(module) -> Affine:
        return Affine(moved(module.weight), moved(module.bias))

    def linear(module) -> Affine:
        return Affine(moved(module.weight.t()), moved(module.bias))

    body = model.transformer
    layers = tuple(
        Layer(
            norm(block.ln_1),
            linear(block.attn.c_attn),
            linear(block.attn.c_proj),
            norm(block.ln_2),
            linear(block.mlp.c_fc),
            linear(block.mlp.c_proj),
            float(block.attn.scaling),
        )
        for block in body.h
    )
    wte = moved(body.wte.weight)
    tied = model.lm_head.weight is body.wte.weight
    head = wte if tied else moved(model.lm_head.weight)
    config = model.config
    return Weights(wte, moved(body.wpe.weight), layers, norm(body.ln_f), head, config.layer_norm_epsilon, config.n_head)


def check_model(model) -> None:
    """Raises a ValueError that names the setting, unless the engine can run `model`, a GPT-2."""
    config = model.config
    if config.model_type != "gpt2":
        raise ValueError(f"the engine runs GPT-2 only; model_type is {config.model_type!r}, allowed: 'gpt2'")
    check_config(config)
    if config.activation_function not in ("gelu_new", "gelu_pytorch_tanh"):
        raise ValueError(
            f"activation_function is {config.activation_function!r}; the engine's kernels have 'gelu_new' only"
        )
