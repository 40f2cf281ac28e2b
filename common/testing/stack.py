"""Makes the call stack in the simulator's messages readable: readable(lines)."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FRAME = re.compile(r"^(?P<at>\s+at \S*:)(?P<line>\d+|\?)(?: \(discriminator \d+\))? in (?P<function>.+)$")
_OF_THE_SIMULATOR = re.compile(r"lambda|simulator::|simulator_switch|::_FUN\b|^_start|^clone")


def readable(lines: Iterable[str]) -> list[str]:
    """Removes frames of the simulator and of libraries, and reduces signatures to function names."""
    kept = []
    for line in lines:
        frame = _FRAME.match(line)
        if not frame:
            kept.append(line)
        elif frame["line"] != "?" and "at /usr/" not in line and not _OF_THE_SIMULATOR.search(frame["function"]):
            kept.append(f"{frame['at']}{frame['line']} in {_name(frame['function'])}")
    return kept


def _name(signature: str) -> str:
    """ "void scores_kernel<float>(float const*, long)" -> "scores_kernel<float>"."""
    signature = signature.replace("(anonymous namespace)::", "")
    depth, end = 0, len(signature)
    for place, char in enumerate(signature):
        if char == "(" and depth == 0:
            end = place
            break
        depth += {"<": 1, ">": -1}.get(char, 0)
    depth = 0
    for place in range(end - 1, -1, -1):
        depth += {">": 1, "<": -1}.get(signature[place], 0)
        if signature[place] == " " and depth == 0:
            return signature[place + 1 : end]
    return signature[:end]
