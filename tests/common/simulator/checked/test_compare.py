"""How compare_sanitizer.py reads compute-sanitizer's output and judges it; needs no GPU."""

import sys

import pytest
from checked_cases import CASES
from compare_sanitizer import Verdict, read_report, row, run_killable, title_of

ACCESS = """a line of the program itself
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at next(const float *, float *)+0x90 in bounds.cu:28
=========     by thread (63,0,0) in block (0,0,0)
=========     Address 0x7f0000000100 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f0000000000 of size 256 bytes
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "launch failure" on CUDA API call to cudaFree.
========= Leaked 256 bytes at 0x7f0000000000
========= ERROR SUMMARY: 3 errors
"""
MISALIGNED = """========= Invalid __global__ write of size 8 bytes
=========     at pairs(const float *, float *, int)+0x70 in bounds.cu:256
=========     Address 0x7f0000000004 is misaligned
========= ERROR SUMMARY: 1 error
"""
LEAK = """========= Leaked 256 bytes at 0x7f0000000000
========= ERROR SUMMARY: 1 error
"""
API = """========= Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaFree.
========= ERROR SUMMARY: 1 error
"""
RACE = """========= Error: Race reported between Write access at shift()+0x80 in shared_races.cu:28
=========     and Read access at shift()+0xc0 in shared_races.cu:30 [252 hazards]
=========
========= Warning: Race reported between Read access at tree()+0x80 in shared_races.cu:40
=========     and Write access at tree()+0xc0 in shared_races.cu:41 [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
UNINITIALIZED = """========= Uninitialized __shared__ memory read of size 4 bytes
=========     at tile()+0x80 in initialization.cu:31
========= Uninitialized __shared__ memory read of size 4 bytes
=========     at tile()+0x80 in initialization.cu:31
========= Host API memory access error at host access to 0x7f0000000000 of size 256 bytes
=========     Uninitialized access at 0x7f0000000004 on access by cudaMemcpy source
========= ERROR SUMMARY: 3 errors
"""
BARRIER = """========= Barrier error detected. Divergent thread(s) in block.
=========     at in_branch(const float *, float *)+0x90 in synchronization.cu:24
========= ERROR SUMMARY: 1 error
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    "text, kinds, lines",
    [
        (ACCESS, {"out_of_bounds": 1}, {("bounds.cu", 28)}),  # consequences of it are not counted
        (MISALIGNED, {"misaligned": 1}, {("bounds.cu", 256)}),
        (LEAK, {"leak": 1}, set()),
        (API, {"API error": 1}, set()),
        (RACE, {"race": 2}, {("shared_races.cu", n) for n in (28, 30, 40, 41)}),
        (UNINITIALIZED, {"uninitialized": 1}, {("initialization.cu", 31)}),
        (BARRIER, {"barrier": 1}, {("synchronization.cu", 24)}),
        (CLEAN, {}, set()),
        ("========= Something new happened\n========= ERROR SUMMARY: 2 errors\n", {"other": 2}, set()),
    ],
)
def test_reports(text, kinds, lines):
    verdict = read_report(text)
    assert (dict(verdict.kinds), verdict.lines, verdict.trouble) == (kinds, lines, "")


def test_no_summary_is_no_verdict():
    assert "no output" in read_report("").trouble
    assert "Target died" in read_report("========= COMPUTE-SANITIZER\n========= Target died\n").trouble


def test_what_hangs_is_killed():
    command = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
    text, killed = run_killable(command, 1.5)
    assert killed and "begun" in text
    assert run_killable([sys.executable, "-c", "print(1)"], 60) == ("1\n", False)


@pytest.mark.parametrize("is_wrong", [True, False])
@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("they", [True, False])
def test_who_is_right(is_wrong, mine, they):
    case = next(case for case in CASES if case.is_wrong == is_wrong)
    found, clean = read_report(RACE), read_report(CLEAN)
    tools = {"memcheck": clean, "racecheck": found if they else clean, "initcheck": Verdict(trouble="no end in 30 s")}
    cells = row(case, found if mine else clean, tools)
    who = ["ours"] * (mine == is_wrong) + ["NVIDIA"] * (they == is_wrong)
    who = {0: "neither", 1: who[0] if who else "", 2: "both"}[len(who)]
    assert [cells[0], *cells[5:7], *cells[-3:-1]] == [
        *(case.name, "no end in 30 s", "not run"), "yes" if mine == they else "no", who,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "error, title",
    [
        ("deadlock: in block (0,0,0) of k no thread can go on\n  40 thread(s)", "deadlock"),
        ("barrier divergence: this thread reached __syncthreads at /a/b.cu:3 while", "barrier divergence"),
        ("undefined operation: an index outside its array, a misaligned vector", "an index outside its array"),
        (
            "illegal memory access through a null pointer (address 0x4)\n",
            "illegal memory access through a null pointer",
        ),
        ("__syncwarp at /a/b.cu:7: its mask 0x1 does not name lane 3", "__syncwarp: its mask 0x1 does not name lane 3"),
    ],
)
def test_titles_of_errors(error, title):
    assert title_of(error) == title
