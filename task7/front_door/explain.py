"""Which kernel a call of scaled_dot_product_attention gets, why not a faster one, and how close it comes to a limit.

    print(explain(query, key, value, is_causal=True))

common/kernels/attention_explain.py describes the fast kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.kernels import attention_explain
from common.kernels.attention_call import Options
from common.measure.limits import Limits, measure_limits
from common.measure.timing import measure
from task7.front_door.sdpa import check_mask, scaled_dot_product_attention
from task7.front_door.taught import chosen

KINDS = {  # the matmul rate that a kernel's rate is compared with; float32 for others
    "wgmma": "bfloat16",
    "mma": "bfloat16",
    "sparse": "bfloat16",
    "wgmma 3xfp16": "tf32",
    "3xfp16": "tf32",
}
LIMITS = {"memory": "a copy within the GPU's memory", "arithmetic": "a large matmul"}
_limits: dict[int, Limits] = {}  # by device: measuring takes a second


@dataclass(frozen=True)
class Explanation(attention_explain.Explanation):
    """The result of `explain`; str() formats it as lines of text.

    Attributes:
        kernel: may also be "task1 naive_attention" and so on; for the rest see common.kernels.attention_explain.
        variant: "student", "solution" or "tuned".
        seconds: the median of ten calls, copies included; None in the simulator.
        limit, share: "memory" or "arithmetic", whichever takes longer at the rates measured on this GPU, and the
            fraction of that rate that the call reaches, 0 .. 1; None in the simulator.
    """

    variant: str = "tuned"
    seconds: float | None = None
    limit: str | None = None
    share: float | None = None

    def __str__(self) -> str:
        time = "not measured: on the CPU the kernels run in the simulator"
        if self.seconds is not None:
            time = f"{1e3 * self.seconds:.3g} ms, {self.share:.0%} of the rate of {LIMITS[self.limit]}"
        first, *others = super().__str__().splitlines()
        return "\n".join([f"{first}, variant {self.variant!r}", *others, f"time      {time}"])


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    mode: str = "flash",
    variant: str | None = None,
    **others,
) -> Explanation:
    """What scaled_dot_product_attention does with the same arguments; on a GPU, runs and times it, forward only.

    Raises: what scaled_dot_product_attention raises, and ValueError for a call with no elements.
    """
    options = Options(attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, **others)
    check_mask(options)
    kernels = chosen(mode, variant, query, key, value, options)
    if kernels is None:
        found = attention_explain.explained(query, key, value, options)
        found = Explanation(**vars(found))
    else:
        variant = variant or "solution"
        call = kernels.call(variant, query, key, value, options)
        if call.empty:
            raise ValueError(attention_explain.NOTHING)
        faster = ("mode='flash' with variant='tuned' runs the fast kernels",)
        counted = attention_explain.counted(call, (query, key, value), faster)
        found = Explanation(f"{kernels.task} {kernels.operator}", (), *counted, variant)
    if query.device.type != "cuda":
        return found

    def run() -> Tensor:
        given = {"mode": mode, "variant": variant, **others}
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **given)

    with torch.no_grad(), torch.cuda.device(query.device):
        seconds = measure({"call": run}, lambda: (), rounds=10)["call"].seconds
        limits = _limits_of(query.device)
    kind = KINDS.get(found.kernel, "float32")
    least = {"arithmetic": found.operations / limits.of(kind), "memory": found.least_bytes / limits.copy}
    limit = max(least, key=least.get)
    return Explanation(**vars(found) | {"seconds": seconds, "limit": limit, "share": least[limit] / seconds})


def _limits_of(device: torch.device) -> Limits:
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _limits:
        _limits[index] = measure_limits(rounds=5)
    return _limits[index]
