"""The functions of CUDA's math library, device headers, and runtime API, and which of them the simulator has.

    python -m common.simulator.api_names --headers FOLDER    api.md and the README's count from a toolkit's headers
    python -m common.simulator.api_names                     the same from the names that api.md already lists

`api.md` lists the names by section and state, after their signatures. `states()` compiles one call of each with the
documented types: functions that do not compile are either refused by refused.py or missing. Only `--headers` needs a
toolkit.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common.simulator.refused import refused_names
from common.simulator.rewriter import INCLUDE_DIR

HERE = Path(__file__).resolve().parent
TABLE, README = HERE / "api.md", HERE / "README.md"
MARK = re.compile(r"(?<=<!-- API -->\n).*?(?=<!-- END API -->)", re.DOTALL)
STATES = ("has", "refused", "lacks")
_SECTIONS = {  # \ingroup in a function's comment -> section
    "MATH_SINGLE": "float",
    "MATH_DOUBLE": "double",
    "MATH_INT": "integers",
    "MATH_QUAD": "__float128",
    "MATH_INTRINSIC_SINGLE": "float intrinsics",
    "MATH_INTRINSIC_DOUBLE": "double intrinsics",
    "MATH_INTRINSIC_INT": "integer intrinsics",
    "MATH_INTRINSIC_CAST": "conversions",
    "MATH_INTRINSIC_SIMD": "SIMD in a word",
    "MATH__HALF": "half",
    "MATH__BFLOAT16": "bfloat16",
    "MATH_FP8": "fp8",
    "MATH_FP6": "fp6 and fp4",
    "MATH_FP4": "fp6 and fp4",
}
_DOCUMENTED = (
    "crt/math_functions.h", "crt/device_functions.h", "crt/device_double_functions.h", "crt/device_fp128_functions.h",
    "sm_20_intrinsics.h", "sm_30_intrinsics.h", "sm_61_intrinsics.h",
    "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h",
)  # fmt: skip
_DEVICE = (
    "crt/device_functions.h", "sm_20_intrinsics.h", "sm_30_intrinsics.h", "sm_32_intrinsics.h", "crt/sm_80_rt.h",
    "device_atomic_functions.h", "sm_20_atomic_functions.h", "sm_32_atomic_functions.h", "sm_60_atomic_functions.h",
    "crt/sm_90_rt.h", "crt/sm_70_rt.h",
)  # fmt: skip
_NO_FUNCTIONS = re.compile(
    r"(?:__cuda|__CUDA|__NV_|operator|__nv_associate)\w*|__(?:half2?|nv_bfloat162?)(?:_raw)?|char|short|int|long|float|bool"
)
_COMMENTED = re.compile(r"/\*\*?(.*?)\*/((?:(?!/\*).)*)", re.DOTALL)  # a comment, and the code after it
_DECLARATION = re.compile(r"([\w:*&<>,\s]*?[\w*&>]\s*[\s*&])\b([A-Za-z_]\w*)\s*\(([^()]*)\)")


@dataclass(frozen=True)
class Function:
    """One declaration; `parameters` holds types only: "float*, int"."""

    section: str
    name: str
    result: str
    parameters: str


# ---- from a toolkit's headers


def listed(headers: Path) -> list[Function]:
    """The functions that the headers document, each name once per section."""
    found: dict[tuple[str, str], Function] = {}

    def add(section: str, text: str) -> None:
        match = _DECLARATION.match(text.strip())
        if not match or "\\" in text or _NO_FUNCTIONS.fullmatch(match[2]):
            return
        types = (
            [_type(one.split("=")[0]) for one in match[3].split(",")] if match[3].strip() not in ("", "void") else []
        )
        function = Function(section, match[2], _type(f"{match[1]} x"), ", ".join(types))
        found.setdefault((section, function.name), function)

    for name in _DOCUMENTED:
        text = (headers / name).read_text(errors="replace")
        for comment, code in _COMMENTED.findall(text):
            group = re.search(r"\\ingroup\s+CUDA_(\w+)", comment)
            if group:
                code = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*|//[^\n]*", "", code, flags=re.MULTILINE)
                add(_section(group[1]), code)
    known = {name for _, name in found}
    for name in _DEVICE:
        text = _bare((headers / name).read_text(errors="replace"))
        for one in re.findall(r"__\w+_DECL__\s+[^;{}()]*\([^()]*\)", text):
            match = re.search(r"(\w+)\s*\([^()]*\)$", one)
            if match and match[1] not in known and not match[1].startswith("__nv_"):
                add("device: atomics, warps, memory", one)
    for name in ("cuda_runtime_api.h", "cuda_runtime.h"):
        text = (headers / name).read_text(errors="replace")
        section = "runtime: HIGHLEVEL"
        for comment, code in _COMMENTED.findall(text):
            group = re.search(r"\\(?:defgroup|addtogroup)\s+CUDART_(\w+)", comment)
            section = f"runtime: {group[1]}" if group else section
            for one in re.findall(r"[^;{}()]*\b(?:cuda[A-Z]\w*)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)", _bare(code)):
                flat = re.sub(r"__dv\s*\([^()]*\)|=\s*[\w:]+(?:\(\))?|\btemplate\s*<[^>]*>", "", one).strip()
                if "cudaError_t" in flat or flat.startswith(("extern", "static", "inline")):
                    match = re.search(r"(cuda[A-Z]\w*)\s*\(", flat)
                    if match and not any(key[1] == match[1] for key in found):
                        add(section.lower().replace("_deprecated", "").replace("_", " "), flat)
    return list(found.values())


def _section(group: str) -> str:
    group = re.sub("INTRINSIC_(?=FP)", "", group)
    return "math: " + next(_SECTIONS[key] for key in sorted(_SECTIONS, key=len, reverse=True) if group.startswith(key))


def _bare(text: str) -> str:
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL), flags=re.M)


def _type(text: str) -> str:
    """A parameter's type without its name: "const float *const x" -> "const float*"."""
    text = text.replace("__RETURN_TYPE", "int")
    text = re.sub(
        r"\b(?:extern|static|inline|struct|enum|CUDARTAPI|CUDART_DEVICE|__CUDA_DEPRECATED|__\w*CRT\w*|__cdecl|__\w+(?:__|_DECL))\b",
        " ",
        text,
    )
    text, arrays = re.subn(r"\[\w*\]", "", text)
    words = re.sub(r"([*&])(?:\s*const\b)?", r"\1 ", text).split()
    basic = {"const", "unsigned", "signed", "long", "short", "int", "char", "float", "double", "void", "bool"}
    if len(words) > 1 and not words[-1].endswith(("*", "&")) and words[-1] not in basic and words[:-1] != ["const"]:
        words.pop()
    if words[0] == "const" and not any(word.endswith(("*", "&")) for word in words):
        words = words[1:]
    return re.sub(r"\s+([*&])", r"\1", " ".join(words)) + "*" * arrays


