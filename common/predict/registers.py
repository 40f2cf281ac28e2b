"""Registers per thread without nvcc, from a kernel's local arrays: estimated_registers(text, "gemm_kernel").

As task 4's plan estimates them for its tiles: what the source keeps in arrays lives at the same time, and everything
else takes about as much in every kernel.
"""

from __future__ import annotations

import re

BASE = 30  # addresses, indices, what is under way
UNIT = 8  # the hardware allocates registers in multiples of this
MOST = 255
_WORDS = {
    "double": 2,
    "float4": 4,
    "float2": 2,
    "int4": 4,
    "half2": 1,
    "half": 0.5,
    "__half": 0.5,
    "__nv_bfloat16": 0.5,
}
_ARRAY = re.compile(
    r"^[ \t]*(?!.*__shared__)(?:const )?"
    r"(?P<type>float4?|float2|double|int4?|unsigned|uint32_t|half2?|__half|__nv_bfloat16) "
    r"\w+(?P<extents>(?:\[[^\]]+\])+)",
    re.MULTILINE,
)
_CONSTANT = re.compile(r"constexpr (?:int|unsigned|size_t) (\w+) = ([^;,]+)")


def estimated_registers(text: str, kernel: str) -> int:
    """A multiple of 8, 32 at least.

    Args:
        text: of the file that the kernel is in.
        kernel: its name, with or without template arguments.
    """
    body = _body_of(text, kernel.split("<")[0].split("::")[-1])
    constants: dict[str, int] = {}
    for name, value in _CONSTANT.findall(text):
        if (number := _value(value, constants)) is not None:
            constants[name] = number
    words = 0.0
    for match in _ARRAY.finditer(body):
        extents = [_value(each, constants) for each in re.findall(r"\[([^\]]+)\]", match["extents"])]
        size = 1
        for extent in extents:
            size *= extent if extent is not None else 8
        if size <= MOST:  # a larger one is in memory
            words += _WORDS.get(match["type"], 1) * size
    return min(MOST, -(-int(BASE + words) // UNIT) * UNIT)


def _body_of(text: str, kernel: str) -> str:
    start = re.search(rf"__global__[^;{{]*\b{re.escape(kernel)}\s*\(", text)
    if not start:
        return ""
    begin = text.find("{", start.end())
    depth = 0
    for i in range(begin, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if not depth:
            return text[begin:i]
    return text[begin:]


def _value(expression: str, constants: dict[str, int]) -> int | None:
    """Of an expression of numbers, known names and + - * / ( )."""
    known = re.sub(r"[A-Za-z_]\w*", lambda name: str(constants.get(name[0], "?")), expression)
    if not re.fullmatch(r"[\d+\-*/() ]+", known):
        return None
    try:
        return int(eval(known.replace("/", "//"), {"__builtins__": {}}))
    except (SyntaxError, ZeroDivisionError):
        return None
