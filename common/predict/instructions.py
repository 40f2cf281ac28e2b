"""How many instructions a GPU would issue, estimated from the simulator's x86 code: block_mixes(library).

The simulator's compiler makes a multiplication and an addition of what nvcc contracts to one FMA, and calls expf where
a GPU has a handful of instructions. So one basic block's additions and multiplications count as FMAs as far as they
pair up, and each call as about what CUDA's math library makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.inspect.profile.instruction_counts import block_operations

INTEGER_SHARE = 0.06  # of x86's integer instructions; fitted to the GEMM ladder: nvcc unrolls loops and folds offsets


@dataclass(frozen=True)
class Mix:
    """Per thread; sums.

    Attributes:
        add, multiply, fused: float32 arithmetic.
        more: further float32 instructions, of divisions and the math library.
        special: on the special function units.
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

    @property
    def parts(self) -> tuple[float, ...]:
        return self.add, self.multiply, self.fused, self.more, self.special, self.other

    def contracted(self) -> Mix:
        """As FMAs where additions and multiplications pair up."""
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
# name: further float32 instructions, special functions, ALU instructions of a call
_MATH = {
    "expf": (6, 1, 1), "exp2f": (2, 1, 2), "logf": (10, 0, 5), "log2f": (4, 1, 3), "sinf": (10, 0, 8),
    "cosf": (10, 0, 8), "tanhf": (8, 2, 4), "powf": (20, 2, 8), "erff": (12, 1, 3), "fmaf": (1, 0, 0),
    "sqrtf": (6, 1, 2), "rsqrtf": (2, 1, 1),
}  # fmt: skip


def mix_of(mnemonic: str, operands: str) -> Mix:
    """One x86 instruction in AT&T notation."""
    if mnemonic in ("call", "callq"):
        called = _CALLED.search(operands)
        found = called and (_MATH.get(called["name"]) or _MATH.get(called["name"] + "f"))
        return Mix(more=found[0], special=found[1], other=found[2]) if found else NOTHING
    if match := _SCALAR.match(mnemonic):
        if match["div"]:  # a reciprocal, two Newton steps, a check of the range
            return Mix(more=8, special=1, other=1)
        if match["root"]:
            return Mix(more=6, special=1, other=2)
        return Mix(add=bool(match["add"]), multiply=bool(match["mul"]), fused=bool(match["fma"]))
    if _COMPARED.match(mnemonic):
        return Mix(other=1)
    return Mix(other=INTEGER_SHARE) if _INTEGER.match(mnemonic) and "%rsp" not in operands else NOTHING


def block_mixes(library: Path) -> dict[int, Mix]:
    """Basic block -> what running it once issues; none without objdump, or on another processor than x86-64."""
    return {block: mix.contracted() for block, mix in (block_operations(library, mix_of) or {}).items()}


def total_mix(mixes: dict[int, Mix], blocks: Sequence[Sequence[int]]) -> Mix:
    """What the blocks issued, given [[return address, times], ...]."""
    result = NOTHING
    for address, times in blocks:
        if address in mixes:
            result += Mix(*(times * part for part in mixes[address].parts))
    return result
