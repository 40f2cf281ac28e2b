"""Wrong answers that the way task 4's kernel works makes possible: kernel_mistakes(query, key, value, ...).

They come on top of those of any attention and of the loop over tiles (common/diagnosis/mistakes).
"""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake
from common.reference import oracle as right

LANES = 32


def kernel_mistakes(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None, lower_right: bool
) -> list[Mistake]:
    """Wrong outputs [..., S_q, head_dim]; the arguments are those of common.reference.oracle.attention."""
    s = right.scores(query, key, causal, scale, lower_right=lower_right)

    def of_one_lane() -> Tensor:
        """O / l, where the l of column c holds the keys of lane c % 32 only."""
        weights = torch.exp(s - torch.where(s.amax(-1, keepdim=True) == -math.inf, 0.0, s.amax(-1, keepdim=True)))
        whole = torch.nn.functional.pad(weights, (0, -s.size(-1) % LANES))
        of_lane = whole.view(*s.shape[:-1], -1, LANES).sum(-2)  # [..., S_q, 32]
        l = of_lane[..., torch.arange(value.size(-1), device=s.device) % LANES]  # noqa: E741
        return torch.where(l == 0, 0.0, weights @ value / l)

    return [
        Mistake(
            "l of one lane",
            "Each output is divided by the sum over every 32nd key only: the 32 lanes hold a part of l each, which "
            "must be added up (warp_sum) before the division.",
            of_one_lane,
        ),
        Mistake(
            "expf instead of exp2f",
            "The weights are too peaked: the scores are multiplied by log2(e) already, so their exponential is exp2f, "
            "not expf.",
            lambda: right.softmax(s / math.log(2)) @ value,
        ),
        Mistake(
            "log2(e) forgotten",
            "The weights are powers of 2, not of e: exp2f(x) needs scores that are multiplied by log2(e).",
            lambda: right.softmax(s * math.log(2)) @ value,
        ),
    ]
