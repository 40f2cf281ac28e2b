"""What of CUDA the simulator has not, and says so instead of "No such file".

refused_header("thrust/sort.h")     why it is not there; None for any other header
refused_names(code)                 [(position, why), ...] for textures and the like
"""

from __future__ import annotations

import re

_NEEDS_A_GPU = "the simulator has no {}: it runs the kernels that you write, not NVIDIA's libraries"
_HEADERS = (
    (r"thrust/", "Thrust (a std::vector and a loop do for tests; cub's block and warp parts are there)"),
    (r"cublas|cublas_v2\.h|cublasLt\.h", "cuBLAS (a matrix product in three loops does for tests)"),
    (r"cudnn", "cuDNN"),
    (r"cufft", "cuFFT"),
    (r"cusparse", "cuSPARSE"),
    (r"cusolver", "cuSOLVER"),
    (r"curand", "cuRAND (a few multiplications and shifts of a seed and the thread's index do for tests)"),
    (r"nccl", "NCCL"),
    (r"npp|nppi", "NPP"),
    (r"nvrtc|nvJitLink", "run-time compilation"),
    (r"optix", "OptiX"),
    (r"cutlass/|cute/", "CUTLASS"),
    (r"cuda_gl_interop\.h|GL/|helper_gl\.h", "OpenGL"),
)
_NAMES = (
    (
        r"tex[123]D\w*|tex1Dfetch|texCubemap\w*|surf[123]D\w+|cudaTextureObject_t|cudaSurfaceObject_t|cudaArray_t|"
        r"cudaCreateTextureObject|cudaMallocArray|texture(?=\s*<)",
        "the simulator has no textures and surfaces: read the array itself, with the index clamped by hand",
    ),
    (
        r"curand_init|curandState\w*",
        _NEEDS_A_GPU.format(_HEADERS[6][1]),
    ),
)


def refused_header(name: str) -> str | None:
    """Why the header is not there; None if it is none of these."""
    for pattern, what in _HEADERS:
        if re.match(pattern, name):
            return _NEEDS_A_GPU.format(what)
    return None


def refused_names(code: str) -> list[tuple[int, str]]:
    """Where the code names something that is not there, and why, in the order of the text."""
    found = []
    for names, why in _NAMES:
        found += [(match.start(), why) for match in re.finditer(rf"(?<![\w.])(?:{names})(?!\w)", code)]
    return sorted(found)
