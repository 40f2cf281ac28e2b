"""Which sandbox is chosen, and what the clean tree contains; tests that need a sandbox are in test_grading.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import run_python

from common.console.paths import ROOT
from common.course import __main__ as course
from common.course import grade
from common.course.grading import sandbox
from common.course.grading.clean_tree import make_base, modules_of, with_submission
from common.course.grading.sandbox import NoSandbox, choose_kind


@pytest.mark.parametrize(
    "no_bubblewrap, no_user, arguments, kind",
    [
        ("", "", {}, "bubblewrap"),
        ("no namespaces", "", {}, "user"),
        ("no namespaces", "not root", {"trusted": True}, "trusted"),
        ("", "", {"trusted": True}, "bubblewrap"),  # --trusted permits it but does not request it
        ("", "", {"wanted": "user"}, "user"),
        ("", "", {"wanted": "trusted", "trusted": True}, "trusted"),
        ("no namespaces", "not root", {}, None),
        ("no namespaces", "", {"wanted": "bubblewrap"}, None),
        ("", "not root", {"wanted": "user"}, None),
        ("", "", {"wanted": "trusted"}, None),
        ("", "not root", {"wanted": "user", "trusted": True}, None),
    ],
)
def test_the_strongest_kind_is_chosen(
    monkeypatch: pytest.MonkeyPatch, no_bubblewrap: str, no_user: str, arguments: dict, kind: str | None
) -> None:
    monkeypatch.setattr(sandbox, "why_no_bubblewrap", lambda: no_bubblewrap)
    monkeypatch.setattr(sandbox, "why_no_user", lambda: no_user)
    if kind:
        assert choose_kind(**arguments) == kind
    else:
        with pytest.raises(NoSandbox):
            choose_kind(**arguments)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("tree") / "base")


def test_the_clean_tree_holds_no_secrets(base: Path) -> None:
    names = {str(path.relative_to(base)) for path in base.rglob("*")}
    assert not [name for name in names if "solution" in Path(name).parts or Path(name).name == "hidden.py"]
    assert not [name for name in names if name.startswith("common/kernels") and name.endswith((".cu", ".cuh", ".h"))]
    assert not names & {f"common/cuda/{name}.cuh" for name in ("seen_row", "attention_states", "flash_forward", "mma")}
    assert names >= {"common/cuda/warp.cuh", "common/cuda/unroll.cuh", "task4/given/stages.cuh"}
    assert {name for name in json.loads(modules_of(base).read_text()) if name.startswith("common/course/")} == {
        f"common/course/grading/{name}.py" for name in ("build", "elf", "handle_server", "inside", "timed")
    }
    assert modules_of(base).stat().st_mode & 0o077 == 0
    assert "task2/attention_kernel.cu" not in names and "task2/given/binding.cpp" in names


def test_its_python_is_what_released_files_import(base: Path) -> None:
    """None of it computes a part's answer: to allow a further module, look at what it computes."""
    files = {str(path.relative_to(base)): path.read_text() for path in base.rglob("*.py")}
    assert not [name for name, text in files.items() if name.endswith("__init__.py") and "def " in text]
    assert {name for name in files if not name.endswith("__init__.py")} == {
        "common/console/paths.py",
        "common/course/grading/modules.py",
        "common/course/grading/system_calls.py",
        "common/course/grading/torch_handles.py",
        "common/kernels/decode/cache.py",
        "common/reference/layer.py",
        "common/reference/scale.py",
        "common/testing/python_lines.py",
        "common/testing/python_side.py",
        "task3/given/arguments.py",
        "task6/given/attention_layer.py",
    }


