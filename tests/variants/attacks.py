"""Honest submissions: every task's solution and every right variant. None may lose a point."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from variants import FOLDER, text_with_variants, variants_of

from common.compiling.manifest import read_manifest, tasks
from common.compiling.skeletons import parse, skeleton_of
from common.console.paths import ROOT
from common.course.grading.attacking import Attack, solution, with_python, writes

PARTS = {  # folder of variants -> the parts that its kernel determines
    "task1_naive_attention": ("scores", "softmax", "output", "attention"),
    "task2_gemm_nn": ("gemm",),
    "task2_gemm_nt": ("gemm",),
    "task2_softmax": ("softmax",),
    "task3_online_softmax": ("softmax",),
    "task4_flash_attention": ("full", "causal"),
    "task5_block_sparse": ("blocks",),
    "task5_sliding_window": ("window",),
    "task6_decode_attention": ("decode", "generate", "pipeline"),
}

IN_CUDA = """#include <device_launch_parameters.h>
#include <math_constants.h>
#include <mma.h>
#include <utility>
#include <cuda/std/complex>
#if 0
This didn't work, though it's 1'000 times as "fast
#endif
#ifdef CUDA_VERSION
using AtHome = float;
#endif
template <float (*Op)(float, float)> __device__ float folded(float v) { return Op(v, __shfl_xor_sync(~0u, v, 1)); }
__device__ float largest(float a, float b) { return fmaxf(a, b); }
__global__ void others(float* x, int n) {
    __builtin_assume(n > 0);
    const long long begun = clock64() + clock();
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    cuda::std::complex<float> z(x[0], x[1]);
    z = z * z / exp(z);
    x[threadIdx.x] = folded<largest>(float(n)) + norm3df(x[0], x[1], x[2]) + __fadd_rz(abs(z), clock64() - begun + time);
}
void launched(float* x, cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = 1, config.blockDim = 32, config.stream = stream;
    cudaLaunchKernelEx(&config, others, x, 1);
}
template <char N> __global__ void one(float* x) {
    __shared__ struct Named { float a; } named;
    Named& same = named;
    *x = same.a = N;
}
struct Rows {
    float* data;
    alignas(32) int64_t cols;
    __host__ __device__ Rows(float* data, int64_t cols) : data(data), cols(cols) {}
    __host__ __device__ Rows(const Rows& other) : data(other.data), cols(other.cols) {}
};
struct Last {
    int n;
    ~Last() {}
};
__global__ void eight(const Rows x, int a, int b, int c, int d, int e, Rows y, Last last) {
    y.data += threadIdx.x;
    __syncthreads();
    const bool is_right = y.data - x.data == threadIdx.x && x.cols == 8 && a + b + c + d + e == 15 && last.n == 7;
    if (!is_right || reinterpret_cast<uintptr_t>(&y) % 32) *x.data = NAN;
}
#pragma pack(push, 1)
struct Tight { char a; float b; };
#pragma pack(pop)
template <int N> __global__ void for_a_warp$(float* x) {
    using namespace nvcuda::wmma;
    __shared__ float tile[256];
    fragment<matrix_a, 16, 16, 16, half, row_major> a;
    fragment<matrix_b, 16, 16, 16, half, col_major> b;
    fragment<accumulator, 16, 16, 16, float> c;
    fill_fragment(a, __float2half(1.0f)), fill_fragment(b, __float2half(2.0f)), fill_fragment(c, 0.0f);
    mma_sync(c, a, b, c), store_matrix_sync(tile, c, 16, mem_row_major);
    __syncwarp();
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(x), "f"(tile[threadIdx.x] - 32.0f));
    const unsigned same = __match_any_sync(~0u, threadIdx.x / 2), sum = __reduce_add_sync(~0u, threadIdx.x);
    if (same != 3u << threadIdx.x / 2 * 2 || sum != 496 || sizeof(Tight) != 5) *x = NAN;
}
void launch_eight(float* x, cudaStream_t stream) {
    void (*chosen)(float*) = for_a_warp$<1>;
    void* pointer[] = {&x};
    const auto refused = cudaLaunchKernel((const void*)chosen, 1, 32, pointer, 300 << 10, stream);
    const auto done = cudaLaunchKernel(reinterpret_cast<const void*>(chosen), 1, 32, pointer, 0, stream);
    if (!refused || done || cudaGetLastError() != refused) throw 8;
    eight<<<1, 32, 0, stream>>>(Rows(x, 8), 1, 2, 3, 4, 5, Rows(x, 4), Last{7});
    Rows rows(x, 8);
    int three = 3;
    Last last{7};
    void* args[] = {&rows, &three, &three, &three, &three, &three, &rows, &last};
    cudaLaunchKernel((const void*)eight, 1, 32, args, 0, stream);
}
template <int... N> void each(float* x, std::integer_sequence<int, N...>) { (one<N><<<1, 32>>>(x), ...); }
void all(float* x) { each(x, std::make_integer_sequence<int, 3>()), one<'3'><<<1, 32>>>(x); }

