// step_trace.cu - the persistent kernel with random weights: microseconds per step, and when each CTA ends each phase.
//
//     python -m common.run common/kernels/gpt2/benchmarks/step_trace.cu [rows [tokens [sampled [layers width heads]]]]
//
// GPT-2 124M, float16, 512 tokens in the cache; in the simulator a small model, and no times. The last lines are a
// trace for docs/pictures/decode.py: for every CTA in the last step, "CTA: phase nanoseconds, phase nanoseconds, ...".
#ifndef NO_TRACE  // -DNO_TRACE: times without the stamps
#define STEP_TRACE
#endif
#include "common/kernels/gpt2/persistent_step.cu"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

// Random numbers in -scale .. scale.
__global__ void fill(__half* x, size_t count, float scale) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
        unsigned bits = static_cast<unsigned>(i) * 2654435761u ^ static_cast<unsigned>(i >> 15);
        bits = (bits ^ bits >> 15) * 2246822519u, bits ^= bits >> 13;
        x[i] = __float2half(scale * (static_cast<float>(bits >> 8) * (2.0f / 16777216.0f) - 1.0f));
    }
}

template <typename T>
static T* device_memory(size_t count) {
    T* memory;
    CUDA_CHECK(cudaMalloc(&memory, count * sizeof(T)));
    CUDA_CHECK(cudaMemset(memory, 0, count * sizeof(T)));
    return memory;
}
static __half* random_halves(size_t count, float scale) {
    __half* const memory = device_memory<__half>(count);
    fill<<<64, 256>>>(memory, count, scale);
    CUDA_CHECK_LAUNCH();
    return memory;
}
static int* host_ints(int count) {
    void* memory;
    CUDA_CHECK(cudaHostAlloc(&memory, static_cast<size_t>(count) * sizeof(int), cudaHostAllocMapped));
    std::fill_n(static_cast<int*>(memory), count, 0);
    return static_cast<int*>(memory);
}
template <typename T>
static T* copied(const std::vector<T>& values) {
    T* const memory = device_memory<T>(values.size());
    CUDA_CHECK(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}

int main(int argc, char** argv) {
#ifdef CUDA_SIMULATOR
    const bool small = true;
#else
    const bool small = false;
#endif
    const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
    const int rows = argument(1, 1), tokens = argument(2, small ? 20 : 512);
    const int steps = small ? 3 : 50, context = small ? 64 : 1024;
    if (rows < 1 || rows > MAX_STEP_ROWS || tokens < 1 || tokens + steps > context) {
        std::fprintf(stderr, "rows is %d, tokens %d; allowed: 1 to %d, and 1 to %d\n", rows, tokens, MAX_STEP_ROWS,
                     context - steps);
        return 2;
    }
    Steps a = {};
    a.model.type = FloatType::FLOAT16, a.model.sampled = argument(3, 0) != 0;
    a.model.layers = argument(4, small ? 2 : 12), a.model.width = argument(5, small ? 128 : 768);
    a.model.heads = argument(6, small ? 2 : 12), a.model.hidden = 4 * a.model.width, a.model.vocab = small ? 200 : 50257;
    a.model.rows = a.batch = rows, a.model.max_seq_len = a.context = a.history_steps = context;
    a.plan = plan_steps(a.model, small ? 16 : 0);
    if (!a.plan.fits) {
        std::fprintf(stderr, "the kernel doesn't fit this GPU\n");
        return 1;
    }
    const size_t width = static_cast<size_t>(a.model.width), vocab = static_cast<size_t>(a.model.vocab);
    const size_t places = static_cast<size_t>(rows) * static_cast<size_t>(context);
    a.weights = reinterpret_cast<unsigned char*>(random_halves(a.plan.weight_bytes / sizeof(__half), 0.04f));
    a.vectors = copied(std::vector<float>(static_cast<size_t>(a.plan.vectors), 0.125f));
    a.wte = random_halves(vocab * width, 0.1f), a.wpe = random_halves(static_cast<size_t>(context) * width, 0.1f);
    a.cache = random_halves(static_cast<size_t>(a.model.layers) * 2 * places * width, 1.0f);
    a.workspace = device_memory<unsigned long long>(static_cast<size_t>(a.plan.workspace));
    a.logits = a.model.sampled ? device_memory<float>(vocab * static_cast<size_t>(rows)) : nullptr;
    a.uniforms = copied(std::vector<double>(places, 0.7)), a.temperature = copied(std::vector<double>(1, 0.8));
    a.top_k = copied(std::vector<int64_t>(1, 40)), a.top_p = copied(std::vector<double>(1, 0.9));
    a.eps = 1e-5f, a.first = true, a.count = steps, a.first_flag = 1;
    a.stop = copied(std::vector<int>(1, -1));
    a.history = device_memory<int>(places);
    a.arrived = host_ints(context * rows), a.cancel = host_ints(1);

    std::vector<float> times;
    std::vector<int> first;
    bool same = true;
    for (int run = 0; run < (small ? 2 : 5); ++run, a.first_flag += static_cast<unsigned>(steps)) {
        const auto all = [&](int value) { return copied(std::vector<int>(static_cast<size_t>(rows), value)); };
        a.positions = all(tokens), a.lengths = all(tokens + 1), a.steps = all(1), a.finished = all(0);
        cudaEvent_t begin, end;
        CUDA_CHECK(cudaEventCreate(&begin));
        CUDA_CHECK(cudaEventCreate(&end));
        CUDA_CHECK(cudaEventRecord(begin));
        run_steps(a);
        CUDA_CHECK(cudaEventRecord(end));
        CUDA_CHECK(cudaEventSynchronize(end));
        times.resize(times.size() + 1);
        CUDA_CHECK(cudaEventElapsedTime(&times.back(), begin, end));
        const std::vector<int> made(a.arrived + rows, a.arrived + rows * (1 + steps));
        if (run == 0) first = made;
        const auto is_token = [&](int token) { return token >= 0 && token < a.model.vocab; };
        same &= made == first && std::all_of(made.begin(), made.end(), is_token);
    }
    std::sort(times.begin(), times.end());
    std::printf("%d clusters of %d CTAs, %d stages of %u bytes, %d bytes of shared memory, %d rows, %d tokens, %s\n",
                a.plan.clusters, a.plan.cluster, a.plan.stages, a.plan.stage_bytes, a.plan.smem_bytes, rows, tokens,
                a.model.sampled ? "drawn" : "greedy");
    unsigned hash = 0;
    for (const int token : first) hash = hash * 31 + static_cast<unsigned>(token);
    std::printf("%d steps, %zu times the same tokens: %s, %08x\n", steps, times.size(), same ? "right" : "WRONG", hash);
    const double step = 1e3 * times[times.size() / 2] / steps;
    if (!small) std::printf("%8.1f us/step %6.2f TB/s\n", step, 1e-6 * static_cast<double>(a.plan.weight_bytes) / step);
#ifdef STEP_TRACE
    static unsigned long long stamps[TRACE_CTAS][TRACE_STAMPS];
    CUDA_CHECK(cudaMemcpyFromSymbol(stamps, step_stamps, sizeof stamps));
    constexpr const char* NAMES[] = {"norm", "qkv", "gather_qkv", "attention", "gather_states", "proj",
                                     "fc1",  "gather_inner", "fc2", "lm_head", "token"};
    for (int cta = 0; cta < a.plan.ctas && !small; ++cta) {
        const auto* const of = stamps[cta];
        const auto is_token = [](unsigned long long stamp) { return (stamp & 15) == Trace::TOKEN; };
        int count = 0, seen = 0;
        while (count < TRACE_STAMPS && of[count] != 0 && seen < steps) seen += is_token(of[count++]);
        int begin = count - 1;
        while (begin > 0 && !is_token(of[begin - 1])) --begin;
        std::printf("%d:", cta);
        for (int i = std::max(begin - 1, 0); i < count; ++i)
            std::printf(" %s %llu%s", NAMES[of[i] & 15], of[i] >> 4, i + 1 < count ? "," : "\n");
    }
#endif
    return same ? 0 : 1;
}
