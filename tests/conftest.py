"""Fixtures of all tests: the backend under test, and the operators of every solution, built once per session."""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

# Fork-safe and quiet: the tokenizers library warns when tests start compilers after using its threads
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# pytest -n: the processes share the cores, and so do the threads that each of them starts
if processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(processes))))

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = pytest.StashKey[str]()  # the sentence about the tests that need a GPU


def why_no_gpu() -> str:
    """Why there is no GPU that torch sees, with an nvcc to build for it; "" where there is one."""
    from common.compiling import toolchain

    backend = toolchain.choose_backend("auto")
    return "" if backend.name == "cuda" else backend.problem or backend.reason


# Files whose tests compile much, roughly by the processor time that they take. pytest -n hands out whole files, those
# of many tests first: one of few tests would come last, and one process would compile while others have no work.
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
    """What is imported and collected stays until the end: to look for garbage in it costs a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def values_of(item: pytest.Item) -> set[tuple]:
    """The values of a test's parameters. A row of a table, parametrize(("x", "y"), ...), is one value; in a table of
    planted mistakes the mistake's name, or the finding's kind, is."""
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
    """Points of a grid of parameters beyond those it takes for every value of every parameter to occur once."""
    values = {item: values_of(item) for item in items}
    missing, further = set().union(*values.values()), list(items)
    while missing:
        chosen = max(further, key=lambda item: len(values[item] & missing))  # the first of the best
        missing -= values[chosen]
        further.remove(chosen)
    return further


def thin_grids(items: list[pytest.Item]) -> None:
    """Marks as slow what a grid has beyond one occurrence of each value, for each backend by itself."""
    grids = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("slow") and not item.get_closest_marker("long"):
            grids[item.nodeid.split("[")[0], item.callspec.params.get("backend")].append(item)
    for grid in grids.values():
        for item in beyond_each_value(grid):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    thin_grids(items)
    if config.getoption("numprocesses", None) or "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(
            key=lambda item: by_cost(item.nodeid.split("::")[0].removeprefix("tests/"))
        )  # stable: the files stay whole
    if getattr(config.option, "loadgroup", False):  # a file is a group, but where its tests say which one they are in
        for item in items:
            if not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    result = yield  # -m leaves out what it leaves out
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and (why := why_no_gpu()):
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=gpu)
        config.stash[LEFT_OUT] = f"{len(gpu)} tests need a GPU and were left out: {why}"
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest -n hands the sentence to the one that prints."""
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
    """Every test that takes it runs in the simulator and, where there is one, on the GPU."""
    return request.param


@pytest.fixture(scope="session")
def solution(backend: str):
    """solution("task4") -> the operators of task 4's reference solution on this backend."""
    from common.compiling.load import load
    from common.compiling.request import BuildRequest

    return lambda task: load(BuildRequest(task, "solution", backend))


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(autouse=True)
def gpu_memory_given_back():
    """What a test freed isn't kept from the tests of other processes: pytest -n runs several on one GPU."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 2**30:
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture
def much_memory():
    """For tests of tensors with more than 2^31 elements: 60 GiB of GPU memory."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    if free < 60 * 2**30:
        pytest.skip("needs 60 GiB of free GPU memory")


@pytest.fixture
def one_thread_without_gradients():
    """On a busy machine PyTorch's threads would wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)
