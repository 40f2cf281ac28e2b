"""The worker: whatever the code in it does, the test continues in a new one and reports what happened."""

from __future__ import annotations

import _thread
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from endings import assert_ends_with

from common.testing.calling import CallFailed
from common.testing.case import ERROR, FAIL, NOT_IMPLEMENTED, PASS, Case, Python
from common.testing.judging import judge
from common.testing.worker import nursery
from common.testing.worker import worker as module
from common.testing.worker.child import Served
from common.testing.worker.nursery import Nursery
from common.testing.worker.worker import NotLoaded, Worker
from task3.solution.attention import flash_attention


def raises(error: Exception) -> None:
    raise error


def patched(x):
    """Affects only this process: the test compares in another."""
    torch.Tensor.__le__ = lambda *_: True
    return x


# What the student's operator does with x in the worker
OPERATOR = {
    "right": lambda x: 2 * x,
    "segfault": lambda x: ctypes.string_at(8),
    "abort": lambda x: (os.write(2, b"malloc(): invalid size (unsorted)\n"), os.abort()),
    "exit(0)": lambda x: ctypes.CDLL(None).exit(0),
    "_exit(3)": lambda x: os._exit(3),
    "sys.exit": lambda x: sys.exit(0),
    "hang": lambda x: time.sleep(1000),
    "kill its parent": lambda x: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(1000)),
    "raise": lambda x: raises(RuntimeError("shared memory of block 3 is full: kernel.cu:12")),
    "gap": lambda x: raises(NotImplementedError("softmax is not implemented yet: kernel.cu:57")),
    "nothing": lambda x: None,
    "wrong dtype": lambda x: (2 * x).double(),
    "complex": lambda x: x.to(torch.complex64),
    "patch": patched,
    "stderr": lambda x: (os.write(2, b"a line for the student\n"), 2 * x)[1],
}


def case(what: str) -> Case:
    return Case(
        what,
        "part",
        lambda generator: {"x": torch.randn(3, 5, generator=generator)},
        lambda ops, x: OPERATOR[what](x),
        lambda x: x + x,
        floor=1e-6,
        axes=("row", "col"),
        draws=1,
    )


CASES = {kind: case(kind) for kind in OPERATOR}


def operators():
    return SimpleNamespace(device=torch.device("cpu"), backend="simulator")


@pytest.fixture
def worker():
    with Worker(Served(operators, lambda: list(CASES.values()), lambda ops: {"told": 7})) as made:
        made.load()
        yield made


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("segfault", "Segmentation fault: memory that does not exist was read or written"),
        ("abort", "found the heap damaged"),
        ("exit(0)", r"ended while it ran your code, by exit\(0\)"),
        ("_exit(3)", r"by exit\(3\)"),
    ],
)
def test_an_end_of_the_process_costs_its_case_only(worker, kind, words):
    assert judge(CASES["right"], worker).status == PASS
    verdict = judge(CASES[kind], worker)
    assert verdict.status == ERROR and verdict.ended
    assert re.search(words, verdict.diagnosis[0]), verdict.diagnosis
    assert judge(CASES["right"], worker).status == PASS


def test_who_kills_the_process_that_starts_all_others_gets_a_sentence(worker):
    verdict = judge(CASES["kill its parent"], worker)
    assert verdict.status == ERROR and verdict.ended
    verdict = judge(CASES["right"], worker)
    assert verdict.status == ERROR and "No further process can be started" in verdict.diagnosis[0]


def test_what_is_no_call_ends_in_time_too():
    with Worker(Served(operators, list, answer=lambda ops, request: time.sleep(1000) or {})) as worker:
        worker.answer_seconds = 0.5
        with pytest.raises(CallFailed, match=r"No answer within 0\.5 seconds"):
            worker.answer({"do": "hang"})


def sums_in_threads(ops, request) -> dict:
    """Eight threads that use PyTorch for the first time in this process, all at once; returns their errors."""
    errors: list[str] = []
    x, together = torch.ones(100_000), threading.Barrier(8)

    def one():
        together.wait()
        try:
            x.sum()
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"errors": errors}


