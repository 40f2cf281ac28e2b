"""Which cases --check and --profile run, and both commands with the real checked build and planted mistakes."""

import io
import os
from types import SimpleNamespace

import pytest
import torch
from forked_python import run_python
from planted import text_with
from planting import changed_sources
from rich.console import Console

import task1.cases
from common.cli import look_inside
from common.cli.look_inside import report_profiles
from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.console.paths import build_root
from common.inspect import checked_run, gpu_tools
from common.inspect.checked_library import CHECK, PROFILE, CheckedCaller
from common.inspect.profile import ncu
from common.inspect.profile.model import KernelProfile, LineTraffic
from common.inspect.profile.remarks import line_passes, remark
from common.inspect.profile.report import print_kernel
from common.inspect.source_lines import Place
from common.measure.gpus import find
from common.reference import oracle as reference
from common.testing import calling, judging
from common.testing.case import FAIL, NOT_RUN, Case, Verdict
from common.testing.first_operator import first_operator
from task2.cases import cases

CASES = {f"{case.part}: {case.name}": case for case in cases()}


def case(shape, name="a case", call=None, **options) -> Case:
    def inputs(generator):
        return {"x": torch.zeros(shape), "lengths": torch.zeros(shape[0], dtype=torch.int32)}

    call = call or (lambda ops, x, lengths: ops.softmax(x))
    return Case(name, "softmax", inputs, call, lambda x, lengths: x, 1e-6, ("row", "col"), **options)


def checked(chosen, ops) -> tuple[int, str]:
    """The exit status and output of check_cases."""
    text = io.StringIO()
    console = Console(file=text, width=120)
    return checked_run.check_cases(console, "a title", chosen, CheckedCaller(ops, CHECK), seed=0), text.getvalue()


# ---- choice of cases


@pytest.mark.parametrize(
    ("shape", "small"), [((4, 6), True), ((10_000, 2), True), ((10_001, 2), False), ((1024, 2048), False)]
)
def test_small_cases(shape, small):
    assert (checked_run.small_size(case(shape)) is not None) == small
    assert checked_run.small_size(case(shape, gpu_only=True)) is None


def test_what_ran_on_a_gpu_alone_is_not_looked_at_in_the_simulator():
    """A verdict's sizes are those of its inputs, wherever it ran."""
    sized = {"elements": 28, "matrices": 4}
    assert checked_run.small_size_of(Verdict(case((4, 6)), FAIL, **sized)) == 28
    assert checked_run.small_size_of(Verdict(case((4, 6), gpu_only=True), FAIL, **sized)) is None
    assert checked_run.small_size_of(Verdict(case((4, 6)), NOT_RUN)) is None


def test_what_is_left_out_is_said():
    text = io.StringIO()
    every = task1.cases.cases()
    chosen = checked_run.small_cases(Console(file=text, width=200), every, seed=0)
    left_out = [f"{one.part}: {one.name}" for one in every if one not in chosen and not one.gpu_only]
    assert left_out == ["softmax: 263,000 x 2"]
    assert all(name in text.getvalue() for name in left_out)
    assert "over 2,097,152 input elements or 10,000 matrices" in text.getvalue()


def test_one_representative_for_each_part_and_operator():
    chosen = checked_run.representatives(list(CASES.values()), seed=0)
    called = [(one.part, first_operator(one)) for one in chosen]
    assert sorted(called) == [
        ("attention", "attention"),
        ("gemm", "gemm_nn"),
        ("gemm", "gemm_nt"),
        ("row-sums", "row_sum"),
        ("softmax", "softmax"),
    ]
    assert CASES["softmax: 1023 x 1024"] in chosen


def test_a_case_that_calls_no_operator_has_none():
    def fails(ops, x, lengths):
        raise KeyError("no such thing")

    assert first_operator(case((2, 2), call=fails)) == ""
    assert first_operator(case((2, 2), call=lambda ops, x, lengths: x)) == ""
    assert first_operator(case((2, 2), call=lambda ops, x, lengths: ops.device and ops.gemm(x))) == "gemm"


# ---- under a tool


