"""Compilers end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from endings import assert_ends_with, wait_until

from common.compiling.locking import MARK, ends_with_us

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
SCRIPT = """
import os, signal, subprocess
signal.signal(signal.SIGINT, signal.default_int_handler)
from common.compiling.locking import ends_with_us
with ends_with_us(), ends_with_us():  # as the build of a library needs that of the runtime
    child = subprocess.Popen(["sleep", "1000"], preexec_fn=os.setpgrp)  # as ninja starts its compilers
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_it_started_ends_with_a_process_that_is_ended(root: Path, by: int) -> None:
    assert_ends_with(SCRIPT, by, root, states="ZX")


def test_what_ends_by_itself_is_left_alone_and_the_environment_is_as_it_was() -> None:
    with ends_with_us():
        child = subprocess.Popen(["sleep", "1000"])
        assert MARK in os.environ
    with pytest.raises(ValueError), ends_with_us():
        raise ValueError
    assert MARK not in os.environ and child.poll() is None
    child.kill()
    child.wait()


def of_build(folder: Path) -> list[str]:
    """Names of the processes that build in this folder."""
    mark, found = f"ATTENTION_BUILD_DIR={folder}".encode(), []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "comm").read_text().strip())
        except OSError:
            pass
    return found


def test_a_killed_compile_leaves_no_compiler_behind(root: Path, tmp_path: Path) -> None:
    """`taskN.compile` in a fresh folder: the compiler builds the simulator's runtime first, which takes seconds."""
    environment = {**os.environ, "ATTENTION_BUILD_DIR": str(tmp_path), "ATTENTION_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "task3.compile", "--backend", "simulator", "--solution"]
    ours = subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: "cc1plus" in of_build(tmp_path), "no compiler was started")
    ours.kill()
    ours.wait()
    wait_until(lambda: not of_build(tmp_path), f"left behind: {of_build(tmp_path)}")


@pytest.mark.slow
def test_a_killed_build_leaves_no_ninja_behind(root: Path, tmp_path: Path) -> None:
    """With torch's load() and a source that takes the compiler forever."""
    (tmp_path / "slow.cpp").write_text(
        "template <int N, int M> struct T { static constexpr long v = T<N - 1, M>::v + T<N - 1, M + 1>::v; };\n"
        "template <int M> struct T<0, M> { static constexpr long v = M; };\nlong never = T<800, 0>::v;\n"
    )
    code = f"""
        import os
        from common.compiling import toolchain
        from common.compiling.locking import locked
        from pathlib import Path
        from torch.utils.cpp_extension import load
        toolchain.find_ninja()
        with locked(Path({str(tmp_path)!r})):
            load("slow", [{str(tmp_path / "slow.cpp")!r}], build_directory={str(tmp_path)!r}, is_python_module=False,
                 extra_cflags=["-ftemplate-depth=2000"])
    """
    environment = {**os.environ, "ATTENTION_BUILD_DIR": str(tmp_path), "ATTENTION_CACHE_DIR": str(tmp_path / "cache")}
    ours = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=root, env=environment)
    wait_until(lambda: {"ninja", "cc1plus"} <= set(of_build(tmp_path)), "no compiler was started")
    ours.kill()
    ours.wait()
    wait_until(lambda: not of_build(tmp_path), f"left behind: {of_build(tmp_path)}")
