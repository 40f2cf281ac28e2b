"""Text generators: one interface over transformers' modules and the lean engine.

    TransformersWriter   transformers' modules; attention and cache are the course's, or the reference: sdpa
    LeanWriter           common.kernels.gpt2.engine: the same weights without transformers' code

Both have generate(prompts, ...), logits(tokens), and rows(): what ran, for the table at the end.
"""

from __future__ import annotations

import torch

from task7.tools.generation import generate

WHOSE = {"student": "yours", "solution": "the reference solution's", "tuned": "the tuned one"}


class TransformersWriter:
    """A model of transformers.

    Args:
        model: on its device, in its dtype.
        new_cache: function from max_seq_len to an empty cache.
        attention: the KernelAttention that the model is attached to; None for the reference.
        variant: the variant of those kernels.
    """

    def __init__(self, model, new_cache, attention=None, variant: str | None = None) -> None:
        self.model = model
        self.new_cache = new_cache
        self.attention = attention
        self.variant = variant

    @property
    def name(self) -> str:
        return "transformers as it is" if self.attention is None else "transformers' modules around these kernels"

    def warm_up(self, prompts, max_new_tokens: int) -> None:
        """On a GPU, one unmeasured run, since the first loads libraries and chooses kernels for each length."""
        if self.model.device.type == "cuda":
            self.generate(prompts, max_new_tokens=max_new_tokens)
        if self.attention is not None:
            self.attention.reset_calls()

    def generate(self, prompts, *, max_new_tokens, **how):
        """See task7.tools.generation.generate."""
        cache = self.new_cache(max(map(len, prompts), default=0) + max_new_tokens)
        return generate(self.model, prompts, cache, max_new_tokens=max_new_tokens, **how)

    @torch.no_grad()
    def logits(self, tokens):
        """tokens: int64 [batch, length] -> [batch, length, vocab]."""
        return self.model(tokens.to(self.model.device), use_cache=False).logits

    def rows(self):
        """(name, words) for each row of the table about what ran."""
        dtype = str(self.model.dtype).removeprefix("torch.")
        if self.attention is None:
            where = torch.cuda.get_device_name() if self.model.device.type == "cuda" else "CPU"
            yield "backend", f"PyTorch on {where}, model in {dtype}"
            yield "attention", "PyTorch's sdpa on transformers' DynamicCache"
            return
        inside = dtype if self.attention.tuned else "float32"
        yield "backend", f"{place(self.attention.backend)}, model in {dtype}, attention in {inside}"
        calls, whose = self.attention.calls, WHOSE[self.variant]
        yield "prefill", f"task 4 flash_attention, {whose}: {calls['flash_attention']} calls"
        yield "decode", f"task 6 decode_attention, {whose}: {calls['decode_attention']} calls"
        yield "KV cache", f"task 6 update_cache, {whose}: {calls['update_cache']} calls"
        yield "LayerNorm, GELU", "PyTorch's, not task 7's: --engine lean runs those"
        yield "GEMMs", "PyTorch's"


class LeanWriter:
    """The lean engine.

    Args:
        engine: a common.kernels.gpt2.engine.Engine.
        kernels: the EngineKernels that it runs on.
        dtype: "float32", "float16" or "bfloat16".
    """

    name = "the lean engine"

    def __init__(self, engine, kernels, dtype: str) -> None:
        self.engine = engine
        self.kernels = kernels
        self.dtype = dtype
        self.how = engine.how(1)  # of the latest texts

    def warm_up(self, prompts, max_new_tokens: int) -> None:
        """On a GPU one unmeasured run: the first loads libraries and captures graphs."""
        if self.kernels.backend == "cuda":
            self.generate(prompts, max_new_tokens=max_new_tokens)

    def generate(self, prompts, **how):
        """See common.kernels.gpt2.engine.Engine.generate."""
        result = self.engine.generate(prompts, **how)
        self.how = self.engine.how(len(prompts), how.get("temperature", 0.0) > 0)
        return result

    def logits(self, tokens):
        """tokens: int64 [batch, length] -> float32 [batch, length, vocab]."""
        return self.engine.logits(tokens)

    def rows(self):
        """(name, words) for each row of the table about what ran."""
        yield "backend", f"{place(self.kernels.backend)}, weights and cache in {self.dtype}"
        whose = WHOSE[self.kernels.variant]
        yield "attention", f"task 4 flash_attention, task 6 decode_attention and update_cache: {whose}"
        yield "LayerNorm, GELU", f"task 7 layernorm and bias_gelu: {whose}"
        yield "GEMMs", "the tuned ones and PyTorch's" if self.kernels.variant == "tuned" else "PyTorch's"
        yield "engine", f"lean: a step is {self.how}; --engine transformers for transformers' modules"


def place(backend: str) -> str:
    """Where the kernels run, in words."""
    if backend == "simulator":
        return "the simulator: CUDA C++ on the CPU"
    return f"CUDA on {torch.cuda.get_device_name()}"


def reference_writer(model, backend: str) -> TransformersWriter:
    """transformers' sdpa and DynamicCache. backend: "cuda", "simulator" (then on the CPU) or "auto"."""
    from transformers import DynamicCache

    if backend == "cuda" and not torch.cuda.is_available():
        raise ValueError("--backend is 'cuda', but PyTorch sees no GPU; allowed: auto, simulator")
    model.to("cpu" if backend == "simulator" or not torch.cuda.is_available() else "cuda")
    model.set_attn_implementation("sdpa")
    return TransformersWriter(model, lambda max_seq_len: DynamicCache(config=model.config))


def attached_writer(model, kernels, variant: str) -> TransformersWriter:
    """transformers' modules on our attention and cache. kernels: (task 4's operators, task 6's)."""
    from task7.front_door.cache import KernelCache
    from task7.front_door.kernel_attention import KernelAttention

    attention = KernelAttention(*kernels, tuned=variant == "tuned")
    attention.attach(model)
    return TransformersWriter(model, lambda max_seq_len: KernelCache(attention, model, max_seq_len), attention, variant)


def lean_writer(model, kernels, dtype: str, prompts, max_new_tokens: int) -> LeanWriter:
    """The lean engine, with room for these prompts and their new tokens. kernels: EngineKernels."""
    from common.kernels.gpt2.engine import Engine

    if model.config.model_type != "gpt2":
        raise ValueError(
            f"the model is a {model.config.model_type!r}, and the lean engine knows 'gpt2' only: --engine transformers"
        )
    if dtype not in kernels.dtypes:
        raise ValueError(
            f"dtype is {dtype!r}; the lean engine on the {kernels.variant} kernels takes {', '.join(kernels.dtypes)}: "
            "--variant tuned takes it, and so does --engine transformers, which converts for the kernels"
        )
    longest = max(map(len, prompts)) + max_new_tokens
    return LeanWriter(Engine(model, kernels, dtype, len(prompts), longest), kernels, dtype)