# ---- the state of each function


def read_names() -> list[Function]:
    """The functions that api.md lists."""
    rows = re.findall(r"^\| (\w+: [^|]*) \| [^|]* \| (.*) \|$", TABLE.read_text(), re.MULTILINE)
    return [
        Function(section, name, result, parameters)
        for section, cell in rows
        for result, parameters, names in re.findall(r"`([^`(]+)\(([^`]*)\)`:((?: `\w+`)+)", cell)
        for name in re.findall(r"\w+", names)
    ]


def refusal(name: str) -> str | None:
    """Why the simulator refuses code that calls the function; None if it does not."""
    found = refused_names(f"{name}(")
    return found[0][1] if found else None


def states(functions: list[Function]) -> dict[Function, str]:
    """Each function's state, "has", "refused" or "lacks", found by compiling one call with its documented types."""
    lines = ["template <typename T> T& a();", "using T = void (*)();", "using UnaryFunction = size_t (*)(int);"]
    for number, one in enumerate(functions):
        if "..." in one.parameters:
            lines.append(f'#line {number + 1} "api"\nnamespace declared {{ using ::{one.name}; }}')
            continue
        arguments = ", ".join(f"a<{kind}>()" for kind in one.parameters.split(", ") if kind)
        lines.append(
            f'#line {number + 1} "api"\n'
            f"void call_{number}() {{ (void)static_cast<{one.result}>({one.name}({arguments})); }}"
        )
    headers = (
        "simulator/nvcc_names.h cuComplex.h cuda_fp16.h cuda_bf16.h cuda_fp8.h cooperative_groups.h cuda_pipeline.h"
    )
    text = "".join(f"#include <{one}>\n" for one in headers.split()) + "\n".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "calls.cpp"
        source.write_text(text)
        flags = ["-std=c++20", "-w", "-fsyntax-only", "-fmax-errors=0"]
        command = [os.environ.get("CXX", "g++"), *flags, f"-I{INCLUDE_DIR}", str(source)]
        in_english = {**os.environ, "LC_ALL": "C"}
        said = subprocess.run(command, capture_output=True, text=True, env=in_english).stderr
    elsewhere = [line for line in said.splitlines() if re.search(r"\berror: ", line) and not line.startswith("api:")]
    if elsewhere:
        raise RuntimeError("the simulator's headers do not compile: " + elsewhere[0])
    failed = {int(number) for number in re.findall(r"^api:(\d+):\d+: error: ", said, re.MULTILINE)}
    return {
        one: "refused" if refusal(one.name) else "lacks" if number in failed else "has"
        for number, one in enumerate(functions, 1)
    }


def table(found: dict[Function, str]) -> str:
    """The text of api.md: each name after its signature, in the row of its section and state."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for one, state in found.items():
        if state == "refused":
            state = f"refused: {refusal(one.name)}".replace("<", "&lt;")
        signatures, signature = rows.setdefault((one.section, state), {}), f"`{one.result}({one.parameters})`:"
        signatures[signature] = signatures.get(signature, "") + f" `{one.name}`"
    lines = [
        "# The functions of CUDA 13.0 in the simulator", "",
        "Written by `python -m common.simulator.api_names`. has: a call with the types that the headers declare "
        "compiles; refused: the simulator refuses it in words; lacks: neither.", "",
        "| of | state | functions |", "|---|---|---|",
    ]  # fmt: skip
    for (section, state), signatures in rows.items():
        lines.append(f"| {section} | {state} | {'<br>'.join(map(''.join, signatures.items()))} |")
    return "\n".join(lines) + "\n"


def summary(found: dict[Function, str]) -> str:
    """The README's table: the number of functions of each kind in each state."""
    lines = ["| functions | " + " | ".join(STATES) + " |", "|---|---|---|---|"]
    for kind in dict.fromkeys(one.section.split(":")[0] for one in found):
        of = [state for one, state in found.items() if one.section.startswith(kind)]
        lines.append(f"| {kind} | " + " | ".join(str(of.count(state)) for state in STATES) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m common.simulator.api_names", description=__doc__.splitlines()[0])
    parser.add_argument("--headers", metavar="FOLDER", type=Path, help="a toolkit's include folder")
    options = parser.parse_args()
    found = states(listed(options.headers) if options.headers else read_names())
    TABLE.write_text(table(found))
    README.write_text(MARK.sub(lambda _: summary(found), README.read_text()))
    print(summary(found), end="")


if __name__ == "__main__":
    main()
