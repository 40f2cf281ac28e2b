// step_times.cu - the persistent kernel itself, with random weights: what a step takes, and where the first block is.
//
//     python -m common.run common/kernels/gpt2/bare/step_times.cu [rows [tokens]]     sequences; tokens in the cache: 1 512
//
// GPT-2 124M, float16, greedy; in the simulator a small model, and no times. Times are of the whole run by events, divided as step_clock.cuh counts cycles.
#define STEP_CLOCK
#include "common/kernels/gpt2/persistent_step.cu"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

// Numbers from -scale to scale.
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
    const int rows = argc > 1 ? std::atoi(argv[1]) : 1, tokens = argc > 2 ? std::atoi(argv[2]) : small ? 20 : 512;
    const int steps = small ? 3 : 100, context = small ? 64 : 1024;
    if (rows < 1 || rows > MAX_STEP_ROWS || tokens < 1 || tokens + steps > context) {
        std::fprintf(stderr, "rows is %d, tokens %d; allowed: 1 to %d, and 1 to %d\n", rows, tokens, MAX_STEP_ROWS,
                     context - steps);
        return 2;
    }
    Steps a = {};
    a.model.type = FloatType::FLOAT16;
    a.model.layers = small ? 2 : 12, a.model.width = small ? 128 : 768, a.model.heads = small ? 2 : 12;
    a.model.hidden = 4 * a.model.width, a.model.vocab = small ? 200 : 50257;
    a.model.rows = a.batch = rows, a.model.max_seq_len = a.context = a.history_steps = context;
    a.plan = plan_steps(a.model, small ? 16 : 0);
    if (!a.plan.fits) {
        std::fprintf(stderr, "the kernel does not fit this GPU\n");
        return 1;
    }
    const size_t width = static_cast<size_t>(a.model.width), vocab = static_cast<size_t>(a.model.vocab);
    const size_t places = static_cast<size_t>(rows) * static_cast<size_t>(context);
    a.weights = reinterpret_cast<unsigned char*>(random_halves(a.plan.weight_bytes / sizeof(__half), 0.04f));
    a.vectors = copied(std::vector<float>(static_cast<size_t>(a.plan.vectors), 0.125f));
    a.wte = random_halves(vocab * width, 0.1f), a.wpe = random_halves(static_cast<size_t>(context) * width, 0.1f);
    a.cache = random_halves(static_cast<size_t>(a.model.layers) * 2 * places * width, 1.0f);
    a.words = reinterpret_cast<tagged::Word*>(device_memory<uint64_t>(static_cast<size_t>(a.plan.exchange.words)));
    a.eps = 1e-5f;
    a.stop = copied(std::vector<int>(1, -1));
    a.history = device_memory<int>(places);
    a.arrived = host_ints(context * rows), a.cancel = host_ints(1);
    a.count = steps;
    const auto begin_text = [&] {
        const auto all = [&](int value) { return copied(std::vector<int>(static_cast<size_t>(rows), value)); };
        a.positions = all(tokens), a.lengths = all(tokens + 1), a.steps = all(1), a.finished = all(0);
    };

    float milliseconds = 0.0f;
    unsigned runs = 0;
    std::vector<int> first;
    bool same = true;
    a.first_tag = 1;
    for (; runs < (small ? 2u : 5u); ++runs, a.first_tag += static_cast<unsigned>(steps * a.plan.tag_count(a.model))) {
        begin_text();
        cudaEvent_t begin, end;
        CUDA_CHECK(cudaEventCreate(&begin));
        CUDA_CHECK(cudaEventCreate(&end));
        CUDA_CHECK(cudaEventRecord(begin));
        run_steps(a);
        CUDA_CHECK(cudaEventRecord(end));
        CUDA_CHECK(cudaEventSynchronize(end));
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
        const std::vector<int> made(a.arrived + rows, a.arrived + rows * (1 + steps));
        if (runs == 0) first = made;
        const auto is_token = [&](int token) { return token >= 0 && token < a.model.vocab; };
        same &= made == first && std::all_of(made.begin(), made.end(), is_token);
    }
    long long cycles[16], all = 0;
    CUDA_CHECK(cudaMemcpyFromSymbol(cycles, step_cycles, sizeof cycles));
    for (int i = 0; i < StepClock::NAMES; ++i) all += cycles[i];
    std::printf("%d clusters of %d blocks, %d slots of %u bytes, %d bytes of shared memory, %d rows, %d tokens\n",
                a.plan.clusters, a.plan.cluster, a.plan.slots, a.plan.slot_bytes, a.plan.shared_bytes, rows, tokens);
    std::printf("%d steps, %u times the same tokens: %s\n", steps, runs, same ? "right" : "WRONG");
    const double step = 1e3 * milliseconds / steps;
    if (!small) std::printf("%8.1f us/step %6.2f TB/s\n", step, 1e-6 * static_cast<double>(a.plan.weight_bytes) / step);
    constexpr const char* NAMES[] = {"stream, layernorm", "qkv",       "qkv hop",  "attention", "states hop", "projection",
                                     "expand",            "inner hop", "contract", "logits",    "tokens"};
    for (int i = 0; i < StepClock::NAMES && !small; ++i)
        std::printf("%8.1f %s\n", step * static_cast<double>(cycles[i]) / static_cast<double>(all), NAMES[i]);
    return same ? 0 : 1;
}