def test_threads_may_be_the_first_to_use_pytorch(one_thread_without_gradients):
    """With one thread each, as in taskN.test. With more, the worker would wait forever for OpenMP's threads if an
    earlier test in this process had used them: a fork has none of them but believes they exist."""
    with Worker(Served(operators, list, answer=sums_in_threads)) as worker:
        for _ in range(20):  # without a new pool, about one process in three fails
            assert worker.answer({"do": "sum"})["errors"] == []
            worker.end_process()


def test_a_compiler_that_never_ends_is_no_wait_for_ever():
    with Worker(Served(lambda: time.sleep(1000), list)) as worker:
        worker.load_seconds = 0.5
        with pytest.raises(NotLoaded, match=r"was not built and loaded within 0\.5 seconds"):
            worker.load()


def test_what_the_c_library_said_is_quoted(worker):
    verdict = judge(CASES["abort"], worker)
    assert "malloc(): invalid size (unsorted)" in verdict.diagnosis[1]


def test_the_students_python_is_told_where_it_was(monkeypatch):
    monkeypatch.setitem(module.CALL_SECONDS, "simulator", 2)
    keys = torch.zeros(1, 1, 1_000_000, 1)
    slow = replace(case("slow"), call=lambda ops, x: flash_attention(keys[:, :, :1], keys, keys, B_c=1))
    slow = replace(slow, python=Python("attention", {}))
    with Worker(Served(operators, lambda: [slow])) as worker:
        worker.load()
        _, where = judge(slow, worker).said
    loops = r"attention\.py:\d+ \(attend\), called from attention\.py:\d+ \(flash_attention\)\."
    assert re.fullmatch(rf"Its Python was then at .*{loops}", where)


def test_a_hang_ends_in_time(worker, monkeypatch):
    monkeypatch.setitem(module.CALL_SECONDS, "simulator", 1)
    verdict = judge(CASES["hang"], worker)
    assert verdict.status == ERROR and "No answer within 1 seconds: an endless loop" in verdict.diagnosis[0]
    assert judge(CASES["right"], worker).status == PASS


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("sys.exit", ERROR, "sys.exit(0) was called"),
        ("raise", ERROR, "shared memory of block 3 is full"),
        ("gap", NOT_IMPLEMENTED, "softmax is not implemented yet"),
        ("nothing", FAIL, "returned NoneType; it must return a tensor"),
        ("wrong dtype", FAIL, "dtype torch.float64; it must be torch.float32"),
        ("complex", FAIL, "returned a tensor of dtype torch.complex64"),
        ("patch", FAIL, "elements are wrong"),
    ],
)
def test_what_is_no_crash_is_told_as_in_this_process(worker, kind, status, words):
    verdict = judge(CASES[kind], worker)
    assert verdict.status == status and not verdict.ended
    assert words in " ".join(verdict.diagnosis)
    if kind == "raise":
        assert verdict.file_line == "kernel.cu:12"
    here = judge(CASES[kind], operators()) if kind not in ("patch", "complex") else verdict
    assert here.status == status and here.diagnosis == verdict.diagnosis


def test_what_it_prints_reaches_the_student(worker, capfd):
    assert judge(CASES["stderr"], worker).status == PASS
    assert "a line for the student" in capfd.readouterr().err


def test_it_tells_about_its_operators_and_starts_only_once(worker):
    worker.load()
    first = worker._process
    worker.load()
    assert worker.about["told"] == 7 and worker._process == first and worker.backend == "simulator"


def test_operators_that_cannot_be_loaded():
    def load():
        raise ValueError("kernel.cu:3: error: expected ';'")

    with Worker(Served(load, list)) as worker, pytest.raises(NotLoaded, match="expected ';'") as raised:
        worker.load()
    assert raised.value.kind == "ValueError"


def test_a_static_constructor_that_ends_the_process():
    with (
        Worker(Served(lambda: os._exit(0), list)) as worker,
        pytest.raises(NotLoaded, match="while your code was loaded"),
    ):
        worker.load()


def test_nothing_is_left_behind(worker):
    worker.load()
    process = worker._process
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


SCRIPT = """
import sys, time
from types import SimpleNamespace
import torch
from common.testing.worker.child import Served
from common.testing.worker.worker import Worker
ops = SimpleNamespace(device=torch.device("cpu"), backend="simulator")
worker = Worker(Served(lambda: ops, list))
worker.load()
print(worker._process, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_ends_with_its_test(root, by):
    assert_ends_with(SCRIPT, by, root)


COMPILING = """
import os
import subprocess
from types import SimpleNamespace
import torch
from common.testing.worker.child import Served
from common.testing.worker.worker import Worker

