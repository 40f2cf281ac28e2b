"""The runner returns what this process would, and whatever the code in it does, the test continues."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from endings import assert_ends_with

from common.cli.runner import KINDS, KernelsApart, RunnerOperators, arguments_of, described
from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.compiling.runner import runner_program
from common.inspect.checked_library import CHECK, REPLAY, CheckedCaller
from common.inspect.checked_run import small_size
from common.testing.calling import BARE, Around, CallFailed, InProcess
from common.testing.case import ERROR, FAIL, NOT_IMPLEMENTED, PASS, Case
from common.testing.judging import judge, make_inputs
from common.testing.runner import process as module
from common.testing.runner.process import RunnerProcess, is_available
from common.testing.worker.child import Served
from common.testing.worker.worker import CALL_SECONDS, NotLoaded

pytestmark = pytest.mark.skipif(not is_available(), reason="runners need Linux")

TASKS = ["task3", *(pytest.param(f"task{number}", marks=pytest.mark.slow) for number in (1, 2, 4, 5, 6, 7))]


@contextmanager
def begun(libraries: Sequence[Path] = (), program: Path | None = None) -> Iterator[RunnerProcess]:
    process = RunnerProcess(program or runner_program(), list(libraries))
    try:
        process.begin()
        yield process
    finally:
        process.close()


@contextmanager
def in_runner(request: BuildRequest) -> Iterator[RunnerOperators]:
    """Its operators in a runner."""
    ops = load(request)
    with begun([one.path for one in ops.libraries]) as process:
        yield RunnerOperators(ops.task, ops.variant, list(ops.libraries), process)


def called(caller: InProcess, case: Case, around: Around):
    """(the output, forbidden effects of the call), or the text of its failure."""
    if isinstance(caller.ops, RunnerOperators):
        caller.ops.memory.begin()
    try:
        one = caller.call(case, make_inputs(case, 0), around)
    except CallFailed as failed:
        return failed.status, failed.words
    return one.out, one.problems


@pytest.mark.parametrize("task", TASKS)
def test_every_case_gives_the_same_bits_as_in_this_process(task: str) -> None:
    request = BuildRequest(task, "solution", backend="simulator")
    cases = [one for one in importlib.import_module(f"{task}.cases").cases("solution") if not one.python]
    arounds = Around(large=True), Around(finite=True), BARE
    with in_runner(request) as ops:
        apart, here = InProcess(ops), InProcess(load(request))
        for case, around in product([one for one in cases if small_size(one) is not None], arounds):
            (out, problems), (expected, no_problems) = called(apart, case, around), called(here, case, around)
            assert problems == no_problems == [], case.name
            assert out.dtype == expected.dtype and out.shape == expected.shape, case.name
            assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8)), case.name


@pytest.mark.slow
def test_a_checked_build_reports_the_same() -> None:
    request = BuildRequest("task3", "solution", backend="simulator", checked=True)
    case = next(one for one in importlib.import_module("task3.cases").cases("solution") if not one.python)
    reports = []
    with in_runner(request) as apart:
        for ops, mode in product((apart, load(request)), (CHECK, REPLAY)):
            caller = CheckedCaller(ops, mode)
            assert called(caller, case, Around())[1] == []
            (report,) = caller.more["reports"]
            text = re.sub(r'"(base|address|at|pc)": ?"?[0-9a-fx]+"?', "", json.dumps(report))
            reports.append((text, len(caller.more.get("recordings", []))))
    assert reports[:2] == reports[2:] and reports[1][1] == 1


SOURCE = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <unistd.h>

#include "common/cuda/check.h"
#include "task3/given/online_softmax.h"

__global__ void twice(const float* x, float* y, int64_t size) {
    const int64_t i = blockIdx.x * int64_t{64} + threadIdx.x;
    if (i < size) y[i] = 2 * x[i];
}
__global__ void runs_away(const float* x, float* y) {
    for (int64_t i = threadIdx.x; i < 64; i -= 64) y[i] = 2 * x[i];
}

// The number of columns selects what is tried.
void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    lse[0] = 0;
    static int calls = 0;
    volatile char* nowhere = reinterpret_cast<char*>(8);
    if (cols != 8) twice<<<ceil_div(rows * cols, int64_t{64}), cols == 14 ? 2048 : 64, 0, stream>>>(x, y, rows * cols);
    if (cols == 2) *nowhere = 1;
    if (cols == 3) exit(0);
    if (cols == 4) _exit(3);
    if (cols == 5) abort();
    if (cols == 6) sleep(1000);
    if (cols == 7) throw std::runtime_error("shared memory of block 3 is full: kernel.cu:12");
    if (cols == 9) const_cast<float*>(x)[0] = 3;
    if (cols == 10) const_cast<float*>(x)[-1] = 3;
    if (cols == 11) fputs("a line for the student\\n", stderr);
    if (cols == 12) y[0] = x[-1];
    if (cols == 13) y[100'000'000] = 1;
    if (cols == 14) CUDA_CHECK_LAUNCH();
    if (cols == 15) printf("printed %d\\n", ++calls);
    if (cols == 16) y[0] = y[rows * cols - 1] + 7;
    if (cols == 17) throw 5;
    if (cols == 18) runs_away<<<1, 64, 0, stream>>>(x, y);
}
void merge_states(const float*, const float*, float*, float*, int64_t, int64_t, int64_t, cudaStream_t) {}
"""
KINDS_OF_CODE = {
    "right": 1,
    "segfault": 2,
    "exit(0)": 3,
    "_exit(3)": 4,
    "abort": 5,
    "hang": 6,
    "raise": 7,
    "nothing written": 8,
    "input changed": 9,
    "guard written": 10,
    "stderr": 11,
    "guard read": 12,
    "far outside": 13,
    "refused": 14,
    "stdout": 15,
    "throw 5": 17,
    "runs away": 18,
}


