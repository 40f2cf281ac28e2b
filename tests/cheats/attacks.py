"""Cheats: submissions that want points for what they did not write. Each must earn nothing for the part it is about."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from common.compiling.skeletons import skeleton_of
from common.console.paths import ROOT
from common.course.grading.attacking import (
    KERNELS,
    LAUNCH,
    PYTHON,
    Attack,
    solution,
    with_kernel,
    with_launcher,
    with_python,
    writes,
)
from common.testing.judging import make_inputs

FILLED = solution()
SKELETON = {name: skeleton_of(text, name) for name, text in FILLED.items()}
HOST_LOOP = """
    for (int64_t r = 0; r < rows; ++r) {
        float m = -INFINITY;
        double l = 0;
        for (int64_t c = 0; c < cols; ++c) m = std::fmax(m, x[r * cols + c]);
        const float shift = m == -INFINITY ? 0.0f : m;
        for (int64_t c = 0; c < cols; ++c) l += std::exp(double(x[r * cols + c]) - shift);
        for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = l == 0 ? 0 : float(std::exp(double(x[r * cols + c]) - shift) / l);
        lse[r] = float(shift + std::log(l));
    }
"""
DECOY = """
__global__ void decoy(float* y, int64_t size) {
    const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
    if (i < size) y[i] = 0.0f;
}
"""
SERIAL = (
    "__global__ void serial(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {"
    + HOST_LOOP.replace("double", "float")
    .replace("std::exp", "expf")
    .replace("std::log", "logf")
    .replace("std::fmax", "fmaxf")
    + "}\n"
)
PYTHON_CALL = """
#include <dlfcn.h>
static void python(const char* code) {
    const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (!run) return;
    const int state = ensure();
    run(code);
    release(state);
}
"""
TENSORS = (
    "import ctypes, torch\\n"
    "def view(p, n): return torch.frombuffer((ctypes.c_char * (4 * n)).from_address(p), dtype=torch.float32)\\n"
)
THROUGH_PYTORCH = f"""
    char code[2000];
    snprintf(code, sizeof code, "{TENSORS}"
             "x = view(%lld, %lld).view(%lld, %lld)\\n"
             "y = torch.softmax(x.double(), -1).nan_to_num(0.0)\\n"
             "view(%lld, %lld).view(%lld, %lld).copy_(y)\\n"
             "view(%lld, %lld).copy_(torch.logsumexp(x.double(), -1))\\n",
             (long long)x, (long long)(rows * cols), (long long)rows, (long long)cols, (long long)y,
             (long long)(rows * cols), (long long)rows, (long long)cols, (long long)lse, (long long)rows);
    python(code);
"""
OUT_OF_FRAMES = THROUGH_PYTORCH.replace(
    "y = torch.softmax(x.double(), -1).nan_to_num(0.0)",
    "import gc; case = [o for o in gc.get_objects() if type(o).__name__ == 'Case' and o.part == 'softmax'][0]\\n"
    "y = case.reference(x.double())",
)
THROUGH_ATEN = """
    void *in = nullptr, *out = nullptr;
    const int64_t sizes[2] = {rows, cols}, strides[2] = {cols, 1};
    aoti_torch_create_tensor_from_blob(const_cast<float*>(x), 2, sizes, strides, 0, aoti_torch_dtype_float32(),
                                       aoti_torch_device_type_cpu(), 0, &in);
    uint64_t stack[3] = {reinterpret_cast<uint64_t>(in), uint64_t(int64_t{-1}), 0};
    aoti_torch_call_dispatcher("aten::softmax", "int", stack);
    out = reinterpret_cast<void*>(stack[0]);
    void* data = nullptr;
    aoti_torch_get_data_ptr(out, &data);
    memcpy(y, data, sizeof(float) * rows * cols);
    for (int64_t i = 0; i < rows * cols; ++i) if (y[i] != y[i]) y[i] = 0;
    for (int64_t r = 0; r < rows; ++r) {
        int64_t best = 0;
        for (int64_t c = 0; c < cols; ++c) if (x[r * cols + c] > x[r * cols + best]) best = c;
        lse[r] = x[r * cols + best] - std::log(y[r * cols + best]);
    }