def test_bare_cases_run_once_without_guards_and_poison(capsys):
    seen = []

    def softmax(x):
        seen.append((x.storage_offset(), x.untyped_storage().nbytes() == 4 * x.numel(), torch.empty(3)))
        return x.clone()

    ops = SimpleNamespace(device=torch.device("cpu"), softmax=softmax)
    one = case((2, 3), draws=3)
    verdict = judging.judge(one, ops, bare=True)
    assert verdict.ok and len(seen) == 1
    assert seen[0][:2] == (0, True)
    assert torch.get_deterministic_debug_mode() == 0
    judging.judge(one, ops)
    assert len(seen) == 4 and seen[1][0] == calling.GUARD and bool(torch.isnan(seen[1][2]).all())
    assert gpu_tools.run_under_tool([one], ops, seed=0) == 0
    assert capsys.readouterr().out.splitlines() == ["@case softmax: a case", "pass "]


def test_the_command_of_a_child():
    options = SimpleNamespace(seed=3, variant=Variant.SOLUTION, arch="sm_90a")
    command = gpu_tools.child("task2", options, [CASES["softmax: 7 x 31"]])
    assert command[1:] == [
        *("-m", "task2.test", "--under-tool", "--variant", "solution", "--backend", "cuda"),
        *("--seed", "3", "--arch", "sm_90a"),
        *("--case", "softmax: 7 x 31"),
    ]


# ---- the real tools

# The softmax lacks the barrier between its two reductions; A B^T has an unpadded tile.
PLANTED = [
    ("row_max = partial[0];\n    __syncthreads();", "row_max = partial[0];"),
    ("__shared__ float b_tile[TILE][TILE + 1];", "__shared__ float b_tile[TILE][TILE];"),
    ("static_assert(WIDTH % 2 == 1", "static_assert(WIDTH > 0"),
]


@pytest.fixture(scope="module")
def planted():
    """Task 2's solution with the mistakes above, in the checked build."""
    folder = build_root() / "planted" / "task2" / "look_inside"
    sources = changed_sources("task2", "", folder, lambda files: [text_with(*files, PLANTED)])
    return load(BuildRequest("task2", backend="simulator", sources=sources, checked=True, label="planted_look_inside"))


def test_a_race_is_told_once_for_all_cases(planted):
    chosen = [CASES["softmax: 7 x 31"], CASES["softmax: 113 x 203"], CASES["gemm: A B, K = 1"]]
    status, out = checked(chosen, planted)
    assert status == 1
    assert "1 finding in 2 of 3 cases:" in out and "1. race in softmax_kernel: partial[" in out
    assert "row_max = partial[0];" in out and "partial[threadIdx.x] = row_sum;" in out
    lines = planted.sources[0].read_text().splitlines()
    read = 1 + lines.index("    row_max = partial[0];")
    write = 1 + lines.index("    partial[threadIdx.x] = row_sum;")
    assert f"Put a __syncthreads() between line {read} and line {write}." in out
    assert "case softmax: 7 x 31 (also in: softmax: 113 x 203)" in " ".join(out.split())
    assert "Points:" not in out and "max error" in out
    (row,) = [row for row in out.splitlines() if "│ 7 x 31" in row]
    assert "1 finding" in row


def test_the_solution_passes_the_check():
    ops = load(BuildRequest("task2", "solution", "simulator", checked=True))
    chosen = [one for name, one in CASES.items() if name.startswith("attention") and checked_run.small_size(one)]
    status, out = checked(chosen, ops)
    assert status == 0 and f"No findings in {len(chosen)} cases." in out


def test_an_unfilled_gap_is_no_clean_bill(planted):
    def gap(ops, x, lengths):
        raise NotImplementedError("task2 softmax is not implemented yet: kernel.cu:57")

    status, out = checked([case((2, 3), call=gap)], planted)
    assert status == 1 and "No case ran" in out and "No findings" not in out