def trying(kind: str) -> Case:
    def reference(x):
        return 2 * x

    return Case(
        kind,
        "part",
        lambda generator: {"x": torch.randn(3, KINDS_OF_CODE[kind], generator=generator)},
        lambda ops, x: ops.online_softmax(x)[0],
        reference,
        floor=1e-6,
        axes=("row", "col"),
        draws=1,
    )


CASES = {kind: trying(kind) for kind in KINDS_OF_CODE}


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> BuildRequest:
    source = tmp_path_factory.mktemp("runner") / "online_softmax.cu"
    source.write_text(SOURCE)
    return BuildRequest("task3", backend="simulator", sources=[source], label="runner")


@pytest.fixture(scope="module")
def built(request_: BuildRequest):
    return load(request_)


@pytest.fixture
def caller(request_: BuildRequest, built):
    served = Served(lambda: load(request_), lambda: list(CASES.values()), described)
    with KernelsApart("task3", "runner", served) as made:
        made.load()
        yield made


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("segfault", "Segmentation fault: memory that does not exist was read or written"),
        ("far outside", "Segmentation fault: memory that does not exist was read or written"),
        ("exit(0)", r"ended while it ran your code, by exit\(0\)"),
        ("_exit(3)", r"by exit\(3\)"),
        ("abort", "Aborted"),
    ],
)
def test_an_end_of_the_process_costs_its_case_only(caller, kind, words) -> None:
    assert judge(CASES["right"], caller).status == PASS
    verdict = judge(CASES[kind], caller)
    assert verdict.status == ERROR and verdict.ended
    assert re.search(words, verdict.diagnosis[0]), verdict.diagnosis
    if kind == "segfault":  # the simulator names the line
        assert any(re.search(r"online_softmax\.cu:\d+", line) for line in verdict.diagnosis), verdict.diagnosis
    assert judge(CASES["right"], caller).status == PASS


def test_an_index_that_runs_away_reaches_nothing_else(caller) -> None:
    verdict = judge(CASES["runs away"], caller)
    assert verdict.status == ERROR and not verdict.ended
    assert "illegal memory access at address" in verdict.diagnosis[0], verdict.diagnosis
    assert judge(CASES["right"], caller).status == PASS


