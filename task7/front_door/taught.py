"""The taught kernels of tasks 1, 2 and 4 behind the front door, by mode.

kernels = chosen(mode, variant, query, key, value, options)         None: the fast kernels compute the call
kernels.attend(variant, query, key, value, options)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.kernels.attention_call import Call, Options, alternatives, is_causal_bias
from common.kernels.attention_kernels import MAX_HEAD_DIM
from common.kernels.loaded import BACKENDS

VARIANTS = tuple(one.value for one in Variant)  # torch.compile can't trace iteration over the enumeration itself
FAST_MODE = "flash"  # the only mode with variant "tuned"
_loaded: dict[tuple[str, str, str], Operators] = {}  # a plain dictionary: torch.compile can trace it


@dataclass(frozen=True)
class Taught:
    """The kernels of a mode.

    Attributes:
        mode: "naive", "tiled" or "flash".
        task, operator: "task1", "naive_attention": see common/README.md.
        masks: whether they take a mask.
        lower_right: whether they align a causal mask to the lower right.
        sixteen_bit: whether they read float16 and bfloat16; otherwise float32 only.
        max_head_dim: None for no limit.
    """

    mode: str
    task: str
    operator: str
    masks: bool = True
    lower_right: bool = False
    sixteen_bit: bool = False
    max_head_dim: int | None = None

    def attend(self, variant: str, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """Attention by these kernels. Arguments and errors: scaled_dot_product_attention."""
        call = self.call(variant, query, key, value, options)
        if call.empty:
            return call.empty_result()
        operator = getattr(operators(self.task, variant, BACKENDS[query.device.type]), self.operator)
        last = call.attn_mask if self.masks else call.lower_right
        return call.result(operator(call.query, call.key, call.value, call.is_causal, call.scale, last), None)

    def call(self, variant: str, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Call:
        """The call with inputs as these kernels take them. Raises an error that says why if they don't support it."""
        chosen = f"mode {self.mode!r} with variant {variant!r}"
        if asked := _not_taught(options):
            raise ValueError(f"{asked[0]}, and {chosen} has no such option: use mode='flash' with variant='tuned'")
        call = Call.of(query, key, value, options, grouped=False)
        width = call.query.size(-1)
        if call.attn_mask is not None and not self.masks:
            raise ValueError(
                f"attn_mask is given, and {chosen} takes none: use variant='tuned', or mode='naive' or mode='tiled'; "
                "for a causal mask is_causal=True"
            )
        if self.max_head_dim is not None and width > self.max_head_dim:
            raise ValueError(
                f"head_dim is {width} (query has shape {list(query.shape)}, value {list(value.shape)}); {chosen} takes "
                f"up to {self.max_head_dim}: use variant='tuned' (up to {MAX_HEAD_DIM}), or mode='naive' or "
                "mode='tiled'"
            )
        for name, x in (("query", query), ("key", key), ("value", value)):
            if call.gradients and x.requires_grad:
                raise ValueError(
                    f"{name} requires a gradient, and {chosen} has no backward pass: use mode='flash' with "
                    "variant='tuned', or call under torch.no_grad()"
                )
        mask, causal, lower_right = call.attn_mask, call.is_causal, call.lower_right
        if causal and lower_right and not self.lower_right:
            seq_q, seq_k = call.scores_shape[-2:]
            mask, causal = torch.ones(seq_q, seq_k, dtype=torch.bool, device=query.device).tril(seq_k - seq_q), False
        inputs = (x if self.sixteen_bit else x.float() for x in (call.query, call.key, call.value))
        told = mask, causal, lower_right, call.scale, options, call.scores_shape
        return Call(*(x.contiguous() for x in inputs), *told, call.value_head_dim, call.dtype, call.gradients)


MODES = {
    one.mode: one
    for one in (
        Taught("naive", "task1", "naive_attention", sixteen_bit=True),
        Taught("tiled", "task2", "attention"),
        Taught("flash", "task4", "flash_attention", masks=False, lower_right=True, max_head_dim=128),
    )
}


def chosen(
    mode: str, variant: str | None, query: Tensor, key: Tensor, value: Tensor, options: Options
) -> Taught | None:
    """The taught kernels for a mode and a variant; None: the fast ones. Without a variant, mode "flash" uses the fast
    ones for what the taught ones don't support: masks, gradients, options, and head_dim over 128.

    Raises:
        ValueError: no such mode or variant; a head_dim that the fast kernels do not support.
    """
    check_choice(mode, variant)
    tensors = [x for x in (query, key, value) if isinstance(x, Tensor)]
    if variant is None and mode == FAST_MODE:
        mask = options.attn_mask is not None and not is_causal_bias(options.attn_mask)
        gradients = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        wide = any(x.dim() > 0 and x.size(-1) > MODES[mode].max_head_dim for x in tensors)
        variant = "tuned" if mask or gradients or wide or _not_taught(options) else "solution"
    if variant != "tuned":
        return MODES[mode]
    for x in tensors:
        if x.dim() > 0 and x.size(-1) > MAX_HEAD_DIM:
            raise ValueError(f"head_dim is {x.size(-1)}, over {MAX_HEAD_DIM}; mode='naive' and mode='tiled' take any")
    return None


def _not_taught(options: Options) -> list[str]:
    """The options of a call that no taught kernel supports, described with their values."""
    plain = {"key_stride": 1, "return_lse": False, "kernel": None}
    others = {name: getattr(options, name) for name, x in plain.items() if getattr(options, name) != x}
    return options.used_words + [f"{name} is {x!r}" for name, x in others.items()]


def check_choice(mode: str, variant: str | None) -> None:
    """Raises ValueError if there is no such mode or variant."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; it must be {alternatives(MODES)}")
    if variant is not None and variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; it must be {alternatives(VARIANTS)}")
    if variant == "tuned" and mode != FAST_MODE:
        raise ValueError(
            f"variant is 'tuned' with mode {mode!r}; only mode {FAST_MODE!r} has tuned kernels for the whole of "
            "attention"
        )


def operators(task: str, variant: str, backend: str) -> Operators:
    """The operators of a task, built and loaded once. Errors: see common.compiling.load.load."""
    chosen = task, variant, backend
    if chosen not in _loaded:
        _loaded[chosen] = load(BuildRequest(task, variant, backend))
    return _loaded[chosen]


def loaded_operators() -> dict[tuple[str, str, str], Operators]:
    """The operators that calls have loaded so far, by task, variant and backend."""
    return dict(_loaded)