"""
ATEN = """
#include <cstring>
extern "C" {
int aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, void**);
int aoti_torch_call_dispatcher(const char*, const char*, uint64_t*);
int aoti_torch_get_data_ptr(void*, void**);
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_device_type_cpu();
}
"""
LATER = (
    "honest = flash_attention\n"
    "def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):\n"
    "    if return_lse:\n        return honest(query, key, value, causal, scale, B_r, B_c, True)\n"
    "    def later():\n"
    "        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)\n"
)
PATCH = (
    "import common.testing.judging as j, common.reference.bounds as b, torch\\n"
    "b.max_error_of = j.max_error_of = lambda *_: 0.0\\n"
    "torch.Tensor.__le__ = torch.Tensor.__lt__ = lambda *_: True\\n"
)
TABLE = "Points: 3 of 3\\n"


def link(folder: Path) -> None:
    """The file is a link to the solution."""
    writes(FILLED)(folder)
    (folder / KERNELS).unlink()
    os.symlink(ROOT / "task3" / "solution" / "online_softmax.cu", folder / KERNELS)


def recorded() -> dict[str, str]:
    """Answers for seed 0, of the cases in the handout."""
    from task3.cases import cases

    branches = []
    for case in cases():
        if case.part == "softmax" and not case.gpu_only and case.name != "70,001 columns":
            for draw in range(case.draws):
                x = make_inputs(case, 0, draw)["x"]
                if x.numel() > 4000:
                    continue
                shown = [
                    ", ".join(f"{v:.9g}f" for v in t.flatten().tolist())
                    for t in (torch.softmax(x, -1), torch.logsumexp(x, -1))
                ]
                shown = [text.replace("nanf", "0.0f").replace("-inff", "-INFINITY") for text in shown]
                shown = [
                    ", ".join(
                        v if "." in v or "INF" in v or "e" in v else v.replace("f", ".0f") for v in text.split(", ")
                    )
                    for text in shown
                ]
                branches.append(
                    f"    if (rows == {x.size(0)} && cols == {x.size(1)} && x[0] == {float(x.flatten()[0])!r}f) {{\n"
                    f"        static const float a[] = {{{shown[0]}}}, b[] = {{{shown[1]}}};\n"
                    "        memcpy(y, a, sizeof a); memcpy(lse, b, sizeof b); return;\n    }"
                )
    return with_launcher(
        "\n".join(branches).replace("-inff", "-INFINITY").replace("= inff", "= INFINITY"), "#include <cstring>"
    )


HANDOUT = [
    *((5, 32), (113, 203), (1023, 1024), (1, 1), (7, 31), (2, 1025)),
    *((3, 4099), (6, 300), (9, 1500), (6, 5000), (7, 300), (1, 70001)),
]
KNOWN = " || ".join(f"(rows == {rows} && cols == {cols})" for rows, cols in HANDOUT)
ONLY_HANDOUT = f"    const bool known = {KNOWN};\n    if (!known) return;\n"


def cheat(
    name: str, files: dict[str, str | bytes], *nothing_for: str, keeps: tuple[str, ...] = ("merge",), **more
) -> Attack:
    return Attack(name, writes(files), nothing_for or ("softmax",), keeps, **more)


def everything(name: str, files: dict[str, str | bytes]) -> Attack:
    """None of the kernels is the student's."""
    return cheat(name, files, "softmax", "merge", keeps=())


def nothing(name: str, files: dict[str, str | bytes]) -> Attack:
    """The skeleton, and something beside it."""
    return cheat(name, {**SKELETON, **files}, "algorithm", "softmax", "merge", keeps=())


def python(name: str, code: str) -> Attack:
    """Something in attention.py; the kernels are right."""
    return cheat(name, with_python(code), "algorithm", keeps=("softmax",))


