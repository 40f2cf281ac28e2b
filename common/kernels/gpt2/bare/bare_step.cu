// bare_step.cu - a decode step without its arithmetic: how fast can its weights pass through the multiprocessors?
//
//   1. Model       Sizes, Source       GPT-2's phases, and the pieces of each as the real kernel takes them
//   2. Handover    counter, clusters, flags, tagged words: how a block learns that all others have come this far
//   3. Use         what is done with a piece: nothing, or every word read by 16-byte loads
//   4. Kernel      bare_kernel
//   5. Host        variants, times, a checksum
//
//     python -m common.run common/kernels/gpt2/bare/bare_step.cu            in the simulator: a small model, checksums only
//     python -m common.run --backend cuda common/kernels/gpt2/bare/bare_step.cu
//
// One block per multiprocessor; the stream is the real kernel's (piece_stream.cuh). A phase gathers as many bytes as the
// real one, uses the block's pieces, and hands on. Each row leaves something out or does it differently, so that
// differences tell what a part costs. Every word of the weights is read once per step, and their checksum must come out.
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/cuda/check.h"
#include "common/cuda/tagged_words.cuh"
#include "common/kernels/gpt2/piece_stream.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, BARE_ISSUER = THREADS - 32;

// ---------------------------------------------------------------------------------------------------- 1. Model

constexpr int KINDS = 6;  // QKV, ATTENTION, PROJECTION, EXPAND, CONTRACT and behind the last layer LOGITS

struct Sizes {
    int layers, layer_phases;  // 5; 4: ATTENTION and PROJECTION without a handover between
    int units[KINDS];
    int unit_bytes[KINDS];
    int input_words[KINDS];  // of 4 bytes that a phase gathers
    size_t begin[KINDS];     // of a layer's phases, bytes; LOGITS: of all
    size_t layer_bytes, bytes, repeat;  // repeat: bytes of memory that the stream goes through; fewer: from the L2 cache
    int piece_bytes, slots, blocks, steps;
    bool keep;
};

__host__ __device__ inline int first_unit_of(const Sizes& s, int layer, int kind, int block) {
    int before = 0;
    for (int i = 0; i < KINDS - 1; ++i) before += s.units[i] * (i < kind ? layer + 1 : layer);
    const int unit = block - before % s.blocks;
    return unit < 0 ? unit + s.blocks : unit;
}

class BareSource {
public:
    __device__ BareSource(const Sizes& s, const unsigned char* weights) : s_(s), weights_(weights) {}

    __device__ bool next(Piece& piece) {
        while (step_ < s_.steps) {
            const int layer = number_ / (KINDS - 1), kind = layer < s_.layers ? number_ % (KINDS - 1) : KINDS - 1;
            if (unit_ < 0) unit_ = first_unit_of(s_, layer, kind, blockIdx.x), at_ = 0;
            if (unit_ >= s_.units[kind]) {
                unit_ = -1;
                if (++number_ > s_.layers * (KINDS - 1)) number_ = 0, ++step_;
                continue;
            }
            const size_t from = (kind < KINDS - 1 ? layer * s_.layer_bytes : 0) + s_.begin[kind] +
                                static_cast<size_t>(unit_) * s_.unit_bytes[kind] + at_;
            piece.first = weights_ + from % s_.repeat;
            piece.first_bytes = min(s_.piece_bytes, s_.unit_bytes[kind] - at_);
            piece.second_bytes = 0;
            at_ += s_.piece_bytes;
            if (at_ >= s_.unit_bytes[kind]) at_ = 0, unit_ += s_.blocks;
            return true;
        }
        return false;
    }

private:
    const Sizes& s_;
    const unsigned char* weights_;
    int step_ = 0, number_ = 0, unit_ = -1, at_ = 0;
};

// ------------------------------------------------------------------------------------------------- 2. Handover

enum Handover { NONE, COUNTER, GROUPS, CLUSTERS, FLAGS, TAGGED };
constexpr int GROUP = 12, LINE = 32;  // blocks that share a counter of GROUPS; words of 128 bytes
constexpr int LARGEST_INPUT = 1 << 14;

using Word = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;

