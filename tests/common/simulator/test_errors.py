"""Code that would hang or crash on a GPU raises an error with kernel, block, thread and line."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from checked_library import CLANG
from simulator_library import HERE, ROOT, Library, compile_library, fails, line_of

# kernel, part of its message, block, thread (None: any)
KERNELS = [
    ("divergent", "40 thread(s), first (0,0,0), wait in __syncthreads", None, None),
    ("early_return", "28 thread(s), first (100,0,0), returned from the kernel", None, None),
    ("divergent_shuffle", "wait in __shfl_xor_sync", "0,0,0", None),
    ("mixed_shuffle", "warp divergence", "0,0,0", None),
    ("wrong_mask", "its mask 0x00000001 does not name the calling lane 1", "0,0,0", "1,0,0"),
    ("forever", "endless loop", "1,0,0", "17,0,0"),
    ("null_pointer", "null pointer", None, "5,0,0"),
    ("wild_pointer", "illegal memory access", "2,0,0", "0,0,0"),
    ("past_dynamic", "0 byte(s) past the end of the 256 bytes of dynamic shared memory", "0,0,0", "63,0,0"),
    ("past_static", "index 8 is outside its array, of type 'float [8][8]'", "0,0,0", "56,0,0"),
    ("misaligned", "misaligned access: 'float4' needs an address that is a multiple of 16", "0,0,0", "0,0,0"),
    ("divides", "division by zero", "0,0,0", "9,0,0"),
    ("asserts", "assertion `threadIdx.x < n' failed", "0,0,0", "20,0,0"),
    ("traps", "__trap()", "0,0,0", "3,0,0"),
    ("unfinished", "not implemented", "0,0,0", "0,0,0"),
]


@pytest.mark.parametrize("kernel, text, block, thread", KERNELS, ids=[k[0] for k in KERNELS])
def test_message(simulator, kernel, text, block, thread):
    message = fails(simulator, f"error_{kernel}", np.zeros(4096, np.float32))
    assert text in message
    assert re.search(rf"\b{kernel}\b", message)
    assert f"block ({block or ''}" in message
    if thread:
        assert f"thread ({thread})" in message
    trapped = kernel in ("past_static", "misaligned")  # clang merges equal traps, and their lines
    assert line_of("errors.cu", kernel) in message or (CLANG and trapped)


def test_two_barriers(simulator):
    message = fails(simulator, "error_two_barriers", np.zeros(64, np.float32))
    assert "barrier divergence" in message and "two_barriers, block (0,0,0) thread (1,0,0)" in message
    assert line_of("errors.cu", "first barrier") in message and line_of("errors.cu", "second barrier") in message


def test_two_barriers_on_one_line(simulator):
    message = fails(simulator, "error_one_line", np.zeros(64, np.float32))
    line = re.escape(line_of("errors.cu", "one_line"))
    assert re.search(rf"barrier divergence.*{line} \(the second\) while 32 .*{line} \(the first in its line\)", message)


def test_a_sleeping_kernel_is_stopped(simulator):
    message = fails(simulator, "error_sleeps", np.zeros(1, np.float32))
    assert "no progress" in message and line_of("errors.cu", "sleeps") in message


def test_a_launch_from_a_kernel_never_hangs(simulator):
    """Many blocks, so that the helper threads also launch while the launching thread holds the lock."""
    for _ in range(50):
        message = fails(simulator, "error_launches", np.zeros(64, np.float32), 64)
        assert "a kernel launches inner" in message and line_of("errors.cu", "launches") in message


SETS_THE_CLOCK_BACK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec* now) {
    static int (*real)(clockid_t, struct timespec*);
    if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
    const int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += 100000;  // and a wait until then sees the clock as it is
    return result;
}
"""