"""


def variant(name: str) -> Attack:
    """The solution with one kernel written another way."""
    folder = name.split("/")[0]
    task = folder.split("_")[0]
    files = everything() if task == "task6" else solution(task)  # its pipeline builds on task 4
    words = {"task5_block_sparse": "sparse_attention", "task5_sliding_window": "sparse_attention"}.get(folder, "")
    file = next(one for one in read_manifest(task).kernels if words in one)
    text = text_with_variants(ROOT / task / "solution" / file, [FOLDER / f"{name}.cu"])
    text = text.replace("chosen_variant = 0", "chosen_variant = 1")
    lines = [line for line in text.split("\n") if not line.startswith("#line ")]
    files[f"{task}/{file}"] = "\n".join(lines)
    return Attack(f"{task}: {name.split('/')[1]} ({folder.split('_', 1)[1]})", writes(files), (), PARTS[folder], task)


def whole(task: str) -> Attack:
    from importlib import import_module

    cases = import_module(f"{task}.cases")
    every = [*cases.cases(), *getattr(cases, "graded", list)()]
    parts = dict.fromkeys(one.part for one in every if one.points)
    return Attack(f"{task}: the solution", writes(solution(task)), (), tuple(parts), task)


def everything() -> dict[str, str]:
    return {name: text for task in tasks() for name, text in solution(task).items()}


def model() -> Attack:
    """Task 7 builds on tasks 4 and 6."""
    return Attack("task7: the solution", writes(everything()), (), whole("task7").all_for, "task7")


def begun() -> Attack:
    """Two of task 2's gaps are filled, the others are as handed out."""
    ((name, text),) = solution("task2").items()
    texts = [one.skeleton() if (one.number or 0) > 2 else one.lines for one in parse(text, name)]
    files = {name: "\n".join(line for lines in texts for line in lines)}
    return Attack("task2: gaps 1 and 2 alone", writes(files), (), ("row-sums",), "task2")