struct Mail {
    unsigned* counters;  // [1 + groups] or [blocks], LINE words apart
    float* data;         // [LARGEST_INPUT], plain
    TaggedWord* words;   // [4][LARGEST_INPUT]: a block may lag where it has no word of a phase
};

// The block has come to the end of phase number `phase`; all threads call.
template <Handover H>
__device__ __forceinline__ void hand_on(const Mail& mail, int phase, int words, int blocks) {
    const int block = blockIdx.x, mine = (words + blocks - 1) / blocks;
    if constexpr (H == NONE) return;
    if constexpr (H == TAGGED) {
        const int word = block * mine + threadIdx.x;
        if (threadIdx.x < mine && word < words)
            put_tagged(mail.words + phase % 4 * LARGEST_INPUT + word, word, phase + 1);
        return;
    }
    const int word = block * mine + threadIdx.x;
    if (threadIdx.x < mine && word < words) mail.data[word] = 1.0f;
    if constexpr (H == CLUSTERS) {
        auto cluster = cooperative_groups::this_cluster();
        cluster.sync();
        if (cluster.block_rank() == 0 && threadIdx.x == 0) Word(mail.counters[0]).fetch_add(1, cuda::memory_order_release);
        return;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    if constexpr (H == COUNTER) Word(mail.counters[0]).fetch_add(1, cuda::memory_order_release);
    if constexpr (H == FLAGS) Word(mail.counters[block * LINE]).store(phase + 1, cuda::memory_order_release);
    if constexpr (H == GROUPS) {
        const int group = block / GROUP, members = min(GROUP, blocks - group * GROUP);
        const unsigned before = Word(mail.counters[(1 + group) * LINE]).fetch_add(1, cuda::memory_order_acq_rel);
        if ((before + 1) % members == 0) Word(mail.counters[0]).fetch_add(1, cuda::memory_order_release);
    }
}

__device__ __forceinline__ void wait_for_count(unsigned* counter, unsigned target) {
    while (Word(*counter).load(cuda::memory_order_acquire) < target) {
    }
}

// Until all blocks have handed on phase number `phase`, and its words have been read.
template <Handover H>
__device__ __forceinline__ float gather(const Mail& mail, int phase, int words, int blocks) {
    float sum = 0.0f;
    if constexpr (H == NONE) return sum;
    if constexpr (H == TAGGED) {
        const TaggedWord* const from = mail.words + phase % 4 * LARGEST_INPUT;
        constexpr int AT_ONCE = 6;
        for (int first = 2 * threadIdx.x; first < words; first += 2 * THREADS * AT_ONCE) {
            TaggedPair pairs[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (first + 2 * i * THREADS < words) pairs[i] = peek(from + first + 2 * i * THREADS);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (first + 2 * i * THREADS < words)
                    sum += settle(pairs[i], from + first + 2 * i * THREADS, phase + 1).x;
        }
        __syncthreads();
        return sum;
    }
    const unsigned past = phase + 1;
    if constexpr (H == CLUSTERS) {
        auto cluster = cooperative_groups::this_cluster();
        if (cluster.block_rank() == 0 && threadIdx.x == 0)
            wait_for_count(mail.counters, past * (blocks / cluster.num_blocks()));
        cluster.sync();
    } else {
        if (H == COUNTER && threadIdx.x == 0) wait_for_count(mail.counters, past * blocks);
        if (H == GROUPS && threadIdx.x == 0) wait_for_count(mail.counters, past * ((blocks + GROUP - 1) / GROUP));
        if (H == FLAGS && threadIdx.x < blocks) wait_for_count(mail.counters + threadIdx.x * LINE, past);
        __syncthreads();
    }
    for (int word = 4 * threadIdx.x; word < words; word += 4 * THREADS)
        sum += __ldcg(reinterpret_cast<const float4*>(mail.data + word)).x;
    __syncthreads();
    return sum;
}

// ------------------------------------------------------------------------------------------------------ 3. Use

enum Use { TOUCH, READ };

__device__ __forceinline__ void use_piece(const unsigned char* piece, int bytes, uint4& sum) {
    for (int at = 16 * threadIdx.x; at < bytes; at += 16 * THREADS) {
        const uint4 x = *reinterpret_cast<const uint4*>(piece + at);
        sum.x ^= x.x, sum.y ^= x.y, sum.z ^= x.z, sum.w ^= x.w;
    }
}

// --------------------------------------------------------------------------------------------------- 4. Kernel

template <Handover H, Use U, bool STREAMS>
__global__ void __launch_bounds__(THREADS, 1)
    bare_kernel(const __grid_constant__ Sizes s, const Mail mail, const unsigned char* weights, unsigned* checksum) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ SlotBarriers barriers;
    PieceStream stream(barriers, memory, s.slots, s.piece_bytes, WARPS, s.keep);
    __syncthreads();
    BareSource source(s, weights);
    if (STREAMS && threadIdx.x == BARE_ISSUER) stream.refill(source, 0);
    uint4 sum = make_uint4(0, 0, 0, 0);
    float inputs = 0.0f;
    int phase = 0;  // counts handovers
#pragma unroll 1
    for (int step = 0; step < s.steps; ++step)
#pragma unroll 1
        for (int number = 0; number <= s.layers * (KINDS - 1); ++number) {
            const int layer = number / (KINDS - 1), kind = layer < s.layers ? number % (KINDS - 1) : KINDS - 1;
            const bool joined = s.layer_phases == 4 && kind == 2;
            if (phase > 0 && !joined) inputs += gather<H>(mail, phase - 1, s.input_words[kind], s.blocks);
            if (STREAMS) {
                for (int unit = first_unit_of(s, layer, kind, blockIdx.x); unit < s.units[kind]; unit += s.blocks)
                    for (int at = 0; at < s.unit_bytes[kind]; at += s.piece_bytes) {
                        const unsigned char* const piece = stream.wait();
                        if (U == READ) use_piece(piece, min(s.piece_bytes, s.unit_bytes[kind] - at), sum);
                        stream.release();
                        if (threadIdx.x == BARE_ISSUER) stream.refill(source, s.slots / 2);
                    }
                __syncthreads();
                if (threadIdx.x == BARE_ISSUER) stream.refill(source, 0);
            }
            const bool joins = s.layer_phases == 4 && kind == 1;
            const int next = kind == KINDS - 1 || (kind == KINDS - 2 && layer + 1 < s.layers) ? 0 : kind + 1;
            if (!joins) hand_on<H>(mail, phase++, s.input_words[next], s.blocks);
        }
    if (inputs == -1.0f) sum.x = 0;  // so that nobody leaves the reading out
    const unsigned words = sum.x ^ sum.y ^ sum.z ^ sum.w;
    if (U == READ) atomicXor(checksum, words);
}

// ----------------------------------------------------------------------------------------------------- 5. Host

__global__ void fill(unsigned* words, size_t count) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
        words[i] = static_cast<unsigned>(i) * 2654435761u ^ static_cast<unsigned>(i >> 13);
}

