"""Decoding by clusters in the simulator: CTAs that exchange states through distributed shared memory.

test_decode.py does the same on a GPU with clusters; its simulator builds run every block on its own.
"""

from __future__ import annotations

import pytest
import torch
from decode_inputs import LONG, check, tensors

from common.compiling.load import load
from common.compiling.request import BuildRequest


@pytest.fixture(scope="module")
def ops():
    return load(BuildRequest("decode", backend="simulator", arch="sm_90a", label="hopper"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_clusters(ops, dtype, head_dim):
    """8 blocks share a sequence."""
    check(ops, tensors(ops, dtype, LONG, head_dim=head_dim))
