"""Measures how long a student waits for a verdict in the simulator, for `python -m common.benchmark verdict`.

Everything runs in a copy of the checkout, with the solution in its gaps and a separate object cache:

    fresh        the first passing test, nothing compiled yet
    unchanged    the same test again
    edit         after an edit of the .cu that does not change the output
    failing      after one that does, including the automatic run of the checked build
    watch        from saving such an edit to the first verdict of `course watch`

Reports wall-clock seconds and the CPU seconds of all processes, which do not depend on other load.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common.compiling import manifest as manifests
from common.compiling.manifest import Manifest, read_manifest
from common.compiling.objects import cache_root
from common.console.paths import ROOT

STEPS = ("fresh", "unchanged", "edit", "failing", "watch")
LEFT_OUT = ("build", ".git", "*.pyc", "__pycache__", ".venv", "venv", "pictures", "*.egg-info")
TESTED = re.compile(r"\d+ of \d+ cases? pass")  # the last line of `course watch`
VERDICT = re.compile(r"  (?:FAIL|error)\b")  # the first output for a failing case
PATIENCE = 600  # seconds to wait for a verdict
Seconds = tuple[float, float | None]  # wall, CPU


class VerdictError(RuntimeError):
    """A step had an unexpected result; the message has its output."""


def verdict_table() -> Table:
    """An empty table for measure_verdicts to fill."""
    title = f"seconds to a verdict, wall (CPU), simulator, {os.cpu_count()} cores"
    table = Table(title=title, title_justify="left")
    table.add_column("task")
    for step in STEPS:
        table.add_column(step, justify="right")
    return table


def measure_verdicts(table: Table, tasks: Sequence[str], fresh: bool, console: Console) -> None:
    """Adds a row per task to the table as soon as it is measured.

    Args:
        table: from verdict_table().
        tasks: "task1", ...
        fresh: whether each task starts with an empty cache; otherwise it uses this machine's, and the column `fresh` is
            the first test in a new checkout.

    Raises:
        VerdictError: a passing test fails, or a failing one passes; the table keeps the rows before it.
    """
    for task in tasks:
        with console.status(f"{task} ..."), tempfile.TemporaryDirectory() as scratch:
            found = dict(_of_task(task, Path(scratch), fresh))
        table.add_row(task, *(_shown(*found[step]) for step in STEPS))


def _of_task(task: str, scratch: Path, fresh: bool) -> Iterator[tuple[str, Seconds]]:
    checkout = scratch / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for folder in manifests.tasks():  # a task calls earlier ones
        for name in read_manifest(folder).with_gaps:
            shutil.copy(ROOT / folder / "solution" / name, checkout / folder / name)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "ATTENTION_BUILD_DIR": str(checkout / "build")}
    environment["ATTENTION_CACHE_DIR"] = str(scratch / "cache" if fresh else cache_root())
    command = [sys.executable, "-m", f"{task}.test", "--backend", "simulator"]

    def test(status: int) -> Seconds:
        return _timed(lambda: _run(command, checkout, environment, status))

    yield "fresh", test(0)
    yield "unchanged", test(0)
    source = checkout / task / _kernel(read_manifest(task))
    right = source.read_text()
    mark = f"edited_{time.time_ns()}"  # not in any cache
    source.write_text(f"{right}\n__device__ int {mark};\n")
    yield "edit", test(0)
    source.write_text(_wrong(right, f"{mark}_wrong"))
    yield "failing", test(1)
    source.write_text(right)
    with _watching(task, checkout, environment) as said:
        said(TESTED)
        start = time.perf_counter()
        source.write_text(_wrong(right, f"{mark}_watched"))
        said(VERDICT)
        yield "watch", (time.perf_counter() - start, None)


def _shown(wall: float, cpu: float | None) -> str:
    return f"{wall:.1f}" if cpu is None else f"{wall:.1f} ({cpu:.1f})"


def _kernel(manifest: Manifest) -> str:
    """The last .cu file of a task; of several that include headers, it is the one with the most."""
    return [name for name in manifest.files if name.endswith(".cu")][-1]


def _wrong(text: str, mark: str) -> str:
    """The source with a mistake: the sign of the first sum is flipped."""
    for found in re.finditer(r" \+= ([^;\n]+);", text):
        if found[1].count("(") == found[1].count(")"):  # otherwise it is a loop's step
            return f"{text[: found.start()]} -= {found[1]};{text[found.end() :]}__device__ int {mark};\n"
    raise VerdictError("the source has no sum to get wrong")


def _run(command: Sequence[str], folder: Path, environment: dict[str, str], status: int) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != status:
        raise VerdictError(
            f"{' '.join(command)} ended with {done.returncode}, not {status}:\n{done.stdout}{done.stderr}"
        )


def _timed(run: Callable[[], None]) -> Seconds:
    start = time.perf_counter(), _cpu()
    run()
    return time.perf_counter() - start[0], _cpu() - start[1]


def _cpu() -> float:
    """CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def _watching(task: str, folder: Path, environment: dict[str, str]) -> Iterator[Callable[[re.Pattern], None]]:
    """Runs `course watch`; yields a function that waits for new output that matches a pattern."""
    command = [sys.executable, "-u", "-m", "common.course", "watch", task, "--backend", "simulator"]
    with (
        tempfile.NamedTemporaryFile("w+") as output,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        read = 0

        def said(pattern: re.Pattern) -> None:
            nonlocal read
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end and process.poll() is None:
                if found := pattern.search(Path(output.name).read_text()[read:]):
                    read += found.end()
                    return
                time.sleep(0.02)
            raise VerdictError(f"`course watch {task}` gave no verdict:\n{Path(output.name).read_text()}")

        try:
            yield said
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # a background job ignores SIGINT
