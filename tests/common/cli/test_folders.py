"""Unreadable files, read-only folders, a full disk: each gives a one-sentence message, and nothing is lost.

Bubblewrap mounts such files and folders over the checkout's own for one command.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.compiling.objects import cache_root
from common.console.paths import ROOT
from common.course.grading.sandbox import why_no_bubblewrap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_bubblewrap()), reason=f"no bubblewrap here: {why_no_bubblewrap()}"),
]
KERNELS = ROOT / "task3" / "online_softmax.cu"
FILLED = ROOT / "task3" / "solution" / "online_softmax.cu"


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """An empty build folder; objects come from the cache shared by all tests."""
    folder = tmp_path / "build"
    (folder / "simulator").mkdir(parents=True)
    return folder


def course(build: Path, *command: str, mounts: tuple = (), cache: Path | None = None) -> subprocess.CompletedProcess:
    """Runs a course command with these mounts, without root's permission to read and write everything."""
    box = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--cap-drop", "ALL", *map(str, mounts)]
    box += ["--setenv", "ATTENTION_BUILD_DIR", str(build), "--chdir", str(ROOT)]
    box += ["--setenv", "ATTENTION_CACHE_DIR", str(cache or cache_root())]
    done = subprocess.run([*box, sys.executable, "-m", *command], capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def said(done: subprocess.CompletedProcess) -> str:
    return " ".join(done.stdout.split())


def test_where_not_even_the_sources_have_room(build: Path) -> None:
    done = course(build, "task3.compile", "--backend", "simulator", mounts=("--size", 4096, "--tmpfs", build))
    assert done.returncode == 2 and f"{build}/simulator/" in done.stdout
    assert "No space left on device task3: not built" in said(done)


def test_a_disk_that_the_compiler_fills(build: Path) -> None:
    mounts = ("--size", 150_000, "--tmpfs", build)
    command = ("task3.compile", "--backend", "simulator", "--solution")
    done = course(build, *command, mounts=mounts, cache=build / "cache")
    assert done.returncode == 1
    assert f"The disk with {build}/simulator/solution/task3 is full: 0." in done.stdout
    assert "g++" not in done.stdout and "Make room and run the same command again. task3: not built" in said(done)


@pytest.mark.parametrize("command", ["compile", "test"])
def test_a_build_folder_that_cannot_be_written(build: Path, command: str) -> None:
    done = course(build, f"task3.{command}", "--backend", "simulator", mounts=("--ro-bind", build, build))
    assert done.returncode == 2 and f"{build}/simulator/" in done.stdout and "Read-only file system" in done.stdout


@pytest.mark.parametrize("command", ["compile", "test"])
def test_a_source_that_cannot_be_read(build: Path, tmp_path: Path, command: str) -> None:
    closed = tmp_path / "closed.cu"
    closed.write_text("")
    closed.chmod(0)
    done = course(build, f"task3.{command}", "--backend", "simulator", mounts=("--bind", closed, KERNELS))
    assert done.returncode == 2 and "task3/online_softmax.cu: Permission denied" in done.stdout


def test_a_source_in_another_encoding(build: Path, tmp_path: Path) -> None:
    (tmp_path / "x.cu").write_bytes(b"// first\n// gr\xf6\xdfer\n")
    mounts = ("--bind", tmp_path / "x.cu", KERNELS)
    done = course(build, "task3.compile", "--backend", "simulator", mounts=mounts)
    assert done.returncode == 1 and "task3/online_softmax.cu:2: byte 0xf6 is not UTF-8" in done.stdout


def test_a_byte_order_mark_is_no_error_and_a_damaged_build_heals(build: Path, tmp_path: Path) -> None:
    (tmp_path / "x.cu").write_bytes(b"\xef\xbb\xbf" + FILLED.read_bytes())
    command = ("task3.compile", "--backend", "simulator")
    mounts = ("--bind", tmp_path / "x.cu", KERNELS)
    done = course(build, *command, mounts=mounts)
    assert done.returncode == 0 and "task3: built" in done.stdout and "warning" not in done.stdout
    [library] = (build / "simulator" / "student" / "task3").glob("*.so")
    library.write_bytes(b"\xff\xfe garbage")
    done = course(build, *command, mounts=mounts)
    assert done.returncode == 0 and "task3: built" in done.stdout
    assert "student/task3/task3_student_simulator.so is not as the last build left it: rebuilt" in done.stderr
