"""The order in which a submission's cases run."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from common.compiling.manifest import tasks
from common.course.grading import one
from common.course.grading.hidden import hidden_cases
from common.course.grading.outcome import Outcome
from common.testing.case import Verdict
from common.testing.runner.apart import COUNTS
from common.testing.worker.worker import NotLoaded

RED = "\x1b[31m\n\x9b2J"  # what a terminal obeys


def test_what_compilers_quote_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels(_: str) -> str:
        raise NotLoaded(RED, "BuildError")

    monkeypatch.setattr(one, "_not_begun", lambda *_: "")
    shop = SimpleNamespace(tasks=("task2",), salt=bytes(32), parts=None)
    *_, outcome = one._task("task2", SimpleNamespace(problems={}), shop, SimpleNamespace(kernels=kernels), {})
    assert outcome.log == "\ufffd[31m\n\ufffd2J" and outcome.problem.replace("\n", "").isprintable()


def graded(monkeypatch: pytest.MonkeyPatch, *tasks: str) -> tuple[Outcome, list, list]:
    """The outcome if every case passes; for each case whether it is hidden and how many processes were alive, with only
    the latter between public and hidden cases; the processes left."""
    ran, alive = [], []

    class Caller:
        more = dict.fromkeys(COUNTS, 0)

        def __init__(self, *_) -> None:
            alive.append(self)

        def close(self) -> None:
            alive.remove(self)

    def judged(case, *_, **__) -> Verdict:
        ran.append((case.draws == 1 and case.points == 0 and case.required, len(alive)))
        return Verdict(case, "pass")

    boxes = SimpleNamespace(in_python=Caller, in_runner=Caller, kernels=lambda _: RED, marks=(), peak_bytes=0)
    boxes.leave, boxes.close, boxes.cpu_seconds = lambda: ran.append(len(alive)), lambda: None, 0
    for name, made in {"_judged": judged, "_no_kernel": lambda *_: "", "share": lambda _: 0}.items():
        monkeypatch.setattr(one, name, made)
    monkeypatch.setattr(one, "Boxes", lambda *_: boxes)
    monkeypatch.setattr(one, "_not_begun", lambda *_: "")
    shop = SimpleNamespace(kind="", tasks=tasks, salt=bytes(32), parts=None, speed=False, key=lambda _: "")
    files = SimpleNamespace(name="ann", problems={}, files={"task3/attention.py": ""}, notes=[])
    return one.grade(files, "ann", shop), ran, alive


def test_public_cases_run_before_all_hidden_ones_and_share_no_process_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome, ran, alive = graded(monkeypatch, "task3", "task4", "task6", "task7")
    at = ran.index(0)
    number = sum(case.hidden for task in outcome.tasks for part in task.parts for case in part.cases)
    assert ran.count(0) == 1 and len(ran) - at - 1 == number and all(hidden for hidden, _ in ran[at + 1 :])
    assert {most for _, most in ran[:at] + ran[at + 1 :]} == {1} and alive == []
    # task 7's parts depend on hidden cases of tasks 4 and 6, and have none of their own
    assert {task.log for task in outcome.tasks} == {"\ufffd[31m\n\ufffd2J"}
    assert outcome.earned == outcome.possible and outcome.tasks[0].parts[0].part == "algorithm"


def test_a_part_whose_work_is_not_counted_earns_nothing_and_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one, "hidden_cases", lambda *_: [])
    outcome, _, _ = graded(monkeypatch, "task4")
    assert outcome.earned == 0 < outcome.possible and len(outcome.flags) == len(outcome.tasks[0].parts) == 2


@pytest.mark.parametrize("task", tasks())
def test_every_part_of_kernels_has_a_hidden_case(task: str) -> None:
    """There its work is counted."""
    secrets, public = importlib.import_module(f"{task}.cases.hidden"), importlib.import_module(f"{task}.cases").cases()
    elsewhere = (*getattr(secrets, "IN_PYTORCH", ()), *getattr(secrets, "RESTS_ON", ()))
    of_kernels = {case.part for case in public if case.points and case.part not in elsewhere}
    hidden = [made.case for made in hidden_cases(task, public, 0)]
    assert of_kernels <= {case.part for case in hidden}
    assert not [case.name for case in hidden if case.part in of_kernels and case.python]