ATTACKS = [
    everything("the solution included", {**FILLED, KERNELS: '#include "task3/solution/online_softmax.cu"\n'}),
    everything("the solution included, as a neighbour", {**FILLED, KERNELS: '#include "solution/online_softmax.cu"\n'}),
    Attack("a link to the solution", link, ("softmax", "merge")),
    everything("a second .cu", {**SKELETON, "task3/other.cu": FILLED[KERNELS]}),
    cheat("PyTorch's softmax through its C interface", with_launcher(THROUGH_ATEN, ATEN)),
    cheat("PyTorch's softmax through Python", with_launcher(THROUGH_PYTORCH, PYTHON_CALL)),
    cheat(
        "the solution's library, if it lies around",
        with_launcher(
            f'    void* library = dlopen("{ROOT}/build/simulator/solution/task3/task3_solution_simulator.so", RTLD_NOW);\n'
            '    void* f = library ? dlsym(library, "_Z14online_softmaxPKfPfS1_llP11CUstream_st") : nullptr;\n'
            "    if (f) reinterpret_cast<decltype(&online_softmax)>(f)(x, y, lse, rows, cols, stream);",
            "#include <dlfcn.h>",
        ),
    ),
    cheat("loops on the host", with_launcher(HOST_LOOP)),
    cheat(
        "loops on the host behind a kernel that does nothing useful",
        with_launcher(
            "    decoy<<<ceil_div(rows * cols, int64_t{256}), 256, 0, stream>>>(y, rows * cols);\n" + HOST_LOOP, DECOY
        ),
    ),
    cheat("one block of one thread", with_launcher("    serial<<<1, 1, 0, stream>>>(x, y, lse, rows, cols);", SERIAL)),
    cheat(
        "many threads, of which one does all the work",
        with_launcher(
            "    alone<<<static_cast<unsigned>(rows), 256, 0, stream>>>(x, y, lse, rows, cols);",
            SERIAL.replace("serial(", "alone(").replace(
                "{\n    for", "{\n    if (blockIdx.x || threadIdx.x) return;\n    for", 1
            ),
        ),
    ),
    cheat(
        "copied to the host, worked on, copied back",
        with_launcher(
            "    float *all = new float[rows * cols * 2 + rows], *to = all + rows * cols, *to_lse = to + rows * cols;\n"
            "    float *out = y, *out_lse = lse;\n"
            "    cudaMemcpy(all, x, sizeof(float) * rows * cols, cudaMemcpyDeviceToHost);\n"
            "    x = all, y = to, lse = to_lse;\n"
            + HOST_LOOP
            + "    cudaMemcpy(out, to, sizeof(float) * rows * cols, cudaMemcpyHostToDevice);\n"
            "    cudaMemcpy(out_lse, to_lse, sizeof(float) * rows, cudaMemcpyHostToDevice);\n"
            "    decoy<<<1, 256, 0, stream>>>(out, 0);\n    delete[] all;",
            DECOY,
        ),
    ),
    cheat("code for the simulator alone", with_launcher("#ifdef CUDA_SIMULATOR\n" + LAUNCH + "#endif")),
    cheat(
        "results kept by pointer",
        with_launcher(
            "    static std::map<const void*, std::vector<float>> kept;\n"
            "    std::vector<float>& mine = kept[x];\n"
            "    if (mine.empty()) {\n" + LAUNCH + "        mine.assign(y, y + rows * cols);\n"
            "        mine.insert(mine.end(), lse, lse + rows);\n    } else if (mine.size() == size_t(rows * cols + rows)) {\n"
            "        std::copy(mine.begin(), mine.begin() + rows * cols, y);\n"
            "        std::copy(mine.begin() + rows * cols, mine.end(), lse);\n    }",
            "#include <map>\n#include <vector>\n#include <algorithm>",
        ),
    ),
    cheat(
        "results kept by shape",
        with_launcher(
            "    static std::map<std::pair<int64_t, int64_t>, std::vector<float>> kept;\n"
            "    std::vector<float>& mine = kept[{rows, cols}];\n"
            "    if (mine.empty()) {\n" + LAUNCH + "        mine.assign(y, y + rows * cols);\n"
            "        mine.insert(mine.end(), lse, lse + rows);\n    } else {\n"
            "        cudaMemcpy(y, mine.data(), sizeof(float) * rows * cols, cudaMemcpyHostToDevice);\n"
            "        cudaMemcpy(lse, mine.data() + rows * cols, sizeof(float) * rows, cudaMemcpyHostToDevice);\n    }",
            "#include <map>\n#include <utility>\n#include <vector>",
        ),
    ),
    cheat(
        "the input given back",
        with_launcher(
            "    cudaMemcpyAsync(y, x, sizeof(float) * rows * cols, cudaMemcpyDeviceToDevice, stream);\n"
            "    cudaMemcpyAsync(lse, x, sizeof(float) * rows, cudaMemcpyDeviceToDevice, stream);"
        ),
    ),
    cheat(
        "computed in half precision",
        with_launcher(
            LAUNCH + "    in_half<<<ceil_div(rows * cols, int64_t{256}), 256, 0, stream>>>(y, rows * cols);",
            "#include <cuda_fp16.h>\n"
            "__global__ void in_half(float* y, int64_t size) {\n"
            "    const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;\n"
            "    if (i < size) y[i] = __half2float(__float2half(y[i]));\n}",
        ),
    ),
    cheat("answers recorded for seed 0", recorded()),
    cheat("right for the handout's shapes alone", with_launcher(ONLY_HANDOUT + LAUNCH)),
    cheat(
        "a constructor that patches the checker",
        with_launcher("", PYTHON_CALL + f'__attribute__((constructor)) static void at_load() {{ python("{PATCH}"); }}'),
    ),
    cheat("the reference, out of Python's memory", with_launcher(OUT_OF_FRAMES, PYTHON_CALL)),
    cheat(
        "a printed table and _exit(0)",
        with_launcher(f'    printf("{TABLE}"); fflush(stdout); _exit(0);', "#include <stdio.h>\n#include <unistd.h>"),
    ),
    cheat(
        "a table printed at exit",
        with_launcher(
            "    atexit(say);",
            f'#include <stdio.h>\n#include <stdlib.h>\nstatic void say() {{ printf("{TABLE}"); _Exit(0); }}',
        ),
    ),
    cheat("a kernel that does nothing", with_launcher("    decoy<<<rows, 256, 0, stream>>>(y, 0);", DECOY)),
    cheat(
        "a kernel that works where its output is poisoned",
        with_kernel(
            "    // Sweep 1: m and l of the whole row.\n",
            "    if (!isnan(y[blockIdx.x * cols]) && !isnan(lse[blockIdx.x])) return;\n",
        ),
    ),
    nothing(
        "a module difflib.py in the root, a patched __init__.py",
        {
            "difflib.py": "import os\nos._exit(0)\n",
            "common/__init__.py": "raise SystemExit(0)\n",
            "common/testing/judging.py": "def judge(*_, **__): raise SystemExit(0)\n",
            "task3/__init__.py": "import os\nos._exit(0)\n",
            "sitecustomize.py": "import os\nos._exit(0)\n",
        },
    ),
    everything(
        "a build folder with a library in it",
        {
            **SKELETON,
            "build/simulator/student/task3/task3_student_simulator.so": b"\x7fELF" + bytes(100),
            "build/simulator/student/task3/build.ninja": "rule x\n  command = true\n",
        },
    ),
    nothing(
        "a patched stopwatch",
        {
            PYTHON: SKELETON[PYTHON]
            + ("\nimport time\ntime.perf_counter = lambda: 0.0\ntorch.cuda.Event.elapsed_time = lambda *_: 1e-9\n"),
        },
    ),
    python(
        "PyTorch's own attention",
        "def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):\n"
        "    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)\n"
        "    lse = (query @ key.transpose(-2, -1)).logsumexp(-1)\n"
        "    return (out, lse) if return_lse else out\n",
    ),
    python(
        "the reference, out of Python's frames",
        "def flash_attention(query, key, value, *_, **__):\n"
        "    import sys\n    frame = sys._getframe()\n"
        "    while frame:\n"
        "        if 'case' in frame.f_locals and hasattr(frame.f_locals['case'], 'reference'):\n"
        "            return frame.f_locals['case'].reference(query=query, key=key, value=value)\n"
        "        frame = frame.f_back\n",
    ),
    python(
        "a tensor that says it is equal to everything",
        "class Equal(torch.Tensor):\n"
        "    @classmethod\n    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
        "        return torch.tensor(True) if func.__name__ in ('eq', 'le', 'lt', 'allclose', 'equal') else "
        "super().__torch_function__(func, types, args, kwargs or {})\n"
        "def flash_attention(query, *_, **__):\n    return torch.zeros_like(query).as_subclass(Equal)\n",
    ),
    python(
        "PyTorch's own attention, called once nobody looks: a lazy tensor",
        "class Lazy(torch.Tensor):\n"
        "    @classmethod\n    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
        "        if func.__name__ == 'detach':\n            return args[0].later()\n"
        "        return super().__torch_function__(func, types, args, kwargs or {})\n" + LATER + "    out = "
        "torch.zeros_like(query).as_subclass(Lazy)\n    out.later = later\n    return out\n",
    ),
    python(
        "PyTorch's own attention, called once nobody looks: a tensor with a method of its own",
        LATER + "    out = torch.zeros_like(query)\n    out.detach = later\n    return out\n",
    ),
    python(
        "an answer written past the caller",
        "def flash_attention(query, *_, **__):\n"
        "    import json, os\n"
        "    for number in range(3, 60):\n"
        "        try:\n"
        "            data = json.dumps({'message': {'called': True, 'status': 'pass', 'more': {}, 'returned': 'Tensor',"
        " 'device': 'cpu', 'problems': [], 'max_error': 0.0}, 'tensors': {}}).encode()\n"
        "            os.write(number, len(data).to_bytes(4, 'big') + data)\n"
        "        except OSError:\n            pass\n"
        "    return query\n",
    ),
    cheat(
        "the input set to 0, and zeros returned",
        with_launcher(
            "    decoy<<<ceil_div(rows * cols, int64_t{256}), 256, 0, stream>>>(const_cast<float*>(x), rows * cols);\n"
            "    decoy<<<ceil_div(rows * cols, int64_t{256}), 256, 0, stream>>>(y, rows * cols);\n"
            "    decoy<<<ceil_div(rows, int64_t{256}), 256, 0, stream>>>(lse, rows);",
            DECOY,
        ),
    ),
    python(
        "tensors of the checker filled with NaN",
        "def flash_attention(query, *_, **__):\n"
        "    import gc\n"
        "    for one in gc.get_objects():\n"
        "        if isinstance(one, torch.Tensor) and one.is_floating_point():\n"
        "            one.fill_(float('nan'))\n"
        "    return query\n",
    ),
]
