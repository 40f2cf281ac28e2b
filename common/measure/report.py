"""Common parts of measurement reports: the machine, and formatted times.

machine()            the GPU and the software versions
duration(seconds)    "2.85 ms"
"""

from __future__ import annotations

import os

import torch
from rich.console import Console

from common.compiling import toolchain
from common.console.terminal import say

NEEDS_GPU = 2  # exit status


def duration(seconds: float) -> str:
    """Three digits: "2.85 ms", "41.3 us", "412 us"."""
    scale, unit = (1e6, "us") if seconds < 0.9995e-3 else (1e3, "ms") if seconds < 0.9995 else (1, "s")
    value = seconds * scale
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


def machine() -> dict[str, str]:
    """The GPU and the software versions; without a GPU, the CPU that runs the simulator."""
    if not torch.cuda.is_available():
        return {"machine": f"CPU with {os.cpu_count()} cores, the simulator", "torch": torch.__version__}
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "SMs": str(torch.cuda.get_device_properties().multi_processor_count),
    }


def gpu_is_there(console: Console) -> bool:
    """Whether kernels can be built for and run on a GPU; if not, prints why."""
    backend = toolchain.choose_backend("auto")
    if backend.name == "cuda":
        return True
    found = backend.problem or backend.reason
    say(console, f"A benchmark needs a GPU; without one, --predict estimates the times of our kernels. Found: {found}")
    return False
