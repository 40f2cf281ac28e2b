// binding.cpp - the GEMM operators, and their intermediate optimization steps.
//
//   gemm_nn(a, b) -> c                 a [batch, M, K], b [batch, K, N], c [batch, M, N]
//   gemm_nt(a, b) -> c                 a [batch, M, K], b [batch, N, K], c [batch, M, N]
//   gemm_nn_step(a, b, step), gemm_nt_step(a, b, step)
//       the same with the first `step` changes only; see gemm.h
#include "common/cuda/binding.h"
#include "common/kernels/gemm/gemm.h"

namespace {

constexpr const char* TILE_POSITIONS = "positions within a matrix are 32-bit integers";
constexpr const char* COLUMN_TILES = "a grid has at most 65,535 tiles of 64 columns";

Tensor matmul(const Tensor& a, const Tensor& b, int64_t step, bool b_transposed) {
    check_tensor(a, "a", {"batch", "M", "K"});
    if (b_transposed)
        check_tensor(b, "b", {"batch", "N", "K"});
    else
        check_tensor(b, "b", {"batch", "K", "N"});
    check_same_device(a, "a", b, "b");
    check_same_size(a, "a", 0, b, "b", 0);
    check_same_size(a, "a", 2, b, "b", b_transposed ? 2 : 1);
    check_between(step, 1, GEMM_STEPS, "step");
    const int64_t batch = a.size(0), M = a.size(1), K = a.size(2), N = b.size(b_transposed ? 1 : 2);
    check_at_most(M, MAX_GEMM_SIZE, "M", a, "a", TILE_POSITIONS);
    check_at_most(K, MAX_GEMM_SIZE, "K", a, "a", TILE_POSITIONS);
    check_at_most(N, MAX_GEMM_N, "N", b, "b", COLUMN_TILES);
    DeviceScope device(a);
    Tensor c = new_output(a, "c", {batch, M, N});
    gemm(data<float>(a), data<float>(b), data<float>(c), batch, static_cast<int>(M), static_cast<int>(N),
         static_cast<int>(K), b_transposed, static_cast<int>(step), current_stream(a));
    return c;
}

Tensor gemm_nn_operator(const Tensor& a, const Tensor& b) { return matmul(a, b, GEMM_STEPS, false); }
Tensor gemm_nt_operator(const Tensor& a, const Tensor& b) { return matmul(a, b, GEMM_STEPS, true); }
Tensor gemm_nn_step_operator(const Tensor& a, const Tensor& b, int64_t step) { return matmul(a, b, step, false); }
Tensor gemm_nt_step_operator(const Tensor& a, const Tensor& b, int64_t step) { return matmul(a, b, step, true); }

}  // namespace

TASK_OPERATORS(m) {
    m.def("gemm_nn(Tensor a, Tensor b) -> Tensor");
    m.def("gemm_nt(Tensor a, Tensor b) -> Tensor");
    m.def("gemm_nn_step(Tensor a, Tensor b, int step) -> Tensor");
    m.def("gemm_nt_step(Tensor a, Tensor b, int step) -> Tensor");
}

TASK_KERNELS(m) {
    m.impl("gemm_nn", TORCH_BOX(&gemm_nn_operator));
    m.impl("gemm_nt", TORCH_BOX(&gemm_nt_operator));
    m.impl("gemm_nn_step", TORCH_BOX(&gemm_nn_step_operator));
    m.impl("gemm_nt_step", TORCH_BOX(&gemm_nt_step_operator));
}
