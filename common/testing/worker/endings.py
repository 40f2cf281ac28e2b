"""Messages for a process that ended while running student code."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from common.console.paths import ROOT
from common.testing.stack import readable

CRASH = "host code failed"  # how the simulator's crash message starts
MOST_LINES = 3
_MEANING = {
    signal.SIGSEGV: "memory that does not exist was read or written: an index or a pointer is far outside its array",
    signal.SIGBUS: "memory that does not exist was read or written",
    signal.SIGABRT: "the C library or the C++ runtime aborted",
    signal.SIGFPE: "an integer was divided by zero",
    signal.SIGILL: "the processor hit an illegal instruction",
    signal.SIGKILL: "something killed it, as happens when memory runs out, or it closed its connection to the test",
    signal.SIGTERM: "something asked it to end",
    signal.SIGSYS: "it asked the system for what graded code may not have: files, processes, threads, the network",
}
_SAID = {  # glibc's message -> its meaning
    "malloc(": "it found the heap damaged: something was written outside an array",
    "free(": "it found the heap damaged: something was written outside an array",
    "corrupted": "it found the heap damaged: something was written outside an array",
    "stack smashing": "something was written past the end of a local array",
    "terminate called": "an exception was thrown and not caught",
}


def lines_at_the_end(printed: str) -> list[str]:
    """Where a call that takes too long was in a student's Python, innermost first, from faulthandler's traceback."""
    found = [
        f"{Path(file).name}:{line} ({function})"
        for file, line, function in re.findall(r'File "(.+)", line (\d+) in (\w+)', printed)
        if re.fullmatch(r"task\d/(solution/)?\w+\.py", file.removeprefix(f"{ROOT}/"))
    ]
    return [f"Its Python was then at {', called from '.join(found)}."] if found else []


def words_of(status: int, printed: str = "", when: str = "while it ran your code") -> list[str]:
    """The message about a process that ended.

    Args:
        status: its wait status, see os.waitpid.
        printed: its stderr.
        when: the phase in which it ended.
    """
    if os.WIFEXITED(status):
        return [f"The process ended {when}, by exit({os.WEXITSTATUS(status)}) or the like, before it had an answer."]
    number = os.WTERMSIG(status)
    name = signal.strsignal(number) or f"signal {number}"
    lines = readable([line for line in printed.replace(f"{Path.cwd()}/", "").splitlines() if line.strip()])
    crash = next((number for number, line in enumerate(lines) if line.startswith(CRASH)), None)
    last = lines[-MOST_LINES:] if crash is None else [line.strip() for line in lines[crash + 1 :][:MOST_LINES]]
    meaning = next((says for part, says in _SAID.items() if any(part in line for line in last)), "")
    meaning = meaning or _MEANING.get(number, "")
    sentence = f"The process died {when}: {name}" + (f": {meaning}." if meaning else ".")
    return [sentence, *(f"    {line}" for line in last)]
