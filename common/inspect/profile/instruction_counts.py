"""Floating-point operations of the simulator's checked build, counted in its machine code.

    operations = block_operations(library)        basic block -> operations per execution
    total(operations, kernel["blocks"])           a kernel's total, from the execution count of each block

The compiler calls __sanitizer_cov_trace_pc() at the start of every basic block, and the runtime counts the calls. The
code between one call and the next belongs to the first, as does code without its own call that the block jumps to.
Counted are

- 1 for an add, subtract, multiply or divide, 2 for a fused multiply-add, times the elements in a vector register;
- 1 "special function" for each call of expf, exp2f, logf, sinf, powf, ... and for each square root.

Comparisons, minima, maxima, conversions, negations and integer arithmetic are not counted. Operations that the compiler
folded or eliminated do not appear. The machine code is read with `objdump` (binutils).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACE = "__sanitizer_cov_trace_pc"


@dataclass(frozen=True)
class Operations:
    """Floating-point operations and special functions."""

    flops: int = 0
    special: int = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.flops + other.flops, self.special + other.special)

    def times(self, count: int) -> Operations:
        return Operations(self.flops * count, self.special * count)


NOTHING = Operations()
_LABEL = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)[ \t]*(.*?)(?:\s+# [0-9a-f]+ <.*|\s+//.*)?$")
_CALL = re.compile(r"^(?:callq?|bl)$")
_CALLED = re.compile(r"<([^>+@]+)")
_LEAVES = re.compile(r"^(?:jmpq?|retq?|ud2|b|br|brk|udf)$")  # control does not fall through
_JUMP = re.compile(r"^(?:j\w+|b|b\.\w+|cbn?z|tbn?z)$")
_TARGET = re.compile(r"(?:^|[\s,])([0-9a-f]+)(?= <)")

_X86 = re.compile(
    r"^v?(?:(?P<basic>add|sub|mul|div)|(?P<fused>fn?m(?:add|sub)(?:132|213|231))|(?P<root>sqrt))(?P<kind>[sp][sd])$"
)
_X86_BITS = {"x": 128, "y": 256, "z": 512}
_ARM = re.compile(r"^(?:(?P<basic>fadd|fsub|fn?mul|fdiv)|(?P<fused>fn?madd|fn?msub|fml[as])|(?P<root>fsqrt))$")
_ARM_LANES = {"16b": 0, "2s": 2, "4s": 4, "2d": 2, "4h": 4, "8h": 8}

_SPECIAL = re.compile(
    r"^(?:__)?(?:exp|exp2|exp10|expm1|log|log2|log10|log1p|sin|cos|tan|sincos|asin|acos|atan|atan2|sinh|cosh|tanh|asinh|"
    r"acosh|atanh|pow|cbrt|erf|erfc|erfinv|lgamma|tgamma)f?(?:_finite)?$"
)
_FUSED_CALL = re.compile(r"^fmaf?$")


def _lanes_x86(kind: str, operands: str) -> int:
    if kind[0] == "s":
        return 1
    register = re.search(r"%([xyz])mm", operands)
    return _X86_BITS[register[1] if register else "x"] // (32 if kind[1] == "s" else 64)


def _lanes_arm(operands: str) -> int:
    vector = re.search(r"v\d+\.(\w+)", operands)
    return _ARM_LANES.get(vector[1], 1) if vector else 1


def operations_of(mnemonic: str, operands: str) -> Operations:
    """The operations of one instruction, in objdump's notation for x86-64 (AT&T) or AArch64."""
    if _CALL.match(mnemonic):
        called = _CALLED.search(operands)
        name = called[1] if called else ""
        return Operations(2 * bool(_FUSED_CALL.match(name)), int(bool(_SPECIAL.match(name))))
    if match := _X86.match(mnemonic):
        lanes = _lanes_x86(match["kind"], operands)
    elif match := _ARM.match(mnemonic):
        lanes = _lanes_arm(operands)
    else:
        return NOTHING
    if match["root"]:
        return Operations(0, lanes)
    return Operations(lanes * (2 if match["fused"] else 1), 0)


def read_disassembly(lines: Iterable[str], count: Callable[[str, str], Any] = operations_of) -> dict[int, Any]:
    """`objdump -d` line by line -> {return address of a block's trace call: operations per execution of the block}.

    Blocks without operations are left out. `count` maps a mnemonic and operands to the instruction's operations; its
    values can be added, and that of "nop" is the zero.
    """
    found: dict[int, Any] = {}
    nothing = count("nop", "")
    for function in _functions(lines):
        jumped_to: dict[int, int] = {}  # address -> the block that jumps to it
        known = -1
        while known < len(jumped_to):  # jumps also go backward
            known = len(jumped_to)
            owned = list(_owned(function, jumped_to))
        for block, mnemonic, operands in owned:
            if (here := count(mnemonic, operands)) != nothing:
                found[block] = found.get(block, nothing) + here
    return found


def _functions(lines: Iterable[str]) -> Iterator[list[tuple[int, str, str]]]:
    """The instructions of each function: address, mnemonic, operands."""
    function: list[tuple[int, str, str]] = []
    for line in lines:
        if _LABEL.match(line):
            yield function
            function = []
        elif match := _INSTRUCTION.match(line.rstrip()):
            function.append((int(match[1], 16), match[2], match[3]))
    yield function


def _owned(function: Sequence[tuple[int, str, str]], jumped_to: dict[int, int]) -> Iterator[tuple[int, str, str]]:
    """(block, mnemonic, operands) of the instructions whose block is known; adds the targets of their jumps."""
    block: int | None = None
    traced = False  # the previous instruction was a call of TRACE, which returns to this address
    for address, mnemonic, operands in function:
        if traced:
            block, traced = address, False
        if _CALL.match(mnemonic) and TRACE in operands:
            traced = True
            continue
        block = jumped_to.get(address) if block is None else block
        if block is None:
            continue
        yield block, mnemonic, operands
        if _JUMP.match(mnemonic) and (target := _TARGET.search(operands)):
            jumped_to.setdefault(int(target[1], 16), block)
        if _LEAVES.match(mnemonic) or (_CALL.match(mnemonic) and "_abort>" in operands):
            block = None


def block_operations(library: Path, count: Callable[[str, str], Any] = operations_of) -> dict[int, Any] | None:
    """See read_disassembly; None if objdump is missing or does not support the file."""
    tool = shutil.which("objdump") or shutil.which("llvm-objdump")
    if not tool:
        return None
    command = [tool, "-d", "--no-show-raw-insn", str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        found = read_disassembly(process.stdout, count)
    return found if process.returncode == 0 else None


def total(operations: dict[int, Any], blocks: Sequence[Sequence[int]], nothing: Any = NOTHING) -> Any:
    """Total operations of the blocks, given [[return address, executions], ...]; `nothing`: the zero of their kind."""
    result = nothing
    for address, times in blocks:
        if address in operations:
            result += operations[address].times(times)
    return result
