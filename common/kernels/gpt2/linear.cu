// linear.cu - chooses the tiles for a GEMM of a few hundred rows and launches it; linear.cuh is the kernel.
//
//   for_shape    the smallest tiles for which every tile of y has its own SM
//   launch       tensor maps, cluster, dependent launch
#include "common/kernels/gpt2/gpt2.h"
#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
bool linear_fits(FloatType, int64_t, int64_t, int64_t) { return false; }
bool linear(const Linear&) { return false; }
#else
#include "common/kernels/gpt2/linear.cuh"

#include <algorithm>

#include "common/cuda/check.h"

using namespace hopper;

constexpr int MAX_K = 4096;  // beyond this, torch's GEMM is faster: it splits K further

// Calls f(S) -> bool with the shape for these sizes; false if there is none.
template <class F>
static bool for_shape(const Linear& p, F f) {
    const int sms = device_attribute(cudaDevAttrMultiProcessorCount);
    const auto tiles = [&](int BM, int BN) { return ceil_div(int64_t{p.M}, BM) * ceil_div(p.N, BN); };
    if (p.K > MAX_K) return false;
    if (2 * tiles(64, 96) <= sms && p.K > 2 * TMA_COLS) return f(LinearShape<64, 96, 2, 8>{});
    if (tiles(64, 96) <= sms) return f(LinearShape<64, 96, 1, 8>{});
    if (tiles(128, 96) <= sms) return f(LinearShape<128, 96, 1, 7>{});
    if (tiles(128, 128) <= sms) return f(LinearShape<128, 128, 1, 6>{});
    if (tiles(128, 192) <= sms) return f(LinearShape<128, 192, 1, 5>{});
    return false;
}

template <typename T, class S>
static bool launch(const Linear& linear) {
    LinearProblem p;
    p.linear = linear;
    p.row_tiles = ceil_div(linear.M, S::BM);
    p.steps = ceil_div(linear.K, S::BK);
    const auto matrix = [&](CUtensorMap& map, const void* data, int rows, int box_rows) {
        return make_tensor_map<T>(map, data, {1, 1, rows, linear.K}, {0, 0, linear.K}, box_rows);
    };
    if (!matrix(p.x, linear.x, linear.M, S::BM) || !matrix(p.weight, linear.weight, linear.N, S::BN)) return false;
    const auto kernel = linear_kernel<T, S>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED));
    const int ctas = p.row_tiles * ceil_div(linear.N, S::BN) * S::SPLIT;
    launch_clusters_after(kernel, S::SPLIT, static_cast<unsigned>(ctas), S::THREADS, S::SHARED, linear.stream, p);
    return true;
}

bool linear_fits(FloatType type, int64_t M, int64_t N, int64_t K) {
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9 || type == FloatType::FLOAT32) return false;
    if (M < 1 || N % 8 != 0 || K % 8 != 0 || std::max({M, N, K}) > INT32_MAX / 2) return false;
    Linear p = {};
    p.M = static_cast<int>(M), p.N = static_cast<int>(N), p.K = static_cast<int>(K);
    return for_shape(p, []<class S>(S) { return is_built(linear_kernel<__half, S>); });
}

bool linear(const Linear& p) {
    return for_shape(p, [&]<class S>(S) {
        return p.type == FloatType::FLOAT16 ? launch<__half, S>(p) : launch<__nv_bfloat16, S>(p);
    });
}
#endif