static Sizes sizes_of(bool small, int processors) {
    Sizes s = {};
    const int width = small ? 64 : 768, hidden = 4 * width, vocab = small ? 200 : 50257, heads = small ? 2 : 12;
    const int splits = 4, tokens = 512;
    s.layers = small ? 2 : 12;
    const int units[KINDS] = {3 * width / 8, heads * splits, width / 8, hidden / 8, width / 8, (vocab + 7) / 8};
    const int bytes[KINDS] = {16 * width, 2 * 128 * tokens / splits, 16 * width, 16 * width, 16 * hidden, 16 * width};
    const int words[KINDS] = {width, 3 * 64 / 2, heads * splits * 66, width, hidden / 2, width};
    for (int i = 0; i < KINDS; ++i) {
        s.units[i] = units[i], s.unit_bytes[i] = bytes[i], s.input_words[i] = (words[i] + 7) / 8 * 8;
        s.begin[i] = s.layer_bytes;
        if (i < KINDS - 1) s.layer_bytes += static_cast<size_t>(units[i]) * bytes[i];
    }
    s.begin[KINDS - 1] = s.layers * s.layer_bytes;
    s.bytes = s.begin[KINDS - 1] + static_cast<size_t>(units[KINDS - 1]) * bytes[KINDS - 1];
    s.blocks = std::min(processors, units[0]);
    return s;
}