def test_the_cases_can_be_imported_there_and_the_oracle_cannot_be_asked(base: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from common.course.grading.modules import install; install(sys.argv[1], sys.argv[2])\n"
        "from common.course.grading.inside import assert_all_from, cases_of\n"
        "assert cases_of('task3'); assert_all_from(sys.argv[1])\n"
        "import torch; x = torch.ones(1, 1, 2, 2)\n"
        "case = [one for one in cases_of('task3') if one.part == 'algorithm'][0]\n"
        "try: case.reference(x, x, x)\n"
        "except RuntimeError as error: print(error)\n"
        "try: assert_all_from('/elsewhere')\n"
        "except ImportError as error: print(error)\n"
    )
    with modules_of(base).open() as modules:
        file = modules.fileno()
        command = [sys.executable, "-I", "-c", code, str(base), str(file)]
        done = subprocess.run(command, pass_fds=[file], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "the oracle is not here" in done.stdout and "must come from /elsewhere" in done.stdout


@pytest.mark.parametrize("gpu", [True, False])
def test_nobody_looks_for_a_gpu_before_the_workers_that_use_it_are_forked(gpu: bool) -> None:
    """CUDA can't be used in a process whose parent has queried the devices, and importing cpp_extension does so."""
    code = (
        "import sys, torch; from common.course.grading.inside import import_torch\n"
        "asked = []; torch.version.cuda = '13.0'; torch.cuda._is_compiled = lambda: True\n"
        "torch.cuda.is_available = lambda: bool(asked.append(1))\n"
        f"import_torch({gpu}); print('asked', bool(asked))"
    )
    done = run_python(["-c", code], cwd=ROOT, env=dict(os.environ, CUDA_HOME="/usr"), timeout=60)
    assert done.returncode == 0 and f"asked {not gpu}" in done.stdout, done.stderr + done.stdout


def test_code_that_asks_for_the_simulator_asks_in_vain(base: Path, tmp_path: Path) -> None:
    text = "#ifdef CUDA_SIMULATOR\nshow();  // the simulator\n#endif\n"
    tree = with_submission(base, tmp_path / "tree", {"task2/attention_kernel.cu": text})
    written = (tree / "task2/attention_kernel.cu").read_text()
    assert written == ("#ifdef CUDA_SIMULATOR_of_the_grader\nshow();  // the simulator\n#endif\n")
    assert (tree / "common/__init__.py").samefile(base / "common/__init__.py")  # a link: nothing is copied


def test_unpaired_quotes_are_blanked(base: Path, tmp_path: Path) -> None:
    code = r"""int a = 1'000; /* " */ auto s = R"(it's \")" "\"'"; char c = '\'', d = '"'; // don't""" + "\n"
    text = code + "#if 0\nThis didn't\n\"work /* 'a' */\n#endif\n" + code
    tree = with_submission(base, tmp_path / "tree", {"task2/attention_kernel.cu": text})
    written = (tree / "task2/attention_kernel.cu").read_text()
    assert written == f"{code}#if 0\nThis didn{' ' * 2}\n{' ' * 15}\n#endif\n{code}"


def test_line_markers_end_compilation_and_are_harmless_in_comments(base: Path, tmp_path: Path) -> None:
    text = '/*\n # 1 load a tile\n%: 2 /* multiply */ # line by line\n#pragma message "hello"\n'
    tree = with_submission(base, tmp_path / "tree", {"task2/tile.cuh": text, "task3/attention.py": text})
    error = "#error Graded code has no line markers: "
    assert (tree / "task2/tile.cuh").read_text() == (
        f'/*\n {error} 1 load a tile\n{error} 2 /* multiply */ {error} line by line\n#pragma mark "hello"\n'
    )
    assert (tree / "task3/attention.py").read_text() == text


def test_a_bubblewrap_that_fails_in_silence_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\nexit 1\n")
    false.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sandbox.why_no_bubblewrap() == "bwrap ends with 1"
    false.unlink()
    assert "not installed" in sandbox.why_no_bubblewrap()


@pytest.mark.parametrize(("load", "times"), [(0.5, 1), (2.0, 1), (6.0, 3), (1000.0, sandbox.MOST_PATIENCE)])
def test_who_shares_its_cores_gets_more_time(monkeypatch, load: float, times: float) -> None:
    monkeypatch.setattr(sandbox.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(sandbox.os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert sandbox.patience() == times


def test_a_load_that_ends_takes_nothing_back(monkeypatch) -> None:
    now, load = [100.0], [4.0]
    monkeypatch.setattr(sandbox.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sandbox, "patience", lambda: load[0])
    clock = sandbox.FairClock()
    now[0] += 400  # four programs take turns
    assert clock.seconds() == 100
    now[0], load[0] = now[0] + 10, 1.0
    assert clock.seconds() == 110


@pytest.mark.parametrize("closed", [None, Path("/secret")])
def test_a_checkout_that_others_can_read_is_told(monkeypatch, capsys, tmp_path, closed) -> None:
    def enough(_):
        raise ValueError("enough")

    monkeypatch.setattr(grade, "choose_kind", lambda *_: "user")
    monkeypatch.setattr(grade, "closed_to_others", lambda _: closed)
    monkeypatch.setattr(grade, "salt_in", enough)
    assert course.main(["grade", str(tmp_path), "--out", str(tmp_path / "out")]) == grade.NOTHING
    said = capsys.readouterr().out
    assert "run as another user" in said and "enough" in said
    assert ("`chmod -R go-rwx" in said) == (closed is None)


@pytest.mark.parametrize("fill", ["mmap.mmap(-1, SIZE)[:] = x", "mmap.mmap(f, SIZE)[:] = x", "os.write(f, x)"])
def test_shared_memory_counts(fill: str) -> None:
    make = "import mmap, os; SIZE = 1 << 26; x = bytes(SIZE); f = os.memfd_create('x'); os.ftruncate(f, SIZE)"
    name, _, rest = fill.partition("[:]")
    fill = f"kept = {name}; kept[:]{rest}" if rest else fill
    code = f"{make}; {fill}; del x; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        counted = sandbox._own_bytes(process.pid) + sandbox._memfd_bytes([process.pid])
        process.communicate(b"\n")
    assert counted > 1 << 26


def test_no_two_sandboxes_have_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(sandbox, "USERS", 3)
    busy = sandbox.FIRST_USER + 1
    monkeypatch.setattr(sandbox, "_of_user", lambda user: [1] * (user == busy))
    lent = [sandbox._own_user() for _ in range(2)]
    assert {user for user, _ in lent} == {busy - 1, busy + 1}
    with pytest.raises(NoSandbox, match="all users"):
        sandbox._own_user()
    lent[0][1].release()
    assert sandbox._own_user()[0] == lent[0][0]


def test_a_checkout_that_the_sandbox_shows_is_refused(tmp_path: Path) -> None:
    assert "below /usr, which every submission can read" in sandbox.why_readable(Path("/usr/src/course"))
    assert sandbox.why_readable(Path(sys.prefix) / "course") and not sandbox.why_readable(tmp_path)
