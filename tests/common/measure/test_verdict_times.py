"""`python -m common.benchmark verdict` on one task: every step ends as expected, or it raises."""

from __future__ import annotations

import os
import re

import pytest
from forked_python import run_python

from common.compiling.manifest import read_manifest, tasks
from common.console.paths import ROOT
from common.measure.verdict_times import _kernel, _wrong


@pytest.mark.parametrize("task", tasks())
def test_every_task_has_a_sum_to_get_wrong(task):
    manifest = read_manifest(task)
    text = (manifest.folder / "solution" / _kernel(manifest)).read_text()
    *wrong, marked = _wrong(text, "mark").splitlines()
    changed = [pair for pair in zip(text.splitlines(), wrong, strict=True) if pair[0] != pair[1]]
    assert len(changed) == 1 and changed[0][0].replace("+=", "-=") == changed[0][1]
    assert marked == "__device__ int mark;"


@pytest.mark.slow
def test_the_table_of_a_task():
    done = run_python(["-m", "common.benchmark", "verdict", "task1"], ROOT, os.environ | {"COLUMNS": "100"}, 600)
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("│ task1")]
    assert done.returncode == 0 and re.fullmatch(r"│ task1 (│ +[\d.]+ \([\d.]+\) ){4}│ +[\d.]+ │", row), done.stdout