struct Variant {
    const char* name;
    Handover handover;
    Use use;
    bool streams;
    int layer_phases, piece_kb, most_slots;
    bool keep, from_l2;
};

constexpr Variant VARIANTS[] = {
    {"handover alone: counter", COUNTER, TOUCH, false, 5, 16, 64, false, false},
    {"handover alone: counters of 12 blocks, then one", GROUPS, TOUCH, false, 5, 16, 64, false, false},
    {"handover alone: clusters of 2, then a counter", CLUSTERS, TOUCH, false, 5, 16, 64, false, false},
    {"handover alone: a flag for each block", FLAGS, TOUCH, false, 5, 16, 64, false, false},
    {"handover alone: tagged words", TAGGED, TOUCH, false, 5, 16, 64, false, false},
    {"stream alone, not looked at", NONE, TOUCH, true, 5, 16, 64, false, false},
    {"stream alone, read", NONE, READ, true, 5, 16, 64, false, false},
    {"stream alone, read; stays in L2", NONE, READ, true, 5, 16, 64, true, false},
    {"stream from L2, read", NONE, READ, true, 5, 16, 64, true, true},
    {"from L2, tagged words", TAGGED, READ, true, 5, 16, 64, true, true},
    {"counter", COUNTER, READ, true, 5, 16, 64, false, false},
    {"counters of 12 blocks, then one", GROUPS, READ, true, 5, 16, 64, false, false},
    {"clusters of 2, then a counter", CLUSTERS, READ, true, 5, 16, 64, false, false},
    {"a flag for each block", FLAGS, READ, true, 5, 16, 64, false, false},
    {"tagged words", TAGGED, READ, true, 5, 16, 64, false, false},
    {"tagged words, weights stay in L2", TAGGED, READ, true, 5, 16, 64, true, false},
    {"tagged words, pieces of 12 KB", TAGGED, READ, true, 5, 12, 64, false, false},
    {"tagged words, pieces of 8 KB", TAGGED, READ, true, 5, 8, 64, false, false},
    {"tagged words, pieces of 4 KB", TAGGED, READ, true, 5, 4, 64, false, false},
    {"tagged words, 8 slots", TAGGED, READ, true, 5, 16, 8, false, false},
    {"tagged words, 5 slots", TAGGED, READ, true, 5, 16, 5, false, false},
    {"tagged words, 4 phases a layer", TAGGED, READ, true, 4, 16, 64, false, false},
    {"counter, 4 phases a layer", COUNTER, READ, true, 4, 16, 64, false, false},
};

using Kernel = void (*)(const Sizes, const Mail, const unsigned char*, unsigned*);

template <Handover H>
static Kernel kernel_for(const Variant& v) {
    if (!v.streams) return bare_kernel<H, TOUCH, false>;
    return v.use == READ ? bare_kernel<H, READ, true> : bare_kernel<H, TOUCH, true>;
}
static Kernel kernel_of(const Variant& v) {
    switch (v.handover) {
        case COUNTER: return kernel_for<COUNTER>(v);
        case GROUPS: return kernel_for<GROUPS>(v);
        case CLUSTERS: return kernel_for<CLUSTERS>(v);
        case FLAGS: return kernel_for<FLAGS>(v);
        case TAGGED: return kernel_for<TAGGED>(v);
        default: return kernel_for<NONE>(v);
    }
}

struct Memory {
    unsigned char* weights;
    Mail mail;
    unsigned* checksum;
    size_t counters_bytes, words_bytes;
};

static void launch(const Variant& v, Sizes s, const Memory& memory) {
    CUDA_CHECK(cudaMemset(memory.mail.counters, 0, memory.counters_bytes));
    CUDA_CHECK(cudaMemset(memory.mail.words, 0, memory.words_bytes));
    CUDA_CHECK(cudaMemset(memory.checksum, 0, sizeof(unsigned)));
    const Kernel kernel = kernel_of(v);
    const int shared = s.slots * s.piece_bytes;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = 2, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(s.blocks), config.blockDim = dim3(THREADS), config.dynamicSmemBytes = shared;
    config.attrs = attributes, config.numAttrs = v.handover == CLUSTERS ? 2 : 1;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, s, memory.mail, static_cast<const unsigned char*>(memory.weights),
                                  memory.checksum));
}

