"""A shared library of .cu files in the simulator's checked build, called through ctypes."""

import ctypes
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common.simulator import rewriter
from common.simulator.targets import target_for_program

ROOT = Path(__file__).resolve().parents[2]
OFF, CHECK, PROFILE = 0, 1, 2
CLANG = "clang" in os.environ.get("CXX", "")
WHY_NOT_CLANG = "the checked build is made for g++; common/simulator/README.md tells what differs"


def compile_checked(sources: list[Path], folder: Path, processes: int = 2) -> Path:
    """The library's path; fails when the compiler says anything at all. The runtime is not instrumented."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CXX", "c++")
    common = ["-DCUDA_SIMULATOR", "-DSIMULATOR_CHECKED", "-fPIC"]
    includes = [f"-I{place}" for place in (folder, ROOT, rewriter.INCLUDE_DIR)]
    jobs = []
    for source in sources:
        target = target_for_program([source.read_text()])
        file = rewriter.translate(source, folder / target.name, [ROOT], target).path
        jobs.append((file, [*rewriter.CXX_FLAGS, *rewriter.CHECKED_FLAGS, *target.flags, f"-I{folder / target.name}"]))
    jobs += [(source, rewriter.RUNTIME_FLAGS) for source in rewriter.RUNTIME_SOURCES]

    def compile_one(job: tuple[Path, list[str]]) -> Path:
        file, flags = job
        result = folder / f"{file.name}.o"
        command = [compiler, *flags, *common, *includes, "-c", file, "-o", result]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return result

    with ThreadPoolExecutor(processes) as pool:
        objects = list(pool.map(compile_one, jobs))
    library = folder / "checked.so"
    subprocess.run([compiler, "-shared", "-pthread", *objects, "-o", library, "-ldl"], check=True)
    return library


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
