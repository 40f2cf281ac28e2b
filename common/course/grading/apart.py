"""Parses untrusted input in a separate process with resource limits: call_apart("module:function", arguments)."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

MEMORY, FILE = 2 << 30, 1 << 29  # bytes: address space, and the largest file it may write
CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from common.course.grading.apart import main; main()"


class Refused(ValueError):
    """The function raised an error or exceeded a limit; the message says which, and of a ValueError, what it says."""


def call_apart(function: str, arguments: Sequence[object], folder: Path | None = None, seconds: int = 300) -> object:
    """Calls the function in a separate process and returns its result.

    Args:
        function: "common.course.grading.submissions:parsed".
        arguments: plain data, like the result.
        folder: for its temporary files; None: the default one.
        seconds: limit on wall-clock time and on CPU time.

    Raises:
        Refused: see its docstring. ImportError: a module is missing.
    """
    command = [sys.executable, "-I", "-c", CODE, json.dumps([os.path.abspath(one) for one in sys.path])]
    with tempfile.TemporaryDirectory(dir=folder) as temporary:  # removed whatever ends the process
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TMPDIR": temporary},
            start_new_session=True,
        )
        try:
            said, errors = process.communicate(json.dumps([function, arguments, seconds]).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Refused(f"it took more than {seconds} seconds") from None
        finally:
            with suppress(ProcessLookupError):  # and its descendants
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    try:
        answer = json.loads(said)
    except ValueError:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        late = process.returncode == -signal.SIGXCPU
        why = f"it took more than {seconds} seconds" if late else " ".join(last)
        raise Refused(why or f"its process ended with {process.returncode}") from None
    if "missing" in answer:
        raise ImportError(answer["missing"])
    if "refused" in answer:
        raise Refused(answer["refused"])
    return answer["result"]


def main() -> None:
    """The child process: reads the request and answers on stdout."""
    function, arguments, seconds = json.load(sys.stdin)
    answers = os.dup(1)
    os.dup2(2, 1)  # keep stdout for the answer alone
    for what, most in {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_FSIZE: FILE, resource.RLIMIT_CPU: seconds}.items():
        resource.setrlimit(what, (most, most + 1))
    module, name = function.split(":")
    try:
        answer = {"result": getattr(importlib.import_module(module), name)(*arguments)}
    except ImportError as error:
        answer = {"missing": str(error)}
    except MemoryError:
        answer = {"refused": f"it takes more than {MEMORY >> 20:,} MiB of memory to read"}
    except Exception as error:
        answer = {"refused": str(error) if isinstance(error, ValueError) else f"an unexpected {type(error).__name__}"}
    with os.fdopen(answers, "w") as opened:
        json.dump(answer, opened)
