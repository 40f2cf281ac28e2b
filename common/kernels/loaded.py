"""The operators of a kernel folder for given tensors: built and loaded on first use, once per process.

    loaded("gemm", a.device).gemm_nn(a, b)

attention.py and the Python APIs of the folders (gemm/gemm.py, softmax/softmax.py, decode/decode.py) are built on it.
"""

from __future__ import annotations

import torch

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest

BACKENDS = {"cpu": "simulator", "cuda": "cuda"}  # by tensor device
_loaded: dict[tuple[str, str], Operators] = {}  # a plain dict: torch.compile can trace through it


def loaded(room: str, device: torch.device | str) -> Operators:
    """The operators of a folder of common/kernels for this device.

    The first call compiles what is out of date, which takes seconds to minutes; later ones are a dict lookup.

    Args:
        room: the folder's name, "gemm".
        device: of the tensors. On the CPU the simulator runs the kernels.

    Raises:
        ValueError: no kernels for this type of device; no such folder.
        BuildError, ToolchainError: see common.compiling.load.build.
    """
    kind = torch.device(device).type
    if kind not in BACKENDS:
        raise ValueError(f"device is {kind!r}; the kernels run on 'cuda', and in the simulator on 'cpu'")
    if (room, kind) not in _loaded:
        _loaded[room, kind] = load(BuildRequest(room, backend=BACKENDS[kind]))
    return _loaded[room, kind]
