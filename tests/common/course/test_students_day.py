"""progress, reset, watch, hint and report as a student calls them, on a copy of the checkout with gaps filled."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from filled_checkout import copy_of_the_checkout
from forked_python import run_python
from rich.console import Console

from common.course import progress, watch
from common.course.hints import TaskHints
from common.course.standing import Standing
from common.testing.kept import Failure, KeptPart

pytestmark = pytest.mark.slow
BIAS = " * weight[col] + bias[col];"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    folder = copy_of_the_checkout(tmp_path_factory.mktemp("filled"))
    for name in ("pyproject.toml", "README.md"):
        (folder / name).write_text("")
    return folder


@pytest.fixture(scope="module")
def call(checkout):
    """call("progress", "task7"): the output of `python -m common.course progress task7`; module="task7.test"."""

    def call(*arguments: str, module: str = "common.course", status: int = 0) -> str:
        environment = os.environ | {"PYTHONPATH": str(checkout), "COLUMNS": "120"}
        environment.pop("ATTENTION_BUILD_DIR", None)
        done = run_python(["-m", module, *arguments], checkout, environment, 600)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return " ".join(done.stdout.split())

    return call


def test_a_mistake_is_shown_alone_hinted_at_and_then_forgotten(call, checkout):
    kernels = checkout / "task7" / "gpt2_kernels.cu"
    right = kernels.read_text()
    assert right.count(BIAS) == 1
    kernels.write_text(right.replace(BIAS, " * weight[col];"))
    said = call("--first", "--layernorm", "--backend", "simulator", module="task7.test", status=1)
    assert said.count("FAIL") == 1 and "Points" not in said and "not run yet" in said
    assert "bias" in call("hint", "task7") and "wrong" in call("progress", "task7")
    assert "A term per column is missing" in call("hint", "task7", "--again")
    assert "Guard" not in call("hint", "task7")
    assert "the test recognized this mistake: bias forgotten" in call("hint", "task7")
    assert "hint 1 of 3" in call("hint", "task7", "gelu")
    kernels.write_text(right)
    assert "Every gap of task7 is filled" in call("hint", "task7")
    assert "changed since" in call("progress")
    assert "pass" in call("--layernorm", "--backend", "simulator", module="task7.test")
    assert "0.15 of 0.15" in call("progress", "task7")


def test_reset_of_a_gap_a_file_and_a_task_keeps_what_was_there(call, checkout):
    folder = checkout / "task6"
    kernels, layer = folder / "decode_attention.cu", folder / "attention.py"
    before = kernels.read_text(), layer.read_text()
    assert "score_keys, is a TODO again; yours is decode_attention.cu.bak" in call("reset", "task6", "score_keys")
    assert kernels.read_text().count("NOT_IMPLEMENTED();") == 1
    assert (folder / "decode_attention.cu.bak").read_text() == before[0]
    call("reset", "task6", "attention.py")
    assert "NotImplementedError" in layer.read_text() and (folder / "attention.py.bak").read_text() == before[1]
    call("reset", "task6")
    assert kernels.read_text().count("NOT_IMPLEMENTED();") == 8 and (folder / "decode_attention.cu.bak2").is_file()
    assert "0 of 7" in call("progress")
    assert "there are" in call("reset", "task6", "nonsense", status=2)


def test_the_report_holds_tests_and_benchmarks(call, checkout, tmp_path):
    (tmp_path / "flash").mkdir()
    row = {"setting": "bf16, d64", "label": "ours", "unit": "TFLOP/s", "ours": True, "size": "4096"}
    row |= {"median_seconds": 0.001, "work_per_second": 4.5e14}
    numbers = {"command": "python -m task4.benchmark <x>", "date": "2026-01-02", "machine": {"gpu": "one"}}
    (tmp_path / "flash" / "results.json").write_text(json.dumps(numbers | {"results": [row]}))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results.json").write_text("{}")
    said = call("report", str(tmp_path), "--page", str(tmp_path / "page.html"))
    assert "1 benchmark" in said and "left out" in said
    page = (tmp_path / "page.html").read_text()
    assert "450 TFLOP/s" in page and "1 ms" in page and "task4.benchmark &lt;x&gt;" in page and "of 20 points" in page
    assert "of 7 gaps filled" in page and "of 7" in call("progress")  # for task 6, without the optional ones
    assert "no such folder" in call("report", str(tmp_path / "nowhere"), status=2)


def test_watch_tests_at_once_and_whatever_was_saved_since_a_test_began():
    """The third wake finds nothing new; a file saved while the second test ran is tested without another save."""
    contents = iter(["a", "b", "c", "c"])
    console, runs = Console(file=io.StringIO()), []

    def one_test() -> int:
        runs.append(len(runs))
        return len(runs)

    status = watch.follow(console, "task2", [1, 2, 3], lambda: {"attention_kernel.cu": next(contents)}, one_test)
    assert status == 3 and len(runs) == 3
    assert console.file.getvalue().count("attention_kernel.cu saved") == 2


def test_watch_sees_a_save(tmp_path, monkeypatch):
    """The full command, with a test that only counts."""
    import threading
    import time
    from types import SimpleNamespace

    (tmp_path / "kernel.cu").write_text("a")
    manifest = SimpleNamespace(folder=tmp_path, files=("kernel.cu",))
    monkeypatch.setattr(watch, "read_manifest", lambda task: manifest)
    runs = threading.Semaphore(0)
    monkeypatch.setattr(watch, "one_test", lambda task, flags: runs.release() or 0)
    options = SimpleNamespace(task="task2", flags=[])
    threading.Thread(target=watch.run, args=(options,), daemon=True).start()
    assert runs.acquire(timeout=60)
    time.sleep(0.1)
    (tmp_path / "kernel.cu").write_text("b")
    assert runs.acquire(timeout=60)


def standing(**parts: KeptPart) -> Standing:
    return Standing("task2", [], frozenset(), TaskHints({}, {}), parts, {})


@pytest.mark.parametrize(
    ("parts", "state"),
    [
        ({}, "not started"),
        ({"softmax": KeptPart(3.0, 3.0)}, "done"),
        ({"softmax": KeptPart(1.0, 1.0)}, "passes"),
        ({"softmax": KeptPart(0.0, 1.0, failures=(Failure("a", "FAIL"),))}, "fails: softmax"),
        ({"softmax": KeptPart(3.0, 3.0, date="2026-01-02 10:00", files={"a": "b"})}, "changed since"),
        ({"softmax": KeptPart(None, 1.0, failures=(Failure("a", "not implemented", True),))}, "passes"),
    ],
)
def test_the_state_of_a_task(parts, state):
    assert state in progress.state_of(standing(**parts))


def test_the_points_of_the_tasks_are_those_of_their_tests(root):
    """task.json gives a task's points without importing it; the cases and measurements must agree."""
    import importlib

    from common.compiling.manifest import read_manifest, tasks
    from common.compiling.variant import Variant

    for task in tasks():
        test = importlib.import_module(f"{task}.test").TEST
        points = sum(case.points for case in test.cases(Variant.STUDENT))
        points += sum(sum(one.points.values()) for one in test.measurements)
        assert points == pytest.approx(read_manifest(task).points), task
