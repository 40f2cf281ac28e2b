"""Estimates the instructions that a GPU would issue from the simulator's x86 code: block_mixes(library).

The simulator's compiler emits a multiplication and an addition for what nvcc contracts to one FMA, and calls expf where
a GPU runs a handful of instructions. So the additions and multiplications of a basic block are paired up as FMAs, and
each call counts as about the instructions in CUDA's math library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from common.inspect.profile.instruction_counts import block_operations

INTEGER_SHARE = 0.06  # of x86's integer instructions, fitted to the GEMM ladder: nvcc unrolls and folds offsets


@dataclass(frozen=True)
class Mix:
    """Instruction counts, summed over threads.

    Attributes:
        add, multiply, fused: float32 arithmetic.
        more: other float32 instructions, from divisions and the math library.
        special: instructions for the special function units.
        other: comparisons, conversions, integer and address arithmetic, on the ALUs.
    """

    add: float = 0
    multiply: float = 0
    fused: float = 0
    more: float = 0
    special: float = 0
    other: float = 0

    def __add__(self, second: Mix) -> Mix:
        return Mix(*(a + b for a, b in zip(self.parts, second.parts, strict=True)))

    def times(self, count: int) -> Mix:
        return Mix(*(count * part for part in self.parts))

    @property
    def parts(self) -> tuple[float, ...]:
        return self.add, self.multiply, self.fused, self.more, self.special, self.other

    def contracted(self) -> Mix:
        """The mix with additions and multiplications paired up as FMAs."""
        both = min(self.add, self.multiply)
        return replace(self, add=self.add - both, multiply=self.multiply - both, fused=self.fused + both)

    @property
    def float32(self) -> float:
        return self.add + self.multiply + self.fused + self.more


NOTHING = Mix()
_SCALAR = re.compile(
    r"^v?(?:(?P<add>add|sub)|(?P<mul>mul)|(?P<div>div)|(?P<fma>fn?m(?:add|sub)\d+)|(?P<root>sqrt))s[sd]$"
)
_COMPARED = re.compile(r"^v?(?:u?comis[sd]|max[sp][sd]|min[sp][sd]|cvt\w+|andn?ps|xorps|orps)$")
_INTEGER = re.compile(r"^(?:add|sub|imul|shl|shr|sar|and|or|not|neg|inc|dec|cmp|test|div|idiv|cmov\w+)[lqwb]?$")
_CALLED = re.compile(r"<(?:__)?(?P<name>[a-z]\w*?)(?:f?_finite)?(?:@|>)")
# name: other float32 instructions, special functions, ALU instructions per call
_MATH = {
    "expf": (6, 1, 1), "exp2f": (2, 1, 2), "logf": (10, 0, 5), "log2f": (4, 1, 3), "sinf": (10, 0, 8),
    "cosf": (10, 0, 8), "tanhf": (8, 2, 4), "powf": (20, 2, 8), "erff": (12, 1, 3), "fmaf": (1, 0, 0),
    "sqrtf": (6, 1, 2), "rsqrtf": (2, 1, 1),
}  # fmt: skip


def mix_of(mnemonic: str, operands: str) -> Mix:
    """The mix of one x86 instruction in AT&T notation."""
    if mnemonic in ("call", "callq"):
        called = _CALLED.search(operands)
        found = called and (_MATH.get(called["name"]) or _MATH.get(called["name"] + "f"))
        return Mix(more=found[0], special=found[1], other=found[2]) if found else NOTHING
    if match := _SCALAR.match(mnemonic):
        if match["div"]:  # a reciprocal, two Newton steps, a range check
            return Mix(more=8, special=1, other=1)
        if match["root"]:
            return Mix(more=6, special=1, other=2)
        return Mix(add=bool(match["add"]), multiply=bool(match["mul"]), fused=bool(match["fma"]))
    if _COMPARED.match(mnemonic):
        return Mix(other=1)
    return Mix(other=INTEGER_SHARE) if _INTEGER.match(mnemonic) and "%rsp" not in operands else NOTHING


def block_mixes(library: Path) -> dict[int, Mix]:
    """Basic block -> instructions issued per execution; empty without objdump or on a CPU other than x86-64."""
    return {block: mix.contracted() for block, mix in (block_operations(library, mix_of) or {}).items()}
