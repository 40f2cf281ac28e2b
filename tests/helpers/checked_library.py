"""A shared library of .cu files in the simulator's checked build, called through ctypes."""

import ctypes
import json
import os
from pathlib import Path

from common.compiling.objects import compile_objects, link
from common.compiling.runtime import runtime_jobs
from common.simulator import rewriter
from common.simulator.targets import target_for_program

ROOT = Path(__file__).resolve().parents[2]
OFF, CHECK, PROFILE = 0, 1, 2
CLANG = "clang" in os.environ.get("CXX", "")
WHY_NOT_CLANG = "the checked build is made for g++; common/simulator/README.md tells what differs"


def compile_checked(sources: list[Path], folder: Path) -> Path:
    """The library's path; fails when the compiler says anything at all. The runtime is not instrumented."""
    jobs = []
    for source in sources:
        target = target_for_program([source.read_text()])
        file = rewriter.translate(source, folder / target.name, [ROOT], target).path
        flags = [*rewriter.CXX_FLAGS, *rewriter.CHECKED_FLAGS, *target.flags, "-DCUDA_SIMULATOR", "-fPIC"]
        jobs.append((file, [*flags, *(f"-I{place}" for place in (folder / target.name, ROOT, rewriter.INCLUDE_DIR))]))
    objects = compile_objects([*jobs, *runtime_jobs(checked=True)])
    assert not any(one.log for one in objects), "\n".join(one.log for one in objects)
    link(objects, ["-shared", "-pthread", "-ldl"], folder / "checked.so")
    return folder / "checked.so"


class CheckedLibrary:
    """run(name, mode): calls the EXPORTed function `name` -> (its error text or None, the report)."""

    def __init__(self, path: Path):
        self.path, self.functions = path, ctypes.CDLL(str(path))
        self.functions.simulator_check_report.restype = ctypes.c_char_p

    def run(self, name: str, mode: int) -> tuple[str | None, dict]:
        function = getattr(self.functions, name)
        function.restype = ctypes.c_char_p
        self.functions.simulator_check_begin(mode)
        message = function()
        report = json.loads(self.functions.simulator_check_report())
        self.functions.simulator_check_begin(OFF)
        return (None if message is None else message.decode()), report


def totals(kernel: dict) -> dict[str, tuple[int, int]]:
    """Of one kernel of a profile: {"shared read": (requests, transactions), ...}."""
    result: dict[str, tuple[int, int]] = {}
    for site in kernel["sites"]:
        what = f"{site['space']} {site['action']}"
        requests, transactions = result.get(what, (0, 0))
        result[what] = requests + site["requests"], transactions + site["transactions"]
    return result