def by_pointer() -> Attack:
    """A reduction that takes its operator as a function pointer, which nvcc compiles without a call."""
    ((name, text),) = solution("task2").items()
    for old, new in (
        ("template <typename Combine>\n__device__ __forceinline__ void block_reduce", "__device__ void block_reduce"),
        ("float* partial, Combine combine)", "float* partial, float (*combine)(float, float))"),
        ("block_reduce(partial, Max());", "block_reduce(partial, larger);"),
        ("block_reduce(partial, Sum());", "block_reduce(partial, sum_of);"),
        (
            "struct Max {",
            "__device__ float larger(float a, float b) { return fmaxf(a, b); }\n"
            "__device__ float sum_of(float a, float b) { return a + b; }\nstruct Max {",
        ),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return Attack("task2: block_reduce by a function pointer", writes({name: text}), (), ("softmax", "gemm"), "task2")


def in_cuda() -> Attack:
    """CUDA that few submissions use: launches by address, headers, constants, functions as template arguments."""
    ((name, text),) = ((one, file) for one, file in solution("task1").items() if one.endswith(".cu"))
    before = "__device__ __forceinline__ int64_t thread_number() {"
    for old, new in (
        (before, f"{IN_CUDA}{before}"),
        ("float sum = 0.0f;", "float sum = CUDART_ZERO_F;"),
        (
            "softmax_kernel<<<blocks_for(rows), THREADS, 0, stream>>>(scores, weights, rows, cols);",
            "void* args[] = {&scores, &weights, &rows, &cols};\n"
            "    cudaLaunchKernel((void*)softmax_kernel, blocks_for(rows), THREADS, args, 0, stream);\n"
            "    launch_eight(weights, stream);",
        ),
        (
            "output_kernel<<<blocks_for(batch_heads * S_q * head_dim), THREADS, 0, stream>>>(\n"
            "        weights, value, out, batch_heads, S_q, S_k, head_dim);",
            "void* args[] = {&weights, &value, &out, &batch_heads, &S_q, &S_k, &head_dim};\n"
            "    cudaLaunchKernel((const void*)output_kernel<T>, blocks_for(batch_heads * S_q * head_dim), THREADS, args, 0, "
            "stream);",
        ),
    ):
        assert old in text, old
        text = text.replace(old, new)
    return Attack("task1: CUDA that few use", writes({name: text}), (), PARTS["task1_naive_attention"], "task1")


def in_python(task: str, part: str) -> list[Attack]:
    """The solution with its attention.py written another way."""
    found = []
    for file in sorted((FOLDER / f"{task}_{part}").glob("*.py")):
        files = {**solution(task), f"{task}/attention.py": file.read_text(encoding="utf-8")}
        found.append(Attack(f"{task}: {file.stem} ({part})", writes(files), (), (part,), task))
    return found


def archived(folder: Path) -> Path:
    """A tar whose files are links to earlier ones, in Task3/, next to the whole handout, with a zip at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    handed = {
        f"handout/{name}": skeleton_of(text, name) for t in ("task2", "task3") for name, text in solution(t).items()
    }
    (folder / "empty.zip").write_bytes(b"PK\5\6" + bytes(18))
    with tarfile.open(folder / "one.tar", "w") as archive:
        for name, text in (
            *handed.items(),
            *((name.removeprefix("task3/"), x) for name, x in solution("task3").items()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
        for name in solution("task3"):
            info = tarfile.TarInfo(name.replace("task3", "Task3"))
            info.type, info.linkname = tarfile.LNKTYPE, name.removeprefix("task3/")
            archive.addfile(info)
        archive.add(folder / "empty.zip", "Task3/notes.zip")
    return folder / "one.tar"


STYLES = """
import copy
import numpy as np
import torch.utils.benchmark
from torch.profiler import profile, record_function

torch.backends.cuda.matmul.allow_tf32 = False
tidy = output_of

@torch.inference_mode
@torch.no_grad
def output_of(state):
    assert state.O.shape[:-1].numel() == (state.l.shape[:0] + state.l.shape).numel()
    kept = copy.deepcopy(state.l)
    del kept
    l, m = copy.copy(state.l), torch.Tensor.maximum(state.m, state.m)
    m = m.squeeze_(-1).unsqueeze_(-1)
    return +(np.float64(1) * tidy(RowState(m, l, state.O)))
"""


LAYER = {  # lines of task 1's layer -> the same in other words
    "            future = torch.ones(seq_len, seq_len, dtype=torch.bool, device=x.device).triu(diagonal=1)": """
            import numpy as np
            future = torch.from_numpy(np.triu(np.ones((seq_len, seq_len)), k=1).astype("uint8")).to(x.device) == 1
            rows, cols = torch.meshgrid(torch.arange(seq_len), torch.arange(seq_len), indexing="ij")
            assert torch.less(rows, cols).bitwise_and(torch.ones(1, dtype=bool)).eq(future).all()
            assert not torch.bitwise_not(torch.greater_equal(rows, cols)).not_equal(future).any()
            future = future[torch.newaxis]""",
    "        scores = query @ key.transpose(-2, -1) / self.head_dim**0.5": """
        scale = torch.sqrt(torch.FloatTensor([self.head_dim])).to(next(self.parameters()).device)
        scores = torch.matmul(query, key.clone().transpose_(-2, -1)).div_(scale.unsqueeze_(0)) * torch.Tensor([1])
        again = scores.remainder(2).add_(2 * torch.floor_divide(scores, 2))
        assert torch.allclose(scores, again, atol=1e-4) and torch.equal(*torch.broadcast_tensors(x[:1], x[:1]))
        assert scores.aminmax().max == scores.max() and torch.special.softmax(scores, -1).amin() >= 0""",
    "        weights = torch.softmax(scores, dim=-1)": """
        weights = torch.concatenate([torch.softmax(one, dim=-1) for one in scores.split(1, dim=1)], dim=1)
        assert torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]), atol=1e-5)
        weights = torch.nn.Identity()(torch.nn.Dropout(0.0)(torch.nn.functional.dropout(weights, 0.0)))
        assert torch.numel(weights) == weights.ravel().shape[0] == weights.nbytes // weights.itemsize
        print(f"mean weight {weights.mean():.3f}, {torch.diag(weights[0, 0]).to(float).sum()}")""",
}


def in_other_words() -> Attack:
    """Task 1's layer in PyTorch that few write."""
    files = solution("task1")
    for old, new in LAYER.items():
        assert files["task1/attention.py"].count(old) == 1, old
        files["task1/attention.py"] = files["task1/attention.py"].replace(old, new.lstrip("\n"))
    return Attack("task1: styles that PyTorch accepts", writes(files), (), ("layer",), "task1")


