"""The operators of a room for the tensors at hand: built and loaded at first use, once per process.

    loaded("gemm", a.device).gemm_nn(a, b)

attention.py and the doors of the rooms (gemm/gemm.py, softmax/softmax.py, decode/decode.py) are made of it.
"""

from __future__ import annotations

import torch

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest

BACKENDS = {"cpu": "simulator", "cuda": "cuda"}  # by the tensors' device
_loaded: dict[tuple[str, str], Operators] = {}  # a plain dictionary: torch.compile sees through it


def loaded(room: str, device: torch.device | str) -> Operators:
    """The operators of a room of common/kernels that work on this device.

    The first call compiles what is out of date, which takes seconds to minutes; later ones take a look into a table.

    Args:
        room: its name, "gemm".
        device: of the tensors. On the CPU the simulator runs the kernels.

    Raises:
        ValueError: no kernels for this kind of device; no such room.
        BuildError, ToolchainError: see common.compiling.load.build.
    """
    kind = torch.device(device).type
    if kind not in BACKENDS:
        raise ValueError(f"device is {kind!r}; the kernels run on 'cuda', and in the simulator on 'cpu'")
    if (room, kind) not in _loaded:
        _loaded[room, kind] = load(BuildRequest(room, backend=BACKENDS[kind]))
    return _loaded[room, kind]