def test_a_hang_ends_in_time(caller, monkeypatch) -> None:
    assert judge(CASES["right"], caller).status == PASS
    monkeypatch.setitem(CALL_SECONDS, "simulator", 1)
    verdict = judge(CASES["hang"], caller)
    assert verdict.status == ERROR and "No answer within 1 seconds: an endless loop" in verdict.diagnosis[0]
    assert judge(CASES["right"], caller).status == PASS


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("raise", ERROR, "shared memory of block 3 is full"),
        ("throw 5", ERROR, "unknown exception"),
        ("nothing written", FAIL, "NaN"),
        ("guard read", FAIL, "NaN"),
        ("input changed", FAIL, "The input x was changed"),
        ("guard written", FAIL, "Memory before or after the input x was written to"),
        ("refused", ERROR, "block (2048, 1, 1): a block has at most 1024 threads"),
    ],
)
def test_what_is_no_crash_is_told_as_in_this_process(caller, built, kind, status, words) -> None:
    verdict, here = judge(CASES[kind], caller), judge(CASES[kind], InProcess(built))
    assert verdict.status == status and not verdict.ended and words in " ".join(verdict.diagnosis), verdict.diagnosis
    assert (here.status, here.diagnosis, here.file_line) == (verdict.status, verdict.diagnosis, verdict.file_line)


@pytest.mark.parametrize("shape", [(3, 0), (3,), (2, 3, 4)])
def test_what_a_binding_refuses_is_the_same_error(built, request_, shape) -> None:
    with pytest.raises(ValueError) as expected:
        built.online_softmax(torch.zeros(shape))
    with in_runner(request_) as ops:
        with pytest.raises(ValueError, match=re.escape(str(expected.value))):
            ops.online_softmax(torch.zeros(shape))
        with pytest.raises(ValueError, match="not contiguous"):  # a tensor of this process is passed with its strides
            ops.online_softmax(torch.zeros(4, 6).T)
        with pytest.raises(ValueError, match="dtype Long; it must be Float"):
            ops.online_softmax(torch.zeros(2, 2, dtype=torch.int64))


def test_what_it_prints_reaches_the_student(caller, capfd) -> None:
    assert judge(CASES["stderr"], caller).status == PASS
    assert "a line for the student" in capfd.readouterr().err
    assert judge(CASES["stdout"], caller).status == PASS and judge(CASES["stdout"], caller).status == PASS
    assert capfd.readouterr().out == "printed 1\nprinted 2\n"


def test_gaps_are_told_without_a_call() -> None:
    message = r"task3 online_softmax is not implemented yet: task3/\S+\.cu:\d+"
    with in_runner(BuildRequest("task3", "student", backend="simulator")) as ops:
        ops.memory = None  # no requests are made
        with pytest.raises(NotImplementedError, match=message):
            ops.online_softmax(torch.zeros(2, 2))


def test_an_operator_writes_into_tensors_of_this_process_too() -> None:
    cache = [torch.zeros(1, 1, 4, 8) for _ in range(2)]
    new = [torch.randn(1, 1, 1, 8) for _ in range(2)]
    with in_runner(BuildRequest("task6", "solution", backend="simulator")) as ops:
        assert ops.update_cache(*cache, *new, torch.tensor([2], dtype=torch.int32)) is None
    for slots, row in zip(cache, new, strict=True):
        assert torch.equal(slots[0, 0, 2], row[0, 0, 0]) and not slots[0, 0, [0, 1, 3]].any()


def test_arguments_go_by_the_schema() -> None:
    schema = torch._C.parse_schema(
        "t::f(Tensor(a!) x, Tensor? mask, int n, bool on=False, float? scale=None) -> Tensor"
    )
    x = torch.zeros(1)
    made = arguments_of(schema, (x,), {"n": 3, "mask": None})
    assert [one.value for one in made[1:]] == [None, 3, False, None] and made[0].value is x
    assert [one.written for one in made] == [True, False, False, False, False]
    assert [one.optional for one in made] == [False, True, False, False, True]
    for args, kwargs in [
        ((x,), {}),
        ((x, None, 1, True, 2.0, 3), {}),
        ((x,), {"m": 1}),
        ((None, None, 1), {}),
        ((x, x, "1"), {}),
    ]:
        with pytest.raises(TypeError):
            arguments_of(schema, args, kwargs)
    assert set(KINDS) == {"Tensor", "int", "float", "bool"}


def test_the_runner_has_what_the_libraries_import(built) -> None:
    def symbols(*command) -> set[str]:
        said = subprocess.run(["nm", "-D", *map(str, command)], capture_output=True, text=True, check=True).stdout
        return set(re.findall(r"\b(?:aoti_)?torch_\w+", said))

    wanted = symbols("--undefined-only", built.libraries[0].path)
    assert len(wanted) > 20 and wanted <= symbols("--defined-only", runner_program())


