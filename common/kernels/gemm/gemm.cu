// gemm.cu - GEMM in float32, C = A B and C = A B^T: chooses the kernel.
//
// Changes from the kernel taught in task 2, each on top of the previous one. Each step is a file that can be read and
// run on its own:
//
//   1. step1_register_tiles.cu    a thread computes 16 x 8 entries of C instead of 4 x 1
//   2. step2_vector_loads.cu      global memory is accessed 16 bytes at a time
//   3. step3_no_conflicts.cu      shared memory is accessed without bank conflicts
//   4. step4_pipelined.cu         the next tile is loaded while the current one is multiplied
//
//   shape.cuh       how C is tiled for blocks, warps and threads
//   operands.cuh    an operand's tile from global memory to registers, then to shared memory
//   lanes.cuh       which entries of C a thread owns, and what it does for each k
//   product.h       shared by this file and the steps
//
// Measurements, and what didn't work: README.md.
#include <cuda_runtime.h>

#include <cstdint>

#include "common/cuda/check.h"
#include "common/kernels/gemm/gemm.h"
#include "common/kernels/gemm/product.h"
#include "common/kernels/gemm/shape.cuh"

namespace gemm_steps {

static_assert(MAX_GEMM_N == MAX_GRID_YZ * SmallShape::BN && MAX_GEMM_SIZE == 2147483648 - LargeShape::BM);

// Small tiles take about 8/7 of the time per entry of C, since they need twice the reads from shared memory. But all
// blocks take equally long, and while the last ones run, SMs without work are idle. So this compares what the busiest
// SM has to do, in entries of C; large blocks keep it busy two at a time.
static bool large_tiles_pay(const GemmProblem& p) {
    const int sms = device_attribute(cudaDevAttrMultiProcessorCount);
    const auto busiest = [&]<class S>(S, int at_a_time) {
        const int64_t blocks = p.batch * ceil_div(p.M, S::BM) * ceil_div(p.N, S::BN);
        return ceil_div(blocks, int64_t(sms) * at_a_time) * at_a_time * S::BM * S::BN;
    };
    return busiest(LargeShape(), 2) * 7 <= busiest(SmallShape(), 1) * 8;
}

}  // namespace gemm_steps

void gemm(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K, bool b_transposed, int step,
          cudaStream_t stream) {
    using namespace gemm_steps;
    const GemmProblem p{a, b, c, batch, M, N, K, b_transposed};
    if (step == GEMM_STEPS) return pipelined(p, large_tiles_pay(p), stream);
    if (step == 1 || !p.takes_vectors()) return register_tiles(p, stream);
    step == 2 ? vector_loads(p, stream) : no_conflicts(p, stream);
}
