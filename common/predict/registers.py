"""Estimates registers per thread without nvcc, from a kernel's local arrays: estimated_registers(text, "gemm_kernel").

The estimate is that of task 4's plan for its tiles: local arrays are live at the same time, and everything else takes
about the same in every kernel.
"""

from __future__ import annotations

import math
import re

BASE = 30  # addresses, indices, temporaries
UNIT = 8  # the hardware allocates registers in multiples of this
MOST = 255
UNKNOWN = 8  # assumed for an unknown extent
_WORDS = {"double": 2, "float4": 4, "float2": 2, "int4": 4, "half": 0.5, "__half": 0.5, "__nv_bfloat16": 0.5}
_ARRAY = re.compile(
    r"^[ \t]*(?!.*__shared__)(?:const )?"
    r"(float4?|float2|double|int4?|unsigned|uint32_t|half2?|__half|__nv_bfloat16) \w+((?:\[[^\]]+\])+)",
    re.MULTILINE,
)
_CONSTANT = re.compile(r"constexpr (?:int|unsigned|size_t) (\w+) = ([^;,]+)")


def estimated_registers(text: str, kernel: str) -> int:
    """Registers per thread: a multiple of 8, at least 32.

    Args:
        text: text of the kernel's file.
        kernel: its name, with or without template arguments.
    """
    name = re.escape(kernel.split("<")[0].split("::")[-1])
    start = re.search(rf"__global__[^;{{]*\b{name}\s*\(", text)
    body = re.split(r"\n}|__global__", text[start.end() :], maxsplit=1)[0] if start else ""
    constants: dict[str, int] = {}
    for constant, value in _CONSTANT.findall(text):
        constants[constant] = _value(value, constants)
    words = 0.0
    for kind, extents in _ARRAY.findall(body):
        size = math.prod(_value(each, constants) for each in re.findall(r"\[([^\]]+)\]", extents))
        if size <= MOST:  # a larger array is in local memory
            words += _WORDS.get(kind, 1) * size
    return min(MOST, -(-int(BASE + words) // UNIT) * UNIT)


def _value(expression: str, constants: dict[str, int]) -> int:
    """Evaluates an expression of numbers, known names and + - * / ( )."""
    known = re.sub(r"[A-Za-z_]\w*", lambda name: str(constants.get(name[0], "?")), expression)
    try:
        return int(eval(known.replace("/", "//"))) if re.fullmatch(r"[\d+\-*/() ]+", known) else UNKNOWN
    except (SyntaxError, ZeroDivisionError):
        return UNKNOWN