DECORATED = """
/* Plan
# 1. scores
# 2 softmax
# line by line
*/
#pragma message "naive attention"
#pragma region helpers
#pragma STDC FP_CONTRACT ON
#define ON_BOTH __host__ __device__ __forceinline__
#define SHARED(name, count) __shared__ float name[count]
#define MOVE(to, from) "mov.u32 " to ", " from ";"
#define LANE(to) asm(MOVE("%0", "%%laneid") : "=r"(to))
#define CHECKED(call) do { if ((call) != cudaSuccess) throw __LINE__; } while (0)
#define UNROLLED _Pragma("message(\\"unrolled\\")") _Pragma("unroll")
[[nodiscard("a: count")]] static ON_BOTH float twice(float x) {
#ifdef __CUDA_ARCH__
    return 2 * x;
#else
    return x + x;
#endif
}
[[deprecated("use twice() instead")]] inline int old(int x) { return x; }
struct __attribute__((packed)) Packed { char a; int b; };
__global__ void decorated(float* out) {
    SHARED(tile, 32);
    unsigned lane;
    LANE(lane);
    tile[threadIdx.x] = twice(lane) - INFINITY;
    __syncthreads(); UNROLLED for (int i = 0; i < 3; ++i) tile[threadIdx.x] += i; __syncthreads();
    out[threadIdx.x] = tile[31 - threadIdx.x];
}
inline void decorate(float* out, cudaStream_t stream) {
    decorated<<<1, 32, 0,
                stream>>>(out);
    CHECKED(cudaGetLastError());
}
#pragma endregion
"""


def decorated() -> Attack:
    """Macros, conditionals, attributes, pragmas and comments of many kinds."""
    files, line = solution("task1"), '#include "common/cuda/not_implemented.h"\n'
    files["task1/naive_attention.cu"] = files["task1/naive_attention.cu"].replace(line, line + DECORATED)
    parts = PARTS["task1_naive_attention"]
    return Attack("task1: macros, attributes, pragmas and comments", writes(files), (), parts, "task1")


ATTACKS = [
    Attack("task3: an archive of links, beside the handout", archived, (), whole("task3").all_for, "task3"),
    Attack("task3: styles that PyTorch accepts", writes(with_python(STYLES)), (), ("algorithm",), "task3"),
    in_other_words(),
    *(whole(task) for task in tasks() if task not in ("task6", "task7")),
    Attack("task6: the solution", writes(everything()), (), whole("task6").all_for, "task6"),
    model(),
    begun(),
    by_pointer(),
    in_cuda(),
    decorated(),
    *in_python("task1", "layer"),
    *in_python("task3", "algorithm"),
    *(variant(name) for folder in PARTS for name in variants_of(folder)),
]
