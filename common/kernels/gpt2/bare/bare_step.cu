// bare_step.cu - a decode step without its arithmetic: how fast can its weights pass through the multiprocessors?
//
//   1. Model       Sizes, next_run, feed       GPT-2's phases, and the pieces of each as the real kernel takes them
//   2. Handover    counter, flags, tagged words: how a block learns that all others have come this far
//   3. Use         what is done with a piece: nothing, or every word read by 16-byte loads
//   4. Kernel      bare_kernel
//   5. Host        variants, times, a checksum
//
//     python -m common.run common/kernels/gpt2/bare/bare_step.cu       in the simulator: a small model, checksums only
//     python -m common.run --backend cuda common/kernels/gpt2/bare/bare_step.cu
//
// One block per multiprocessor; the stream is the real kernel's (piece_stream.cuh). A phase gathers as many bytes as
// the real one, uses the block's pieces, and hands on. Each row leaves something out or does it differently, so that
// differences tell what a part costs. Every word of the weights is read once per step, and their checksum must come
// out.
#include <cuda/atomic>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/cuda/check.h"
#include "common/cuda/tagged_words.cuh"
#include "common/cuda/unroll.cuh"
#include "common/kernels/gpt2/piece_stream.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;  // that read; one more warp feeds them

// ---------------------------------------------------------------------------------------------------- 1. Model

constexpr int KINDS = 6;  // QKV, ATTENTION, PROJECTION, EXPAND, CONTRACT and behind the last layer LOGITS

struct Sizes {
    int layers, layer_phases;  // 5; 4: ATTENTION and PROJECTION without a handover between
    int units[KINDS], each[KINDS], extra[KINDS];  // units, of every block, and how many blocks have one more
    int unit_bytes[KINDS];
    int piece_units[KINDS], piece_bytes[KINDS];  // whole units, or one in parts
    int input_words[KINDS];                      // of 4 bytes that a phase gathers
    size_t begin[KINDS];                         // of a layer's phases, bytes; LOGITS: of all
    size_t layer_bytes, bytes;
    size_t own_bytes;  // not 0: the block reads so many again and again, which stay in the L2 cache
    int slot_bytes, slots, blocks, steps;
    bool keep;
};

struct Run {
    int first, count;
};
__device__ __forceinline__ Run next_run(const Sizes& s, int kind, int& begin) {
    int number = static_cast<int>(blockIdx.x) - begin;
    if (number < 0) number += s.blocks;
    begin += s.extra[kind];
    if (begin >= s.blocks) begin -= s.blocks;
    return {number * s.each[kind] + min(number, s.extra[kind]), s.each[kind] + (number < s.extra[kind])};
}

// The bytes of the pieces of a run, in turn: call(bytes) until it returns false.
template <class Call>
__device__ __forceinline__ bool for_pieces(const Sizes& s, int kind, const Run& run, Call call) {
    for (int unit = 0; unit < run.count; unit += s.piece_units[kind]) {
        const int bytes = min(s.piece_units[kind], run.count - unit) * s.unit_bytes[kind];
        for (int at = 0; at < bytes; at += s.piece_bytes[kind])
            if (!call(min(s.piece_bytes[kind], bytes - at))) return false;
    }
    return true;
}

