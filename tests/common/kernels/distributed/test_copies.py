"""Keys sent by the copy engines: on a machine with two GPUs; elsewhere, that the fallback works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common.kernels.distributed.copies import MOST_BYTES, size_of


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")
def test_call_after_call_is_what_one_gpu_computes():
    program = Path(__file__).with_name("many_calls.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_places_begin_at_multiples_of_what_a_copy_wants():
    one = torch.empty(3, 5, dtype=torch.bfloat16)
    assert size_of([one, one]) == 2 * 256
    assert size_of([torch.empty(64, dtype=torch.float32)]) == 256
    assert MOST_BYTES % 256 == 0
