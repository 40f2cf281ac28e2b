"""A shared library of .cu files in the simulator's checked build, called through ctypes."""

import ctypes
import os
from pathlib import Path

from common.inspect import checked_library

CHECK, PROFILE = checked_library.CHECK, checked_library.PROFILE
CLANG = "clang" in os.environ.get("CXX", "")
WHY_NOT_CLANG = "the checked build is made for g++; common/simulator/README.md tells what differs"


class CheckedLibrary(checked_library.CheckedLibrary):
    """run(name, mode) calls the EXPORTed function `name` and returns (its error text or None, the report)."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path, self.functions = path, ctypes.CDLL(str(path))

    def run(self, name: str, mode: int, *arguments) -> tuple[str | None, dict]:
        function = getattr(self.functions, name)
        function.restype = ctypes.c_char_p
        self.begin(mode)
        message = function(*arguments)
        report = self.report()
        self.begin(0)
        return (None if message is None else message.decode()), report


def totals(kernel: dict) -> dict[str, tuple[int, int]]:
    """For one kernel of a profile: {"shared read": (requests, transactions), ...}."""
    result: dict[str, tuple[int, int]] = {}
    for site in kernel["sites"]:
        what = f"{site['space']} {site['action']}"
        requests, transactions = result.get(what, (0, 0))
        result[what] = requests + site["requests"], transactions + site["transactions"]
    return result
