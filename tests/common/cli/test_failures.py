"""What a student sees when kernels are wrong: the full command, on a copy of the checkout with one mistake in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filled_checkout import copy_of_the_checkout
from forked_python import run_python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    return copy_of_the_checkout(tmp_path_factory.mktemp("filled"))


@pytest.fixture
def said(filled):
    """said(task, file, old, new, *flags): the output of `python -m taskN.test` with `old` replaced by `new`."""
    restored: list[tuple[Path, str]] = []

    def said(task: str, file: str, old: str, new: str, *flags: str) -> str:
        path = filled / task / file
        text = path.read_text()
        restored.append((path, text))
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        command = ["-m", f"{task}.test", "--backend", "simulator", *flags]
        done = run_python(command, filled, os.environ | {"PYTHONPATH": str(filled), "COLUMNS": "110"}, 900)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        assert len(done.stdout.splitlines()) <= 40, done.stdout
        return " ".join(done.stdout.split())

    yield said
    for path, text in restored:
        path.write_text(text)


def test_a_crash_leads_to_its_line(said):
    """Threads past the last element access memory out of bounds: the plain build may crash."""
    guard = "    if (index >= batch_heads * S_q * S_k) return;\n"
    out = said("task1", "naive_attention.cu", guard, "", "--scores")
    assert "1. out of bounds in scores_kernel<float>" in out and "if (index >= n) return;" in out
    assert "sum += static_cast<float>(query_row[d]) * static_cast<float>(key_row[d]);" in out
    assert "Points: 0 of 0.3" in out


def test_an_exit_is_no_pass(said):
    launch = "    softmax_kernel<<<"
    out = said("task1", "naive_attention.cu", launch, "    exit(0);\n" + launch, "--softmax")
    assert "ended while it ran your code, by exit(0)" in out and "Points: 0 of 0.2" in out


def test_a_missing_barrier_leads_to_both_lines(said):
    use = "            multiply_tiles(a_tile, b_tile, sums);\n"
    after = "load_tile(b_tile, b_matrix, K, N, k0, first_col);\n            __syncthreads();\n" + use
    out = said("task2", "attention_kernel.cu", after + "            __syncthreads();\n", after, "--gemm")
    assert "race in gemm_nn_kernel" in out and "but none on the way back" in out
    assert "none of the known wrong answers" not in out


def test_one_cause_for_all_cases(said):
    out = said(
        "task2",
        "attention_kernel.cu",
        "load_tile(b_tile, b_matrix, K, N, k0, first_col);",
        "load_tile(b_tile, b_matrix, N, K, k0, first_col);",
        "--gemm",
    )
    assert out.count("B is read as a matrix of N rows and K columns; it is [K, N]") == 1
    assert "A is read" not in out and "The same holds for" in out
    assert out.index("B is read") < out.index("Next: ") and "found no race" not in out
