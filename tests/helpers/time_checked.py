"""python tests/helpers/time_checked.py: CPU seconds of two kernels in the plain simulator, under --check and --profile.

A tiled 512 x 512 x 512 GEMM (task 2's solution) and FlashAttention on 1 x 4 x 512 x 64 (task 4's). The minimum of
three runs in the plain build; one run each in the checked build, whose times vary less.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.compiling.load import load  # noqa: E402
from common.compiling.request import BuildRequest  # noqa: E402
from common.compiling.variant import Variant  # noqa: E402
from common.inspect.checked_library import CHECK, PROFILE, CheckedLibrary  # noqa: E402


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process, all threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(1, 512, 512), torch.randn(1, 512, 512)
    query, key, value = (torch.randn(1, 4, 512, 64) for _ in range(3))
    kernels = {
        "GEMM 512^3": ("task2", lambda ops: ops.gemm_nn(a, b)),
        "flash attention 1x4x512x64": ("task4", lambda ops: ops.flash_attention(query, key, value, False)),
    }
    print(f"{'CPU seconds':28} {'plain':>8} {'check':>8} {'profile':>8}   check/plain")
    for name, (task, run) in kernels.items():
        ops = load(BuildRequest(task, Variant.SOLUTION, "simulator"))
        run(ops)
        plain = min(cpu_seconds(lambda ops=ops, run=run: run(ops)) for _ in range(3))
        ops = load(BuildRequest(task, Variant.SOLUTION, "simulator", checked=True))
        (checked,) = [CheckedLibrary(library.path) for library in ops.libraries]
        times = []
        for mode in (CHECK, PROFILE):
            checked.begin(mode)
            times.append(cpu_seconds(lambda ops=ops, run=run: run(ops)))
        checked.begin(0)
        print(f"{name:28} {plain:8.3f} {times[0]:8.3f} {times[1]:8.3f}   {times[0] / plain:.1f}", flush=True)


if __name__ == "__main__":
    main()