def test_the_watchdog_does_not_follow_a_clock_that_is_set_back(simulator, tmp_path):
    source, shim = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(SETS_THE_CLOCK_BACK)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", shim, "-ldl"], check=True)
    code = "try: library.error_forever(np.zeros(4096, np.float32))\nexcept RuntimeError as error: print(error)\n"
    done = subprocess.run(
        python_command(simulator, code),
        cwd=ROOT / "tests" / "helpers",
        env=os.environ | {"LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "endless loop" in done.stdout, done.stderr


def test_endless_loop_around_a_barrier(simulator):
    message = fails(simulator, "error_forever_with_barrier", np.zeros(1, np.int32))
    assert "endless loop" in message and "forever_with_barrier" in message


def test_endless_recursion(simulator):
    message = fails(simulator, "error_recursion", np.zeros(4, np.int32))
    assert "stack overflow" in message and "thread (3,0,0)" in message


def test_too_much_static_shared_memory(simulator):
    message = fails(simulator, "error_too_much_static", np.zeros(32, np.float32))
    assert "static shared memory reaches 52000 bytes, the limit is 49152" in message


def test_not_implemented_in_host_code(simulator):
    message = fails(simulator, "error_unfinished_host", np.zeros(1, np.float32))
    assert message == f"tests/common/simulator/kernels/{line_of('errors.cu', 'unfinished_host')}: not implemented"


# ---- effects on the process


def test_launches_from_several_threads(simulator):
    results = [np.zeros(128, np.int32) for _ in range(4)]
    threads = [threading.Thread(target=simulator.launch_many, args=(out, 100)) for out in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = (np.arange(4)[:, None] * 1000 + np.arange(32)).ravel() * 100
    assert all((out == expected).all() for out in results)


def in_child(path, queue):
    out = np.zeros(128, np.int32)
    library = Library(path)
    library.launch_many(out, 10)
    try:
        library.error_divergent(np.zeros(128, np.float32))
    except RuntimeError as error:
        queue.put((int(out.sum()), str(error)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_launches_after_a_fork(simulator):
    out = np.zeros(128, np.int32)
    simulator.launch_many(out, 10)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_child, args=(simulator.path, queue))
    child.start()
    total, message = queue.get(timeout=30)
    child.join(10)
    assert total == out.sum() and "deadlock" in message
    simulator.launch_many(out, 1)


@pytest.mark.slow
def test_two_libraries_in_one_process(simulator, tmp_path):
    other = Library(compile_library([HERE / "kernels" / "errors.cu"], tmp_path))
    for each in (simulator, other, simulator):
        assert "null pointer" in fails(each, "error_null_pointer", np.zeros(64, np.float32))
    stop = threading.Event()

    def others():
        while not stop.is_set():
            fails(other, "error_divides", np.zeros(64, np.int32))

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for _ in range(5):
            assert "null pointer" in fails(simulator, "error_null_pointer", np.zeros(64, np.float32))
    finally:
        stop.set()
        thread.join()


def python_command(simulator, code: str) -> list[str]:
    load = f"from simulator_library import Library\nlibrary = Library({str(simulator.path)!r})\n"
    return [sys.executable, "-c", "import numpy as np\n" + load + code]


def run_python(simulator, code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        python_command(simulator, code),
        cwd=ROOT / "tests" / "helpers",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_signal_handlers_are_put_back(simulator):
    done = run_python(
        simulator,
        "import faulthandler, ctypes\nfaulthandler.enable()\n"
        "try: library.error_null_pointer(np.zeros(64, np.float32))\nexcept RuntimeError: pass\n"
        "ctypes.string_at(8)\n",
    )
    assert done.returncode == -signal.SIGSEGV and "Fatal Python error: Segmentation fault" in done.stderr


def test_ctrl_c_reaches_python(simulator):
    # a shell's background jobs ignore SIGINT, and so would this child
    code = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "out = np.zeros(128, np.int32)\nprint('ready', flush=True)\n"
    code += "while True: library.launch_many(out, 20)\n"
    process = subprocess.Popen(
        python_command(simulator, code),
        cwd=ROOT / "tests" / "helpers",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
