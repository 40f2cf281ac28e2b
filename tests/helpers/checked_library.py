"""A shared library of .cu files in the simulator's checked build, called through ctypes."""

import ctypes
import json
import os
from pathlib import Path

OFF, CHECK, PROFILE = 0, 1, 2
CLANG = "clang" in os.environ.get("CXX", "")
WHY_NOT_CLANG = "the checked build is made for g++; common/simulator/README.md tells what differs"


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