#ifndef CUDA_SIMULATOR
static double microseconds(const Variant& v, const Sizes& s, const Memory& memory) {
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    std::vector<float> times(5);
    for (float& time : times) {
        CUDA_CHECK(cudaEventRecord(begin));
        launch(v, s, memory);
        CUDA_CHECK(cudaEventRecord(end));
        CUDA_CHECK(cudaEventSynchronize(end));
        CUDA_CHECK(cudaEventElapsedTime(&time, begin, end));
    }
    std::sort(times.begin(), times.end());
    return 1e3 * times[times.size() / 2] / s.steps;
}
#endif

int main(int argc, char** argv) {
    bool small = argc > 1 && std::strcmp(argv[1], "small") == 0;
#ifdef CUDA_SIMULATOR
    small = true;
#endif
    const int processors = small ? 6 : device_attribute(cudaDevAttrMultiProcessorCount);
    const Sizes sizes = sizes_of(small, processors);
    Memory memory = {};
    memory.counters_bytes = sizeof(unsigned) * LINE * (1 + sizes.blocks);
    memory.words_bytes = 4 * sizeof(TaggedWord) * LARGEST_INPUT;
    CUDA_CHECK(cudaMalloc(&memory.weights, sizes.bytes));
    CUDA_CHECK(cudaMalloc(&memory.mail.counters, memory.counters_bytes));
    CUDA_CHECK(cudaMalloc(&memory.mail.data, sizeof(float) * LARGEST_INPUT));
    CUDA_CHECK(cudaMalloc(&memory.mail.words, memory.words_bytes));
    CUDA_CHECK(cudaMalloc(&memory.checksum, sizeof(unsigned)));
    CUDA_CHECK(cudaMemset(memory.mail.data, 0, sizeof(float) * LARGEST_INPUT));
    fill<<<small ? 2 : 1024, 256>>>(reinterpret_cast<unsigned*>(memory.weights), sizes.bytes / 4);
    CUDA_CHECK_LAUNCH();
    std::vector<unsigned> host(sizes.bytes / 4);
    CUDA_CHECK(cudaMemcpy(host.data(), memory.weights, sizes.bytes, cudaMemcpyDeviceToHost));
    unsigned expected = 0;
    for (unsigned word : host) expected ^= word;

    std::printf("%d blocks, %.1f MB in a step\n", sizes.blocks, 1e-6 * static_cast<double>(sizes.bytes));
    bool right = true;
    for (const Variant& v : VARIANTS) {
        Sizes s = sizes;
        s.layer_phases = v.layer_phases;
        s.piece_bytes = v.piece_kb << 10;
        s.slots = std::min({v.most_slots, (200 << 10) / s.piece_bytes, MAX_SLOTS});
        s.repeat = v.from_l2 ? std::min(sizes.bytes, size_t{24} << 20) : sizes.bytes;
        s.keep = v.keep;
        s.steps = 1;
        if (v.handover == CLUSTERS) s.blocks -= s.blocks % 2;
        launch(v, s, memory);
        unsigned found = 0;
        CUDA_CHECK(cudaMemcpy(&found, memory.checksum, sizeof found, cudaMemcpyDeviceToHost));
        const bool checks = v.streams && v.use == READ && !v.from_l2, wrong = checks && found != expected;
        right &= !wrong;
        std::printf("%-50s %s", v.name, wrong ? "WRONG" : checks ? "right" : "  -  ");
#ifndef CUDA_SIMULATOR
        s.steps = 100;
        const double time = microseconds(v, s, memory);
        std::printf(" %8.1f us/step", time);
        if (v.streams) std::printf(" %6.2f TB/s", 1e-6 * static_cast<double>(sizes.bytes) / time);
#endif
        std::printf("\n");
        std::fflush(stdout);
    }
    return right ? 0 : 1;
}
