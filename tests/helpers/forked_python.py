"""Runs `python -m ...` and `python -c ...` without importing torch each time.

    done = run_python(["-m", "task4.test", "--solution"], cwd=folder, env=environment, timeout=600)

A process that has imported torch, but nothing of this project, forks for each call. The fork sets its directory,
environment, arguments and path as a fresh interpreter would, and runs the module as `__main__`. The two seconds of CPU
time for the import are spent once instead of per command.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

# run in the fork before the command; sys.path[0] is the directory of `python -m`, PYTHONPATH follows
SERVER = """
import json, os, runpy, sys
import torch

def become(call):
    os.setsid()
    for target, name in ((1, "out"), (2, "err")):
        opened = os.open(call[name], os.O_WRONLY)
        os.dup2(opened, target)
        os.close(opened)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(call["cwd"])
    os.environ.clear()
    os.environ.update(call["env"])
    sys.path[:0] = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path.insert(0, call["cwd"])
    kind, what, *arguments = call["arguments"]
    sys.argv = [what if kind == "-m" else kind, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})

for one in ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]:  # of a call they are its own
    sys.path = [part for part in sys.path if part != one]
requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
for line in requests:
    call = json.loads(line)
    child = os.fork()
    if not child:
        requests.close(), answers.close()
        break
    answers.write(b"%d\\n" % child)
    answers.flush()
    answers.write(b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    answers.flush()
else:
    sys.exit()
become(call)
"""


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
    atexit.register(server.kill)
    return server


def run_python(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run([sys.executable, *arguments], capture_output=True, text=True, ...); one call at a time.

    Args:
        arguments: -m and a module, or -c and a program; then the program's own arguments.
        cwd: the directory to run it in.
        env: its whole environment. Variables that torch reads at import are taken from this process.
        timeout: seconds.

    Raises:
        subprocess.TimeoutExpired: the command and everything it started were killed.
    """
    command, server = [sys.executable, *arguments], _server()
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        call = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "out": out.name, "err": err.name}
        server.stdin.write(json.dumps(call).encode() + b"\n")
        server.stdin.flush()
        child = int(server.stdout.readline())
        expired = threading.Event()

        def kill() -> None:
            expired.set()
            os.killpg(child, signal.SIGKILL)

        clock = threading.Timer(timeout, kill)
        clock.start()
        status = int(server.stdout.readline())
        clock.cancel()
        said = [Path(file.name).read_text(errors="replace") for file in (out, err)]
    if expired.is_set():
        raise subprocess.TimeoutExpired(command, timeout, *said)
    return subprocess.CompletedProcess(command, status, *said)
