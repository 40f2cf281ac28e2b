"""Task 6's test cases: the cache (bitwise), attention over it, the layer around both, and the ring's two gaps."""

from common.compiling.variant import Variant
from common.testing.case import Case
from task6.cases.kernels import decode_cases, generate_cases, split_cases, update_cases
from task6.cases.pipeline import pipeline_cases
from task6.cases.ring import ring_cases

PARTS = {
    "update": "test only update_cache",
    "decode": "test only decode_attention",
    "generate": "test both together: a prompt, then token after token",
    "split": "test decode_attention_split only (optional)",
    "ring": "test pieces_of and merge of ring.py only (optional)",
    "pipeline": "test customAttention only; then the model generates, and its times are shown",
}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; update is worth 1 point, decode 1.5, generate 0.5, pipeline 1, split and ring none."""
    return update_cases() + decode_cases() + generate_cases() + split_cases() + ring_cases() + pipeline_cases()
