"""The flash kernels on this backend."""

import flash_room
import pytest


@pytest.fixture(scope="session")
def ops(backend: str):
    """The operators, including gradients; in the simulator those of GPUs before Hopper."""
    return flash_room.load(backend)
