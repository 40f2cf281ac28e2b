"""The kind of device that the tensors of a backend are on."""

import pytest


@pytest.fixture(scope="session")
def device(backend: str) -> str:
    return "cuda" if backend == "cuda" else "cpu"
