"""Wrong answers specific to how task 4's kernel works: kernel_mistakes(query, key, value, ...).

They are in addition to those of any attention and of the loop over tiles (common/diagnosis/mistakes).
"""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import divided, shift_of
from common.diagnosis.mistakes.known import Mistake, Words
from common.reference import oracle as right

known = Words(__file__)

LANES = 32


def kernel_mistakes(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None, lower_right: bool
) -> list[Mistake]:
    """Wrong outputs [..., S_q, head_dim]; the arguments are those of common.reference.oracle.attention."""
    s = right.scores(query, key, causal, scale, lower_right=lower_right)

    def of_one_lane() -> Tensor:
        """O / l, where the l of column c includes only the keys of lane c % 32."""
        weights = torch.exp(s - shift_of(s.amax(-1, keepdim=True)))
        whole = torch.nn.functional.pad(weights, (0, -s.size(-1) % LANES))
        of_lane = whole.view(*s.shape[:-1], -1, LANES).sum(-2)  # [..., S_q, 32]
        l = of_lane[..., torch.arange(value.size(-1), device=s.device) % LANES]  # noqa: E741
        return divided(weights @ value, l)

    return [
        known("l of one lane", of_one_lane),
        known("expf instead of exp2f", lambda: right.softmax(s / math.log(2)) @ value),
        known("log2(e) forgotten", lambda: right.softmax(s * math.log(2)) @ value),
    ]