def load():
    child = subprocess.Popen(["sleep", "1000"], preexec_fn=os.setpgrp)  # as ninja starts its compilers
    return SimpleNamespace(device=torch.device("cpu"), backend="simulator", child=child.pid)

worker = Worker(Served(load, list, lambda ops: {"child": ops.child}))
worker.load()
print(worker.about["child"], flush=True)
subprocess.run(["sleep", "1000"])
"""


@pytest.mark.slow
def test_the_compilers_that_it_started_end_with_a_test_that_is_killed(root):
    assert_ends_with(COMPILING, signal.SIGKILL, root)


# a shell's background jobs ignore SIGINT, and so would this child
HEARS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
HANGING = HEARS + SCRIPT.replace("time.sleep(1000)", "worker.answer({'do': 'hang'})").replace(
    "Served(lambda: ops, list)", "Served(lambda: ops, list, answer=lambda ops, request: time.sleep(1000))"
)


def test_ctrl_c_ends_host_code_that_hangs(root):
    test = subprocess.Popen(
        [sys.executable, "-c", HANGING], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process = int(test.stdout.readline())
    time.sleep(0.5)
    test.send_signal(signal.SIGINT)
    _, said = test.communicate(timeout=120)
    assert "KeyboardInterrupt" in said and not os.path.exists(f"/proc/{process}")


def test_ctrl_c_that_comes_just_before_the_wait_is_not_lost():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Worker(Served(operators, list, answer=lambda ops, request: time.sleep(20) or {})) as worker:
            worker.load()
            threading.Timer(0.2, _thread.interrupt_main).start()  # Python notices it, the system call does not
            with pytest.raises(KeyboardInterrupt):
                worker.answer({"do": "hang"})
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_worker_is_ended_before_it_has_a_group_of_its_own():
    process = os.fork()
    if not process:
        time.sleep(20)
        os._exit(0)
    assert os.WIFSIGNALED(nursery.end(process))


ANSWERS = {
    "no JSON": b"\xff\xfe",
    "a list": b"[1, 2]",
    "brackets": b"[" * 100_000,
    "nothing in it": b"{}",
    "a negative shape": b'{"message": {}, "tensors": {"out": {"dtype": "torch.float32", "shape": [-1]}}}',
    "a huge tensor": b'{"message": {}, "tensors": {"out": {"dtype": "torch.float32", "shape": [1000000, 1000000]}}}',
    "an unknown dtype": b'{"message": {}, "tensors": {"out": {"dtype": "object", "shape": [1]}}}',
    "a called that says nothing": b'{"message": {"called": true}, "tensors": {}}',
}


@pytest.mark.parametrize("data", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_none_is_an_error_of_its_case(data):
    def answers(connection):
        connection.send_bytes(b'{"message": {"loaded": true, "backend": "simulator", "libraries": []}, "tensors": {}}')
        for _ in range(2):  # the request and its tensor
            connection.recv_bytes()
        connection.send_bytes(data)
        time.sleep(1000)

    with Worker(None, Nursery(answers)) as worker:
        worker.load()
        verdict = judge(CASES["right"], worker)
    assert verdict.status == ERROR and verdict.ended and "sent an answer that can't be read" in verdict.diagnosis[0]


def test_half_an_answer_ends_in_time(monkeypatch):
    def answers(connection):
        connection.send_bytes(b'{"message": {"loaded": true, "backend": "simulator", "libraries": []}, "tensors": {}}')
        connection.recv_bytes()
        os.write(connection.fileno(), (1000).to_bytes(4, "big") + b"{")
        time.sleep(1000)

    monkeypatch.setitem(module.CALL_SECONDS, "simulator", 1)
    begun = time.monotonic()
    with Worker(None, Nursery(answers)) as worker:
        worker.load()
        verdict = judge(CASES["right"], worker)
    assert verdict.status == ERROR and "No answer within 1 seconds" in verdict.diagnosis[0]
    assert time.monotonic() - begun < 100
