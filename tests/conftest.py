"""Fixtures of all tests: the backend under test, and the operators of every solution, built once per session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Fork-safe and quiet: the tokenizers library warns when tests start compilers after using its threads
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# pytest -n: the processes share the cores, and so do the threads that each of them starts
if processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(processes))))

ROOT = Path(__file__).resolve().parent.parent


def gpu_can_be_used() -> bool:
    """A GPU that torch sees and an nvcc to build for it."""
    from common.compiling import toolchain

    return toolchain.choose_backend("auto").name == "cuda"


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("numprocesses", None) or "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(
            key=lambda item: by_cost(item.nodeid.split("::")[0].removeprefix("tests/"))
        )  # stable: the files stay whole
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not gpu_can_be_used():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and a matching nvcc"))


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


@pytest.fixture
def much_memory():
    """For tests of tensors with more than 2^31 elements: 60 GiB of GPU memory, given back afterwards."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    if free < 60 * 2**30:
        pytest.skip("needs 60 GiB of free GPU memory")
    yield
    torch.cuda.empty_cache()


@pytest.fixture
def one_thread_without_gradients():
    """On a busy machine PyTorch's threads would wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)
