"""The kind of device that a backend's tensors are on."""

import pytest


@pytest.fixture(scope="session")
def device(backend: str) -> str:
    return "cuda" if backend == "cuda" else "cpu"
