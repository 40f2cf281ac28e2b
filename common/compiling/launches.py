"""Finds launches whose errors are not checked: unchecked_launches(sources).

A launch that the GPU rejects (too many threads, too much shared memory) silently does nothing until cudaGetLastError(),
which CUDA_CHECK_LAUNCH() calls, returns the error. While no launch fails, a missing check goes unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.compiling.gaps import Function, functions_of
from common.console.paths import shown_path

_ASKED = re.compile(r"\b(?:CUDA_CHECK_LAUNCH|cudaGetLastError|cudaPeekAtLastError)\b")


def unchecked_launches(sources: Iterable[Path]) -> list[str]:
    """A sentence for each function whose last launch is not followed by a check, neither there nor in a caller."""
    says = []
    for source in sources:
        functions = functions_of(source.read_text(), source)
        for one in functions:
            launch = one.body.rfind("<<<")
            if launch < 0 or _ASKED.search(one.body, launch) or _asked_by_callers(one.name, functions, set()):
                continue
            line = one.line + one.body.count("\n", 0, launch)
            says.append(
                f"{shown_path(source)}:{line}: warning: no CUDA_CHECK_LAUNCH() follows this launch in {one.name}(): "
                "if the GPU refuses it, nothing runs and no error is reported"
            )
    return says


def _asked_by_callers(name: str, functions: Sequence[Function], seen: set[str]) -> bool:
    """Whether a function checks for errors after it calls this one, directly or through others."""
    if name in seen:
        return False
    seen.add(name)
    for caller in functions:
        called = re.search(rf"\b{name}\b", caller.body)
        if called and (_ASKED.search(caller.body, called.end()) or _asked_by_callers(caller.name, functions, seen)):
            return True
    return False
