"""The simulator's runtime: compiled once, and again if what lies there is not what was compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.compiling.result import BuildError
from common.compiling.runtime import simulator_runtime

COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo "g++ 12" && exit 0
echo run >> {folder}/runs
[ -e {folder}/broken ] && echo "no such flag" >&2 && exit 1
while [ "$1" != -o ]; do shift; done
echo object > "$2"
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stub of a compiler writes a line into at each run."""
    (tmp_path / "g++").write_text(COMPILER.format(folder=tmp_path))
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(tmp_path / "build"))
    return tmp_path / "runs"


@pytest.mark.parametrize("left", [b"", b"obj"])
def test_a_damaged_one_is_built_anew_and_said(runs: Path, capsys: pytest.CaptureFixture, left: bytes) -> None:
    runtime = simulator_runtime(False)
    assert simulator_runtime(False) == runtime and runs.read_text() == "run\n" and not capsys.readouterr().err
    runtime.write_bytes(left)
    assert simulator_runtime(False).read_text() == "object\n" and runs.read_text() == "run\nrun\n"
    assert f"{runtime.name} is not as the last build left it: built anew" in capsys.readouterr().err.replace("\n", "")
    runtime.unlink()
    assert simulator_runtime(False).read_text() == "object\n"


def test_one_that_does_not_compile_leaves_nothing(runs: Path) -> None:
    runs.with_name("broken").touch()
    with pytest.raises(BuildError, match=r"the simulator's runtime does not compile:\nno such flag"):
        simulator_runtime(False)
    runs.with_name("broken").unlink()
    assert simulator_runtime(False).read_text() == "object\n"