def test_bank_conflicts_and_arithmetic_are_counted(planted):
    chosen = [CASES["gemm: A B^T, 64 x 64 x 64"], CASES["gemm: A B, 64 x 64 x 64"]]
    found = checked_run.profile_cases(Console(file=io.StringIO()), chosen, CheckedCaller(planted, PROFILE), seed=0)
    (nt,), (nn,) = (kernels for _, verdict, kernels in found if verdict.ok)
    for kernel in (nt, nn):  # 2 x 2 blocks, 2 steps along K, two barriers each
        assert (kernel.blocks, kernel.threads, kernel.barriers) == (4, 256, 16)
        assert kernel.operations.flops == 2 * 64**3
        assert kernel.compulsory_bytes == 3 * 64 * 64 * 4
        assert kernel.moved_bytes == (2 * 2 + 1) * 64 * 64 * 4  # A and B twice each, C once
        for line in kernel.lines:
            if line.space == "shared":
                assert line.worst == 1 + max(number for _, _, number in line_passes(line.offsets, line.bytes))
    (store,) = [line for line in nt.lines if line.space == "shared" and line.excess]
    assert (store.action, store.worst, store.transactions) == ("write", 32, 32 * store.requests)
    assert "tile[threadIdx.x][r]" in store.place.text and "load_tile_transposed" in store.place.inlined_at
    assert "32 words apart, so 32 lanes meet in each bank" in remark(store).advice
    assert not any(line.excess for line in nn.lines)
    assert store.what == "shared write of b_tile"
    assert {line.what for line in nn.lines if line.space == "global"} == {
        "global read of a", "global read of b", "global write of c"
    }  # fmt: skip


def test_the_report_of_a_profile(planted, tmp_path):
    text = io.StringIO()
    console = Console(file=text, width=120)
    found = checked_run.profile_cases(
        console, [CASES["gemm: A B^T, 64 x 64 x 64"]], CheckedCaller(planted, PROFILE), seed=0
    )
    assert report_profiles(console, "task2", "a title", found, find("t4"), str(tmp_path)) == 0
    out = text.getvalue()
    assert "gemm: A B^T, 64 x 64 x 64  1x64x64" in out and "gemm_nt_kernel  grid (2, 2), block (32, 8)" in out
    first = next(row for row in out.splitlines() if "transactions" in row and "requests" in row)
    assert "conflicts: 32 passes" in out.splitlines()[out.splitlines().index(first) + 2]
    assert "limited by" in out and "roofline estimate, T4" in out
    assert (tmp_path / "bank_conflicts.png").exists() and (tmp_path / "roofline.png").exists()
    narrow = Console(file=io.StringIO(), width=80)
    for _, _, kernels in found:
        for kernel in kernels:
            print_kernel(narrow, kernel, find("t4"))
    lines = narrow.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("transactions" in line and "ideal" in line for line in lines), "no heading is cut"
    assert any("conflicts: 32" in line for line in lines)


@pytest.mark.slow
def test_the_command(root, tmp_path):
    """As students type it, with their unfilled files and with the solution."""

    def run(*arguments):
        return run_python(["-m", "task2.test", "--backend", "simulator", *arguments], root, os.environ, 600)

    done = run("--check", "--solution", "--case", "softmax: 7 x 31")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No findings in 1 case" in done.stdout
    profile = run(
        "--profile", "--solution", "--case", "softmax: 7 x 31", "--gpu", "rtx 4090", "--picture", str(tmp_path)
    )
    assert profile.returncode == 0, profile.stdout + profile.stderr
    assert "softmax_kernel  grid (7), block (256)" in profile.stdout and "RTX 4090's ridge point" in profile.stdout
    both = run("--check", "--profile")
    assert both.returncode == 2 and "not allowed with" in both.stderr


@pytest.fixture
def gpu_tests(monkeypatch, tmp_path):
    """run(*flags): `--backend cuda` with PyTorch operators in place of a build, and a fake tool."""
    from common.cli.test import test_main
    from task2.test import TEST

    source = tmp_path / "attention_kernel.cu"
    source.write_text("first;\nsecond;\nthird;\n")
    ops = SimpleNamespace(device=torch.device("cpu"), backend="cuda", variant="student", softmax=reference.softmax)
    monkeypatch.setattr("common.cli.workers.load", lambda request: ops)
    monkeypatch.setattr(look_inside, "sources_of", lambda task, options: [source])
    monkeypatch.setattr(gpu_tools, "find", lambda tool: tool)
    return lambda *flags: test_main(TEST, ["--backend", "cuda", "--in-process", *flags])


ONE_CASE = ("--case", "7 x 31")


