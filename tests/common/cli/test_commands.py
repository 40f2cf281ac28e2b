"""The commands as students type them: what they print and how they exit."""

from __future__ import annotations

import os
import subprocess

import pytest
from fake_operators import fake_operators
from forked_python import run_python

from common.compiling import toolchain


def run(root, module: str, *arguments: str) -> subprocess.CompletedProcess:
    return run_python(["-m", module, *arguments], root, os.environ, 600)


def test_an_unfilled_task_reports_its_gaps_and_fails(root, backend):
    done = run(root, "task4.test", "--full", "--backend", backend)
    assert done.returncode == 1
    assert "not implemented" in done.stdout and "task4/flash_attention.cu:" in done.stdout
    assert "Points: 0 of " in done.stdout


@pytest.mark.slow
def test_a_part_of_the_solution_passes(root, backend):
    done = run(root, "task6.test", "--update", "--solution", "--backend", backend, "--seed", "3")
    assert done.returncode == 0, done.stdout
    assert "Points: 1 of 1" in done.stdout and "decode" not in done.stdout


def test_compile_lists_the_gaps(root, backend):
    done = run(root, "task2.compile", "--backend", backend)
    assert done.returncode == 0, done.stdout
    assert "11 gaps are not filled yet" in done.stdout and "task2/attention_kernel.cu:" in done.stdout
    again = run(root, "task2.compile", "--backend", backend)
    assert "nothing had changed" in again.stdout


@pytest.mark.slow
@pytest.mark.skipif(not any(toolchain.all_nvccs()), reason="needs nvcc")
def test_nvcc_shows_registers_without_a_gpu(root):
    done = run(root, "task6.compile", "--solution", "--backend", "cuda", "--arch", "sm_80")
    assert done.returncode == 0, done.stdout
    assert "decode_kernel<128>" in done.stdout and "registers" in done.stdout and "sm_80" in done.stdout


def test_a_bad_option_is_explained(root):
    done = run(root, "task2.compile", "--backend", "simulator", "--arch", "sm_80")
    assert done.returncode == 2 and "the simulator runs code for sm_89" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_parts_in_python_compile_nothing(monkeypatch, capsys):
    """Task 1's layer calls no kernel, so a syntax error in the .cu does not matter."""
    from common.cli.test import test_main
    from task1.test import TEST

    def refuses(request):
        raise AssertionError("compiled")

    monkeypatch.setattr("common.cli.workers.load", refuses)
    assert test_main(TEST, ["--layer", "--solution", "--in-process"]) == 0
    out = capsys.readouterr().out
    assert "Points: 1 of 1" in out and "compiling" not in out and "--profile" not in out
    assert test_main(TEST, ["--layer", "--scores", "--solution", "--in-process"]) == 2
    assert "AssertionError: compiled" in capsys.readouterr().out


def test_show_prints_numbers_and_no_verdict(monkeypatch, capsys):
    from common.cli.test import test_main
    from task2.test import TEST

    ops = fake_operators()
    ops.backend, ops.libraries = "simulator", ()
    monkeypatch.setattr("common.cli.workers.load", lambda request: ops)
    assert test_main(TEST, ["--show", "7 x 31", "--in-process"]) == 0
    out = capsys.readouterr().out
    assert "softmax: 7 x 31, first inputs" in out and "right: their sum" in out and "Points" not in out
    with pytest.raises(SystemExit):
        test_main(TEST, ["--show", "7 x 31", "--check"])
    assert "--show prints numbers and no verdict: leave --check out" in capsys.readouterr().err


def test_ctrl_c_is_told_in_a_word(monkeypatch, capsys):
    from common.cli.compile import compile_main
    from common.cli.test import test_main
    from task2.test import TEST

    def interrupted(request):
        raise KeyboardInterrupt

    monkeypatch.setattr("common.cli.workers.load", interrupted)
    assert test_main(TEST, ["--case", "7 x 31", "--in-process"]) == 130
    assert capsys.readouterr().out.rstrip().endswith("task2: interrupted")
    monkeypatch.setattr("common.cli.compile.build", interrupted)
    assert compile_main("task2", ["--backend", "simulator"]) == 130
    assert capsys.readouterr().out.rstrip().endswith("task2: interrupted")
