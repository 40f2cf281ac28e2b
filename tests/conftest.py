"""Fixtures for all tests: the backend under test, and every solution's operators, built once per session."""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

# Fork-safe and quiet: tokenizers warns when a test starts a compiler after the library has used its threads
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# pytest -n: the worker processes share the cores, so each gets its share of the threads
if processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(processes))))

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = pytest.StashKey[str]()  # the message about skipped GPU tests


def why_no_gpu() -> str:
    """Why torch sees no GPU, or there is no nvcc to build for it; "" if both are available."""
    from common.compiling import toolchain

    backend = toolchain.choose_backend("auto")
    return "" if backend.name == "cuda" else backend.problem or backend.reason


# Files with the most compilation, roughly by CPU time. pytest -n hands out whole files, those with most tests first: a
# file with few tests would come last and leave one process compiling while the others are idle.
LONG_FILES = (
    "common/kernels/flash/test_flash.py",
    "variants/",
    "common/cli/",
    "common/compiling/",
    "common/course/",
    "common/kernels/",
    "common/inspect/",
    "common/simulator/",
    "/test_planted",
    "task",
)


def by_cost(name: str) -> int:
    """The rank of a test file among LONG_FILES."""
    return next((rank for rank, part in enumerate(LONG_FILES) if part in name), len(LONG_FILES))


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Freezes what collection imported: scanning it for garbage costs a tenth of the run time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def values_of(item: pytest.Item) -> set[tuple]:
    """The values of a test's parameters. A table row, parametrize(("x", "y"), ...), is one value; in a table of
    planted mistakes, the mistake's name or the finding's kind is."""
    params = item.callspec.params
    tables = [mark.args[0] for mark in item.iter_markers("parametrize")]
    tables = [tuple(names.replace(",", " ").split()) if isinstance(names, str) else tuple(names) for names in tables]
    tables += [(name,) for name in params.keys() - {name for names in tables for name in names}]
    kinds = [[name for name in ("name", "kind") if name in names and "planted" in names] for names in tables]
    return {
        (names, *(params[name] for name in kind)) if kind else (names, *(id(params[name]) for name in names))
        for names, kind in zip(tables, kinds, strict=True)
    }


def beyond_each_value(items: list[pytest.Item]) -> list[pytest.Item]:
    """The points of a parameter grid beyond a set in which every value of every parameter occurs at least once."""
    values = {item: values_of(item) for item in items}
    missing, further = set().union(*values.values()), list(items)
    while missing:
        chosen = max(further, key=lambda item: len(values[item] & missing))  # first of the best
        missing -= values[chosen]
        further.remove(chosen)
    return further


def thin_grids(items: list[pytest.Item]) -> None:
    """Marks as slow every grid point beyond one occurrence of each value, separately for each backend. Of a table of
    planted mistakes, a third of the names remain: each is one more sentence found in the same way."""
    grids = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("slow") and not item.get_closest_marker("long"):
            grids[item.nodeid.split("[")[0], item.callspec.params.get("backend")].append(item)
    for grid in grids.values():
        further = beyond_each_value(grid)
        if "planted" in grid[0].callspec.params:
            kept = [item for item in grid if item not in further]
            further += [item for i, item in enumerate(kept) if i % 3]
        for item in further:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    thin_grids(items)
    if config.getoption("numprocesses", None) or "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(
            key=lambda item: by_cost(item.nodeid.split("::")[0].removeprefix("tests/"))
        )  # stable: each file's tests stay together
    if getattr(config.option, "loadgroup", False):  # a file is one group unless its tests name another
        for item in items:
            if not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    result = yield  # runs after -m has deselected
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and (why := why_no_gpu()):
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=gpu)
        config.stash[LEFT_OUT] = f"{len(gpu)} tests need a GPU and were left out: {why}"
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A pytest -n worker passes the message to the controller, which prints it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    if sentence := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = sentence


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if sentence := terminalreporter.config.stash.get(LEFT_OUT, ""):
        terminalreporter.write_line(sentence)


@pytest.fixture(scope="session", params=["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> str:
    """Runs the test in the simulator and, if there is one, on the GPU."""
    return request.param


@pytest.fixture(scope="session")
def solution(backend: str):
    """solution("task4") -> the operators of task 4's reference solution on this backend."""
    from common.compiling.load import load
    from common.compiling.request import BuildRequest

    return lambda task: load(BuildRequest(task, "solution", backend))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(autouse=True)
def gpu_memory_given_back():
    """Releases freed GPU memory: with pytest -n, several processes share one GPU."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 2**30:
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture
def much_memory():
    """For tests with tensors of more than 2^31 elements: needs 60 GiB of GPU memory."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    if free < 60 * 2**30:
        pytest.skip("needs 60 GiB of free GPU memory")


@pytest.fixture
def one_thread_without_gradients():
    """One thread: on a busy machine PyTorch's threads would wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)
