"""Named GPUs, and how many blocks fit on their SMs: by hand, and compared with NVIDIA's own cuda_occupancy.h."""

import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from common.compiling import toolchain
from common.measure.gpus import CAPABILITIES, GPUS, KB, find, occupancy

# float32 TFLOP/s from data sheets and white papers; the code computes them from SMs, lanes and clock
DATA_SHEETS = {
    "V100": 15.7,
    "T4": 8.1,
    "RTX 2080 Ti": 13.4,
    "A100 40GB": 19.5,
    "A100 80GB": 19.5,
    "A10": 31.2,
    "RTX A6000": 38.7,
    "RTX 3080": 29.8,
    "RTX 3090": 35.6,
    "L4": 30.3,
    "L40S": 91.6,
    "RTX 4080": 48.7,
    "RTX 4090": 82.6,
    "H100 PCIe": 51.2,
    "H100 SXM": 67.0,
    "H200": 67.0,
    "RTX 5090": 104.8,
}


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_float32_rate_is_that_of_the_data_sheet(gpu):
    assert gpu.fp32 / 1e12 == pytest.approx(DATA_SHEETS[gpu.name], rel=0.01)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h200", "H200"),
        ("NVIDIA H200", "H200"),
        ("Tesla T4", "T4"),
        ("rtx-4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("a100", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h100 pcie", "H100 PCIe"),
    ],
)
def test_names_are_found_however_they_are_spelled(name, found):
    assert find(name).name == found


def test_an_unknown_name_is_explained():
    with pytest.raises(ValueError, match=r"GPU is 'H20O'; did you mean H200\? known are V100, T4"):
        find("H20O")
    with pytest.raises(ValueError, match="known are V100"):
        find("Voodoo 2")


@pytest.mark.parametrize(
    ("gpu", "threads", "shared", "registers", "blocks", "fraction", "limiter"),
    [
        ("h200", 256, 0, None, 8, 1.0, "threads"),
        ("h200", 256, 0, 32, 8, 1.0, "threads"),
        ("h200", 256, 0, 33, 6, 0.75, "registers"),  # 33 * 32 -> 1280 per warp: 12 warps per scheduler
        ("h200", 256, 0, 128, 2, 0.25, "registers"),
        ("h200", 1024, 0, 255, 0, 0.0, "registers"),
        ("h200", 1024, 0, 64, 1, 0.5, "registers"),
        ("h200", 32, 0, None, 32, 0.5, "blocks"),
        ("h200", 256, 100 * KB, None, 2, 0.25, "shared memory"),
        ("h200", 256, 227 * KB, None, 1, 0.125, "shared memory"),
        ("h200", 256, 227 * KB + 1, None, 0, 0.0, "shared memory"),
        ("a100", 128, 48 * KB, None, 3, 12 / 64, "shared memory"),  # 49 KB each of 164
        ("rtx 4090", 32, 0, None, 24, 0.5, "blocks"),
        ("rtx 4090", 512, 16 * KB, None, 3, 1.0, "threads"),
        ("t4", 1024, 0, 64, 1, 1.0, "threads"),
        ("t4", 64, 32 * KB, None, 2, 4 / 32, "shared memory"),
        ("t4", 96, 0, None, 10, 30 / 32, "threads"),
    ],
)
def test_occupancy_by_hand(gpu, threads, shared, registers, blocks, fraction, limiter):
    found = occupancy(find(gpu), threads, shared, registers)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.fraction == pytest.approx(fraction)
    assert found.warps == blocks * -(-threads // 32)


@pytest.mark.parametrize(("threads", "shared"), [(0, 0), (1025, 0), (32, -1)])
def test_bad_arguments(threads, shared):
    with pytest.raises(ValueError, match=r"threads is|shared_bytes is"):
        occupancy(find("t4"), threads, shared)


ORACLE = """
#include <cstdio>
#include <cuda_occupancy.h>
// major minor threads_per_sm shared_per_sm shared_per_block reserved | threads shared registers -> blocks
int main() {
    int major, minor, resident, per_sm, per_block, reserved, threads, shared, registers;
    while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &resident, &per_sm, &per_block, &reserved, &threads,
                 &shared, &registers) == 9) {
        cudaOccDeviceProp device;
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = resident;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 << 10;
        device.sharedMemPerMultiprocessor = per_sm;
        device.numSms = 1;
        device.sharedMemPerBlockOptin = per_block;
        device.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024;
        kernel.numRegs = registers;
        kernel.sharedSizeBytes = 0;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = shared;
        kernel.numBlockBarriers = 1;
        cudaOccDeviceState state;
        cudaOccResult result;
        cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared);
        printf("%d\\n", result.activeBlocksPerMultiprocessor);
    }
}
"""
THREADS = (1, 32, 33, 64, 96, 128, 160, 256, 320, 512, 768, 1024)
SHARED = (0, 1, 1000, 1024, 4096, 20_000, 33_333, *(size * KB for size in (48, 49, 64, 96, 99, 227)))
REGISTERS = (16, 24, 32, 33, 40, 41, 64, 72, 96, 128, 168, 255)


def occupancy_header() -> Path | None:
    for nvcc in toolchain.all_nvccs():
        for folder in nvcc.include_dirs():
            if (folder / "cuda_occupancy.h").is_file():
                return folder
    return None


def test_occupancy_is_that_of_nvidias_header(tmp_path):
    include = occupancy_header()
    if include is None or not shutil.which("g++"):
        pytest.skip("needs g++ and the CUDA toolkit's cuda_occupancy.h")
    (tmp_path / "oracle.cpp").write_text(ORACLE)
    subprocess.run(["g++", f"-I{include}", "oracle.cpp", "-o", "oracle"], cwd=tmp_path, check=True)
    asked, ours = [], []
    for capability in CAPABILITIES:
        gpu = next(gpu for gpu in GPUS if gpu.capability == capability)
        limits = gpu.limits
        device = [*capability, limits.threads, limits.shared_per_sm, limits.shared_per_block, limits.shared_reserved]
        for block in product(THREADS, SHARED, REGISTERS):
            asked.append([*device, *block])
            ours.append(occupancy(gpu, *block).blocks)
    text = "\n".join(" ".join(map(str, row)) for row in asked)
    done = subprocess.run([tmp_path / "oracle"], input=text, capture_output=True, text=True, check=True)
    theirs = [int(line) for line in done.stdout.split()]
    assert len(theirs) == len(ours) > 10_000
    wrong = [(row, a, b) for row, a, b in zip(asked, ours, theirs, strict=True) if a != b]
    assert wrong == []
