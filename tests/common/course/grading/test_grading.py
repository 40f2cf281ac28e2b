"""Submissions graded in a sandbox: a right one, one that cheats, one that crashes. `attack` runs all known ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.console.paths import ROOT
from common.course.attack import LIMITS, chosen_attacks, run_attack
from common.course.grading.attacking import Attack, writes
from common.course.grading.running import grade_all, grade_on_slurm, workshop
from common.course.grading.sandbox import why_no_bubblewrap
from common.course.grading.workshop import Workshop

pytestmark = pytest.mark.slow

needs_bubblewrap = pytest.mark.skipif(bool(why_no_bubblewrap()), reason=f"no sandbox here: {why_no_bubblewrap()}")
SALT = b"0123456789abcdef0123456789abcdef"


def one(kind: str, name: str) -> tuple[str, Attack]:
    ((_, attack),) = [(k, a) for k, a in chosen_attacks(kind, None) if a.name == name]
    return kind, attack


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with workshop("bubblewrap", SALT, ("task3", "task5", "task7"), LIMITS) as made:
        yield made


@needs_bubblewrap
def test_a_cheat_and_a_crash_earn_nothing_and_cost_nobody_else(shop: Workshop) -> None:
    for kind, attack in (one("cheats", "loops on the host"), one("hostile", "a crash in host code")):
        result = run_attack(kind, attack, shop)
        assert not result.wrong
        assert result.earned == {"softmax": (0.0, 0.75), "merge": (0.75, 0.75)}


@needs_bubblewrap
@pytest.mark.parametrize("task", ["task3", "task5", "task7"])
def test_a_solution_earns_everything(shop: Workshop, task: str) -> None:
    """PyTorch and kernels; two .cu files; a model and its text."""
    assert not run_attack(*one("honest", f"{task}: the solution"), shop).wrong


@needs_bubblewrap
@pytest.mark.long
@pytest.mark.parametrize("kind", ["cheats", "hostile", "honest"])
def test_every_known_attack(kind: str) -> None:
    with workshop("bubblewrap", SALT, (), LIMITS) as shop:
        wrong = {a.name: found for k, a in chosen_attacks(kind, None) if (found := run_attack(k, a, shop).wrong)}
    assert not wrong


@needs_bubblewrap
@pytest.mark.long
def test_who_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    writes({"task7/gpt2_kernels.cu": "no CUDA at all"})(tmp_path / "ann")
    (temporary := tmp_path / "temporary").mkdir(mode=0o711)
    command = [sys.executable, "-m", "common.course", "grade", str(tmp_path / "ann"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, cwd=ROOT)
    while not list(temporary.glob("grading-*/base")):
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    assert process.wait(120) == 128 + signal.SIGTERM
    assert list(temporary.iterdir()) == []


@needs_bubblewrap
def test_a_second_run_grades_what_changed_alone(shop: Workshop, tmp_path: Path) -> None:
    shop = replace(shop, tasks=("task7",))
    for name in ("ann", "bob"):
        writes({"task7/gpt2_kernels.cu": "no CUDA at all"})(tmp_path / "in" / name)
    (tmp_path / "in" / "text").write_text("no submission")
    sources = [str(tmp_path / "in" / name) for name in ("ann", "bob", "text")]
    first = {outcome.name: new for outcome, new in grade_all(sources, tmp_path / "out", shop)}
    assert first == {"ann": True, "bob": True, "text": True}
    writes({"task7/gpt2_kernels.cu": "another text"})(tmp_path / "in" / "bob")
    pytest.importorskip("submitit")
    again = list(grade_on_slurm(sources, tmp_path / "out", shop, 1, cluster="local"))
    assert {outcome.name: new for outcome, new in again} == {"ann": False, "bob": True, "text": True}
    bob = next(outcome for outcome, _ in again if outcome.name == "bob")
    assert bob.earned == 0 and "another" in bob.tasks[0].problem + bob.tasks[0].log
    assert "neither a folder nor" in next(outcome.problem for outcome, _ in again if outcome.name == "text")