__device__ __forceinline__ void feed(const Sizes& s, const unsigned char* weights, PieceFeeder& feeder) {
    size_t own = 0;
    for (int step = 0; step < s.steps; ++step) {
        int begin = 0;
        const unsigned char* layer_weights = weights;
        NO_UNROLL
        for (int layer = 0; layer <= s.layers; ++layer, layer_weights += s.layer_bytes) {
            const bool head = layer == s.layers;
            NO_UNROLL
            for (int kind = head ? KINDS - 1 : 0; kind < KINDS - 1 + head; ++kind) {
                const Run run = next_run(s, kind, begin);
                const size_t unit = static_cast<size_t>(s.unit_bytes[kind]);
                const unsigned char* from = (head ? weights : layer_weights) + s.begin[kind] + run.first * unit;
                const bool more = for_pieces(s, kind, run, [&](int bytes) {
                    if (s.own_bytes) {
                        if (own + bytes > s.own_bytes) own = 0;
                        from = weights + blockIdx.x * s.own_bytes + own;
                        own += bytes;
                    }
                    const unsigned char* const here = from;
                    from += bytes;
                    return feeder.feed({here, static_cast<unsigned>(bytes), nullptr, 0, 0});
                });
                if (!more) return;
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------- 2. Handover

// TOGETHER: the words that are missing are asked for again all at once; SINGLY: one after the other; PAUSING: as
// TOGETHER, with 100 ns between two looks.
enum Handover { NONE, COUNTER, FLAGS, SINGLY, TOGETHER, PAUSING };
constexpr int LINE = 32;  // words of 128 bytes
constexpr int LARGEST_INPUT = 1 << 14;

using Word = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;

struct Mail {
    unsigned* counters;  // [1] or [blocks], LINE words apart
    float* data;         // [LARGEST_INPUT], plain
    tagged::Word* words;   // [4][LARGEST_INPUT]: a block may lag where it has no word of a phase
};

// __syncthreads() of the warps that read.
__device__ __forceinline__ void readers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

// The block has come to the end of phase number `phase`; all threads that read call.
template <Handover H>
__device__ __forceinline__ void hand_on(const Mail& mail, int phase, int words, int blocks) {
    const int block = blockIdx.x, mine = (words + blocks - 1) / blocks, word = block * mine + threadIdx.x;
    const bool has_word = threadIdx.x < mine && word < words;
    if constexpr (H == NONE) return;
    if constexpr (H == SINGLY || H == TOGETHER || H == PAUSING) {
        if (has_word) tagged::put(mail.words + phase % 4 * LARGEST_INPUT + word, word, phase + 1);
        return;
    }
    if (has_word) mail.data[word] = 1.0f;
    readers_sync();
    if (threadIdx.x > 0) return;
    if constexpr (H == COUNTER) Word(mail.counters[0]).fetch_add(1, cuda::memory_order_release);
    if constexpr (H == FLAGS) Word(mail.counters[block * LINE]).store(phase + 1, cuda::memory_order_release);
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
    const unsigned past = phase + 1;
    if constexpr (H == SINGLY || H == TOGETHER || H == PAUSING) {
        const tagged::Word* const from = mail.words + phase % 4 * LARGEST_INPUT;
        constexpr int AT_ONCE = 7;
        for (int first = 2 * threadIdx.x; first < words; first += 2 * THREADS * AT_ONCE) {
            const auto place = [&](int i) {
                const int word = first + 2 * i * THREADS;
                return word < words ? from + word : nullptr;
            };
            const auto has_place = [&](int i) { return place(i) != nullptr; };
            tagged::Pair pairs[AT_ONCE];
            UNROLL
            for (int i = 0; i < AT_ONCE; ++i)
                if (has_place(i)) pairs[i] = tagged::peek(place(i));
            if (H == PAUSING) {
                const auto all_there = [&] {
                    bool all = true;
                    UNROLL
                    for (int i = 0; i < AT_ONCE; ++i) all &= !has_place(i) || tagged::has_tag(pairs[i], past);
                    return all;
                };
                while (!all_there()) {
#ifndef CUDA_SIMULATOR
                    __nanosleep(100);
#endif
                    UNROLL
                    for (int i = 0; i < AT_ONCE; ++i)
                        if (has_place(i) && !tagged::has_tag(pairs[i], past)) pairs[i] = tagged::peek(place(i));
                }
            }
            if (H == TOGETHER) tagged::settle_all(pairs, place, past);
            UNROLL
            for (int i = 0; i < AT_ONCE; ++i)
                if (has_place(i)) sum += H == SINGLY ? tagged::settle(pairs[i], place(i), past).x : pairs[i].x;
        }
        readers_sync();
        return sum;
    }
    if (H == COUNTER && threadIdx.x == 0) wait_for_count(mail.counters, past * blocks);
    if (H == FLAGS && threadIdx.x < blocks) wait_for_count(mail.counters + threadIdx.x * LINE, past);
    readers_sync();
    for (int word = 4 * threadIdx.x; word < words; word += 4 * THREADS)
        sum += __ldcg(reinterpret_cast<const float4*>(mail.data + word)).x;
    readers_sync();
    return sum;
}

// ------------------------------------------------------------------------------------------------------ 3. Use

enum Use { TOUCH, READ };

__device__ __forceinline__ void use_piece(const unsigned char* piece, int bytes, uint4& sum) {
    UNROLL_BY(4)
    for (int at = 16 * threadIdx.x; at < bytes; at += 16 * THREADS) {
        const uint4 x = *reinterpret_cast<const uint4*>(piece + at);
        sum.x ^= x.x, sum.y ^= x.y, sum.z ^= x.z, sum.w ^= x.w;
    }
}

// --------------------------------------------------------------------------------------------------- 4. Kernel

template <Handover H, Use U, bool STREAMS>
__global__ void __launch_bounds__(THREADS + 32, 1)
    bare_kernel(const __grid_constant__ Sizes s, const Mail mail, const unsigned char* weights, unsigned* checksum) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ StreamBarriers barriers;
    if (threadIdx.x == 0) stream_init(barriers, s.slots, WARPS);
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        if (!STREAMS || threadIdx.x > THREADS) return;
        PieceFeeder feeder(barriers, memory, s.slots, s.slot_bytes, s.keep);
        feed(s, weights, feeder);
        feeder.drain();
        return;
    }
    PieceReader reader(barriers, memory, s.slots, s.slot_bytes);
    uint4 sum = make_uint4(0, 0, 0, 0);
    float inputs = 0.0f;
    int phase = 0;  // counts handovers
    NO_UNROLL
    for (int step = 0; step < s.steps; ++step) {
        int begin = 0;
        NO_UNROLL
        for (int layer = 0; layer <= s.layers; ++layer) {
            const bool head = layer == s.layers;
            NO_UNROLL
            for (int kind = head ? KINDS - 1 : 0; kind < KINDS - 1 + head; ++kind) {
                const bool joined = s.layer_phases == 4 && kind == 2;
                if (phase > 0 && !joined) inputs += gather<H>(mail, phase - 1, s.input_words[kind], s.blocks);
                const Run run = next_run(s, kind, begin);
                if (STREAMS) {
                    for_pieces(s, kind, run, [&](int bytes) {
                        const unsigned char* const piece = reader.wait();
                        if (U == READ) use_piece(piece, bytes, sum);
                        reader.release();
                        return true;
                    });
                    readers_sync();
                }
                const bool joins = s.layer_phases == 4 && kind == 1;
                const int next = head || (kind == KINDS - 2 && layer + 1 < s.layers) ? 0 : kind + 1;
                if (!joins) hand_on<H>(mail, phase++, s.input_words[next], s.blocks);
            }
        }
    }
    if (inputs == -1.0f) atomicXor(checksum, 1u);  // never; so that the compiler does not leave the reading out
    if (U == READ) atomicXor(checksum, sum.x ^ sum.y ^ sum.z ^ sum.w);
}

// ----------------------------------------------------------------------------------------------------- 5. Host

__global__ void fill(unsigned* words, size_t count) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
        words[i] = static_cast<unsigned>(i) * 2654435761u ^ static_cast<unsigned>(i >> 13);
}

// slot_bytes: what a piece has at most.
static Sizes sizes_of(bool small, int processors, int splits, int slot_bytes) {
    Sizes s = {};
    const int width = small ? 64 : 768, hidden = 4 * width, vocab = small ? 200 : 50257, heads = small ? 2 : 12;
    const int tokens = 512;
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
    s.slot_bytes = slot_bytes;
    s.slots = std::min((200 << 10) / slot_bytes, MAX_SLOTS);
    for (int i = 0; i < KINDS; ++i) {
        s.each[i] = units[i] / s.blocks, s.extra[i] = units[i] % s.blocks;
        s.piece_units[i] = std::max(1, slot_bytes / bytes[i]);
        const int parts = (bytes[i] + slot_bytes - 1) / slot_bytes;
        s.piece_bytes[i] = parts > 1 ? (bytes[i] / parts + 15) / 16 * 16 : s.piece_units[i] * bytes[i];
    }
    return s;
}

struct Variant {
    const char* name;
    Handover handover;
    Use use;
    bool streams;
    int layer_phases, piece_kb, most_slots;
    bool keep, from_l2;
    int splits = 4;  // parts of a head's cache, whose states PROJECTION gathers
};

constexpr Variant VARIANTS[] = {
    {"handover alone: counter", COUNTER, TOUCH, false, 5, 24, 64, false, false},
    {"handover alone: a flag for each block", FLAGS, TOUCH, false, 5, 24, 64, false, false},
    {"handover alone: words, one after the other", SINGLY, TOUCH, false, 5, 24, 64, false, false},
    {"handover alone: words, together", TOGETHER, TOUCH, false, 5, 24, 64, false, false},
    {"handover alone: words, together, with pauses", PAUSING, TOUCH, false, 5, 24, 64, false, false},
    {"handover alone: words, together, 2 parts of a cache", TOGETHER, TOUCH, false, 5, 24, 64, false, false, 2},
    {"handover alone: words, together, 4 phases a layer", TOGETHER, TOUCH, false, 4, 24, 64, false, false},
    {"stream alone, not looked at", NONE, TOUCH, true, 5, 24, 64, false, false},
    {"stream alone, not looked at, pieces of 12 KB", NONE, TOUCH, true, 5, 12, 64, false, false},
    {"stream alone, not looked at, pieces of 48 KB", NONE, TOUCH, true, 5, 48, 64, false, false},
    {"stream alone, not looked at, 3 slots", NONE, TOUCH, true, 5, 24, 3, false, false},
    {"stream alone, read", NONE, READ, true, 5, 24, 64, false, false},
    {"stream alone, read, pieces of 12 KB", NONE, READ, true, 5, 12, 64, false, false},
    {"stream alone, read, pieces of 48 KB", NONE, READ, true, 5, 48, 64, false, false},
    {"stream from L2, not looked at", NONE, TOUCH, true, 5, 24, 64, true, true},
    {"stream from L2, read", NONE, READ, true, 5, 24, 64, true, true},
    {"from L2, words", TOGETHER, READ, true, 5, 24, 64, true, true},
    {"counter", COUNTER, READ, true, 5, 24, 64, false, false},
    {"words, one after the other", SINGLY, READ, true, 5, 24, 64, false, false},
    {"words, not looked at", TOGETHER, TOUCH, true, 5, 24, 64, false, false},
    {"words", TOGETHER, READ, true, 5, 24, 64, false, false},
    {"words, with pauses", PAUSING, READ, true, 5, 24, 64, false, false},
    {"words, weights stay in L2", TOGETHER, READ, true, 5, 24, 64, true, false},
    {"words, pieces of 36 KB", TOGETHER, READ, true, 5, 36, 64, false, false},
    {"words, pieces of 16 KB", TOGETHER, READ, true, 5, 16, 64, false, false},
    {"words, pieces of 12 KB", TOGETHER, READ, true, 5, 12, 64, false, false},
    {"words, pieces of 6 KB", TOGETHER, READ, true, 5, 6, 64, false, false},
    {"words, 4 slots", TOGETHER, READ, true, 5, 24, 4, false, false},
    {"words, 2 parts of a cache", TOGETHER, READ, true, 5, 24, 64, false, false, 2},
    {"words, 4 phases a layer", TOGETHER, READ, true, 4, 24, 64, false, false},
    {"counter, 4 phases a layer", COUNTER, READ, true, 4, 24, 64, false, false},
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
        case FLAGS: return kernel_for<FLAGS>(v);
        case SINGLY: return kernel_for<SINGLY>(v);
        case TOGETHER: return kernel_for<TOGETHER>(v);
        case PAUSING: return kernel_for<PAUSING>(v);
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
    const int shared = s.slots * s.slot_bytes;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    const Mail& mail = memory.mail;
    const unsigned char* weights = memory.weights;
    unsigned* checksum = memory.checksum;
    void* arguments[] = {&s, const_cast<Mail*>(&mail), &weights, &checksum};
    CUDA_CHECK(cudaLaunchCooperativeKernel(kernel, dim3(s.blocks), dim3(THREADS + 32), arguments, shared, nullptr));
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
    const Sizes sizes = sizes_of(small, processors, 4, 24 << 10);
    Memory memory = {};
    memory.counters_bytes = sizeof(unsigned) * LINE * (1 + sizes.blocks);
    memory.words_bytes = 4 * sizeof(tagged::Word) * LARGEST_INPUT;
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
        Sizes s = sizes_of(small, processors, v.splits, v.piece_kb << 10);
        s.layer_phases = v.layer_phases;
        s.slots = std::min(v.most_slots, s.slots);
        s.own_bytes = v.from_l2 ? std::min(sizes.bytes, size_t{24} << 20) / s.blocks / 128 * 128 : 0;
        s.keep = v.keep;
        s.steps = 1;
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
