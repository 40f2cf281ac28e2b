// draw_token.cu - samples the tokens of a prefill, or of a step that is a graph of kernels: temperature, top-k, top-p.
//
//   draw_token_kernel    a cluster of 8 CTAs per sequence, sampling as in the persistent step (step_sampling.cuh)
//
// For compute capability 9.0, since the histograms are exchanged within clusters; elsewhere draw_fits() is false and
// torch sorts (sampling.py).
#include "common/kernels/gpt2/gpt2.h"

#if defined(CUDA_SIMULATOR) && !defined(CUDA_SIMULATOR_SM90A)
bool draw_fits(int) { return false; }
void draw_token(const DrawToken&) {}
#else
#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/kernels/gpt2/step_sampling.cuh"

// grid (SLICES * rows): clusters of SLICES
__global__ void __launch_bounds__(CTA_THREADS) draw_token_kernel(const DrawToken a) {
#if __CUDA_ARCH__ >= 900
    __shared__ Gather signal;
    __shared__ Sampler::Scratch scratch;
    __shared__ Bin bins[2 * BINS];
    __shared__ float maxima[CTA_THREADS];  // maxima of disjoint parts of the logits
    __shared__ Best of_warps[CTA_WARPS];
    const int row = static_cast<int>(blockIdx.x) / SLICES, rank = static_cast<int>(blockIdx.x) % SLICES;
    const int mine = static_cast<int>(threadIdx.x);
    if (mine == 0) {
        signal_init(signal, SLICES);
        hopper::mbarrier_init_done();
    }
    for (int i = mine; i < 2 * BINS; i += CTA_THREADS) bins[i] = {};
    cta_sync();
    cluster_sync();
    wait_for_predecessor();
    launch_dependents();
    const int step = a.steps[row];
    Best best = {-INFINITY, 0};
    for (int i = mine; i < a.blocks; i += CTA_THREADS) {
        const float2 one = __ldcg(reinterpret_cast<const float2*>(a.best + row * a.blocks + i));
        const Best other = {one.x, __float_as_int(one.y)};
        if (is_better(other, best)) best = other;
    }
    maxima[mine] = best.value;
    best = best_of_lanes(best);
    if (mine % 32 == 0) of_warps[mine / 32] = best;
    cta_sync();
    UNROLL
    for (int w = 0; w < CTA_WARPS; ++w)
        if (is_better(of_warps[w], best)) best = of_warps[w];
    unsigned rounds = 0;
    Sampler sampler{bins, scratch, signal, SLICES, rounds};
    const double uniform = step >= 0 && step < a.history_steps ? a.uniforms[step * a.rows + row] : 0.0;
    sampler.load(a.logits + int64_t{row} * a.vocab, part_of({0, a.vocab}, SLICES, rank), best.value, *a.temperature,
                 [&] { return sampler.bound_of(maxima, min(a.blocks, CTA_THREADS), *a.top_k); });
    const int token = sampler.draw(best.token, *a.top_k, *a.top_p, uniform);
    if (rank == 0 && mine == 0) a.tokens[row] = token;
    cluster_sync();  // others may still read this CTA's histograms
#endif
}

bool draw_fits(int vocab) {
    return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 && hopper::is_built(draw_token_kernel) &&
           vocab <= SLICES * CTA_THREADS * SAMPLED_PER_THREAD;
}

void draw_token(const DrawToken& a) {
    launch_clusters_after(draw_token_kernel, SLICES, SLICES * a.rows, CTA_THREADS, 0, a.stream, a);
}
#endif
