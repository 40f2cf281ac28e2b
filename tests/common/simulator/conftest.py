"""kernels/*.cu as one shared library for all processes and sessions.

`simulator` is the simulator's library; `library` is that one and, if there is a GPU, also the same files compiled by
nvcc: what these tests expect of the simulator must hold on a device.
"""

import os

import pytest
from simulator_library import SOURCES, Library, compile_library, compile_with_nvcc

from common.console.paths import build_root


@pytest.fixture(scope="session")
def simulator() -> Library:
    os.environ["SIMULATOR_TIMEOUT"] = "0.4"
    return Library(compile_library(SOURCES, build_root() / "tests" / "simulator"))


@pytest.fixture(scope="session", params=["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def library(request, tmp_path_factory) -> Library:
    if request.param == "simulator":
        return request.getfixturevalue("simulator")
    sources = [path for path in SOURCES if path.name != "errors.cu"]  # those errors would ruin the GPU context
    return Library(compile_with_nvcc(sources, tmp_path_factory.mktemp("gpu")), on_gpu=True)
