// product.h - shared by the three programs: C = A B^T on host and device, the check, the timing.
//
//   GemmProblem p(K);                  A [64][K] and B [64][K] of __half, C [64][64] of float
//   return p.finish(launch);           runs it, checks C in double precision, on a GPU prints the time; 0 if correct
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "common/cuda/check.h"

constexpr int TILE = 64;  // rows of A and of B, and columns of a box

struct GemmProblem {
    int K;
    std::vector<__half> host_a, host_b;
    __half *a = nullptr, *b = nullptr;
    float* c = nullptr;

    explicit GemmProblem(int K_) : K(K_), host_a(TILE * K_), host_b(TILE * K_) {
        unsigned random = 1;
        for (auto* matrix : {&host_a, &host_b})
            for (__half& x : *matrix) {
                random = random * 1664525u + 1013904223u;
                x = __float2half(static_cast<float>(random >> 24) / 128.0f - 1.0f);
            }
        const size_t bytes = TILE * K * sizeof(__half);
        CUDA_CHECK(cudaMalloc(&a, bytes));
        CUDA_CHECK(cudaMalloc(&b, bytes));
        CUDA_CHECK(cudaMalloc(&c, TILE * TILE * sizeof(float)));
        CUDA_CHECK(cudaMemcpy(a, host_a.data(), bytes, cudaMemcpyHostToDevice));
        CUDA_CHECK(cudaMemcpy(b, host_b.data(), bytes, cudaMemcpyHostToDevice));
    }
    GemmProblem(const GemmProblem&) = delete;
    ~GemmProblem() { cudaFree(a), cudaFree(b), cudaFree(c); }

    template <typename Launch>
    int finish(const Launch& launch) {
        launch();
        CUDA_CHECK_LAUNCH();
        std::vector<float> got(TILE * TILE);
        CUDA_CHECK(cudaMemcpy(got.data(), c, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
        double worst = 0;
        for (int i = 0; i < TILE * TILE; ++i) {
            double sum = 0;
            for (int k = 0; k < K; ++k)
                sum += double(__half2float(host_a[i / TILE * K + k])) * __half2float(host_b[i % TILE * K + k]);
            const double error = std::abs(got[i] - sum);
            worst = error <= worst ? worst : error;  // keeps NaN
        }
        const double bound = 1e-6 * K * 4;  // K products below 1, accumulated in float
        const bool is_right = worst <= bound;
        std::printf("64 x 64 x %d: largest error %.1e (%s)\n", K, worst, is_right ? "right" : "WRONG");
#ifndef CUDA_SIMULATOR
        report_time(launch);
#endif
        return is_right ? 0 : 1;
    }

  private:
    template <typename Launch>
    static void report_time(const Launch& launch) {
        cudaEvent_t begin, end;
        CUDA_CHECK(cudaEventCreate(&begin));
        CUDA_CHECK(cudaEventCreate(&end));
        std::vector<float> times(101);
        for (float& time : times) {
            CUDA_CHECK(cudaEventRecord(begin));
            launch();
            CUDA_CHECK(cudaEventRecord(end));
            CUDA_CHECK(cudaEventSynchronize(end));
            CUDA_CHECK(cudaEventElapsedTime(&time, begin, end));
        }
        std::sort(times.begin(), times.end());
        std::printf("median of %zu launches: %.2f microseconds\n", times.size(), times[times.size() / 2] * 1e3f);
    }
};

// A warpgroup's accumulators: d[n][e] of a thread is row 16 warp + lane / 4 + 8 (e / 2), column 8 n + 2 (lane % 4) + e
// % 2.
__device__ __forceinline__ void write_accumulators(float* c, const float (&d)[TILE / 8][4]) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    for (int n = 0; n < TILE / 8; ++n)
        for (int e = 0; e < 4; ++e)
            c[(16 * warp + lane / 4 + e / 2 * 8) * TILE + 8 * n + lane % 4 * 2 + e % 2] = d[n][e];
}