def test_neither_pytorch_nor_python_is_in_the_process(built, monkeypatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(torch.__file__).parent / "lib"))
    with begun([built.libraries[0].path]) as process:
        loaded = re.findall(r"\S+\.so\S*", Path(f"/proc/{process._process}/maps").read_text())
    assert not [one for one in loaded if "libpython" in one or "site-packages" in one]
    assert {Path(one).parent for one in loaded if "torch" in Path(one).name} == {runner_program().parent}


def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    library = tmp_path / "broken.so"
    library.write_bytes(b"no library")
    with pytest.raises(NotLoaded, match=r"broken\.so"), begun([library]):
        pass


SCRIPT = """
import sys, time
from pathlib import Path
from common.testing.runner.process import RunnerProcess
process = RunnerProcess(Path(sys.argv[1]), [])
process.begin()
print(process._process, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_ends_with_its_test(root, by) -> None:
    assert_ends_with(SCRIPT, by, root, runner_program())


def of_tensor(dtype: int = 6, offset: int = 0, shape: tuple[int, ...] = (1,), strides: tuple[int, ...] = (1,)) -> bytes:
    return struct.pack(f"=BIiIQ{2 * len(shape)}q", 0, 1, dtype, len(shape), offset, *shape, *strides)


NONSENSE = {
    "nothing": b"",
    "half a number": b"\0\1",
    "no outputs": struct.pack("=BI", 0, 0),
    "an unknown dtype": of_tensor(dtype=9),
    "a negative size": of_tensor(shape=(-1,)),
    "a negative stride": of_tensor(shape=(2,), strides=(-1,)),
    "outside": of_tensor(offset=1 << 33),
    "half outside": of_tensor(offset=(1 << 32) - 4, shape=(2,)),
    "between elements": of_tensor(offset=2),
    "huge": of_tensor(shape=(1 << 62,)),
    "huge without memory": of_tensor(shape=(1 << 62,), strides=(0,)),
    "many dimensions": struct.pack("=BIiIQ", 0, 1, 6, 1 << 31, 0),
    "an error of no end": struct.pack("=BI", 1, 1 << 31),
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_an_answer_that_is_none_is_an_error_of_its_call(tmp_path: Path, data: bytes) -> None:
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport time\nfrom multiprocessing.connection import Connection\n"
        f"connection = Connection(3)\nconnection.recv_bytes()\nconnection.send_bytes({data!r})\ntime.sleep(1000)\n"
    )
    program.chmod(0o755)
    with begun(program=program) as process:
        with pytest.raises(CallFailed, match="sent an answer that can't be read") as failed:
            process.call("task3::online_softmax", [], 1)
        assert failed.value.ended
        with pytest.raises(CallFailed, match="has ended"):
            process.call("task3::online_softmax", [], 1)


def test_an_answer_without_an_end_ends_the_process(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nimport os\nwhile True: os.write(3, b'x' * 65536)\n")
    program.chmod(0o755)
    with begun(program=program) as process, pytest.raises(CallFailed) as failed:
        process.call("task3::online_softmax", [], 1)
    assert failed.value.ended


def test_memory_is_given_back_and_has_an_end() -> None:
    with begun() as process:
        x = process.empty(1 << 25, torch.float32).fill_(1)
        assert x.sum() == 1 << 25
        process.begin()
        assert process.empty(1 << 25, torch.float32)[-1] == 0  # other pages
        with pytest.raises(MemoryError):
            process.empty(module.MEMORY_BYTES, torch.uint8)
        with pytest.raises(OSError, match="not permitted"):
            os.truncate(process._file, 0)


def test_a_case_that_hides_that_it_runs_python_is_refused() -> None:
    case = next(one for one in importlib.import_module("task3.cases").cases("solution") if one.part == "algorithm")
    with in_runner(BuildRequest("task3", "solution", backend="simulator")) as ops:
        assert "has no `python`" in judge(replace(case, python=None), InProcess(ops)).diagnosis[0]
    assert judge(case, InProcess(load(BuildRequest("task3", "student", backend="simulator")))).status == NOT_IMPLEMENTED