def test_check_on_a_gpu(gpu_tests, monkeypatch, capsys):
    said = [
        "========= Error: Race reported between Write access at softmax_kernel()+0x90 in /x/attention_kernel.cu:1",
        "=========     and Read access at softmax_kernel()+0x100 in /x/attention_kernel.cu:3 [508 hazards]",
        "=========",
        "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)",
    ]

    def output(command, **environment):
        if command[1] == "--help":
            return ""
        racing = said if command[2] == "racecheck" else ["========= ERROR SUMMARY: 0 errors"]
        return "\n".join(["@case softmax: 7 x 31", *racing])

    monkeypatch.setattr(gpu_tools, "output_of", output)
    assert gpu_tests(*ONE_CASE, "--check") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "task2, your files, compute-sanitizer" in out and "1 finding in 1 of 1 case:" in out
    assert "race in softmax_kernel" in out and "Put a __syncthreads() between line 1 and line 3." in out
    assert "case softmax: 7 x 31" in out
    said[:] = ["========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"]
    assert gpu_tests(*ONE_CASE, "--check") == 0
    assert "No findings in 1 case." in capsys.readouterr().out


@pytest.mark.parametrize("flags", [("--check",), ("--profile",), ("--check", "--all")])
def test_on_a_gpu_the_tools_get_few_cases_unless_all_are_asked_for(gpu_tests, monkeypatch, capsys, tmp_path, flags):
    """If none fails: the smallest that launches the kernel; the case that is running is named."""
    commands = []
    monkeypatch.setattr(look_inside, "kernels_of", lambda places: {"softmax": frozenset({"softmax_kernel"})})
    monkeypatch.setattr(ncu, "profile", lambda tool, command, sources: commands.append(command) or [])

    def output(command, **environment):
        commands.append(command)
        return "========= ERROR SUMMARY: 0 errors"

    monkeypatch.setattr(gpu_tools, "output_of", output)
    assert gpu_tests("--softmax", "--picture", str(tmp_path), *flags) == 0
    watched = [command for command in commands if "--under-tool" in command]
    assert len(watched) == (4 if "--check" in flags else 1)
    cases = 11 if "--all" in flags else 1
    assert all(command.count("--case") == cases for command in watched), watched
    out = " ".join(capsys.readouterr().out.split())
    told = "looks at the smallest for each kernel (--all: at more): softmax: masked entries, a masked row"
    assert (told in out) == ("--all" not in flags)


def test_profile_on_a_gpu(gpu_tests, monkeypatch, capsys, tmp_path):
    place = Place(str(tmp_path / "attention_kernel.cu"), 2)
    line = LineTraffic(place, "shared", "write", 4, 10, 320, 320, 10)
    kernel = KernelProfile("softmax_kernel", None, 1, (7, 1, 1), (256, 1, 1), 1024, (line,), measured_seconds=3e-6)
    monkeypatch.setattr(ncu, "profile", lambda tool, command, sources: [kernel])
    assert gpu_tests(*ONE_CASE, "--profile", "--gpu", "h200", "--picture", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "task2, your files, Nsight Compute: profile" in out and "conflicts: 32 passes" in out
    assert "softmax_kernel  grid (7), block (256)" in out and "measured" in out and "3 us" in out
    assert "special functions: calls of expf" not in out  # only the simulator counts these


def test_counters_that_may_not_be_read_end_the_run(gpu_tests, monkeypatch, capsys):
    monkeypatch.setattr(gpu_tools, "output_of", lambda *args, **options: "==ERROR== ERR_NVGPUCTRPERM - no permission")
    assert gpu_tests(*ONE_CASE, "--profile") == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "NVreg_RestrictProfilingToAdminUsers=0" in said and "--backend simulator" in said


def test_without_a_tool_the_message_says_what_to_do(monkeypatch, capsys):
    from common.cli.test import test_main
    from task2.test import TEST

    monkeypatch.setattr(gpu_tools.shutil, "which", lambda name: None)
    monkeypatch.setattr(gpu_tools.toolchain, "all_nvccs", lambda: iter(()))
    for flag, tool in (("--check", "compute-sanitizer"), ("--profile", "ncu")):
        assert test_main(TEST, [flag, "--backend", "cuda"]) == 2
        assert f"{tool} was found neither on PATH nor in a CUDA toolkit" in " ".join(capsys.readouterr().out.split())
