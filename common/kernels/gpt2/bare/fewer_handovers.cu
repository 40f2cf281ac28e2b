// fewer_handovers.cu - a decode step without its arithmetic, two handovers a layer: what would that design take?
//
//   1. Kernel      fewer_kernel
//   2. Host        variants, times, checks
//
//   fewer_model.cuh        which bytes of the weights a block has, phase by phase
//   fewer_exchange.cuh     all blocks add to the residual stream, and all read the sum
//   fewer_hop.cuh          the blocks of a head tell each other what they have
//
//     python -m common.run common/kernels/gpt2/bare/fewer_handovers.cu     in the simulator: a small model, checks
//     python -m common.run --backend cuda common/kernels/gpt2/bare/fewer_handovers.cu
//
// bare_step.cu beside this one hands over five times a layer, each time from all blocks to all. Here a group of blocks
// has a head, and what only a head needs stays in its group, which may be a cluster:
//
//     group of a head   x -> its rows of W_qkv | q, k, v | tokens of the cache | states | its columns of W_proj -> sum
//     every block       x -> its rows of W_fc1 (| gelu of its cluster |) its columns of W_fc2 -> sum
//                                               hop                        hop                        exchange
//
// Both exchanges of a layer are sums of parts over blocks, to which a layernorm follows that everybody needs. What is
// added here are small numbers of which everyone knows the sum, and checks it; what goes through a hop is checked, too.
// A row that streams reads every word of the weights once per step, and their checksum must come out.
//
// A wait of more than 2 s ends the kernel by a trap.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "common/cuda/check.h"
#include "common/kernels/gpt2/bare/fewer_hop.cuh"

// --------------------------------------------------------------------------------------------------- 1. Kernel

__device__ __forceinline__ void use_piece(const unsigned char* piece, int bytes, uint4& sum) {
    UNROLL_BY(5)
    for (int at = 16 * threadIdx.x; at < bytes; at += 16 * THREADS) {
        const uint4 x = *reinterpret_cast<const uint4*>(piece + at);
        sum.x ^= x.x, sum.y ^= x.y, sum.z ^= x.z, sum.w ^= x.w;
    }
}

template <bool STREAMS>
__device__ __forceinline__ void use_part(const Part& part, PieceReader& reader, uint4& sum) {
    if (STREAMS)
        for (int at = 0; at < part.bytes; at += part.piece) {
            use_piece(reader.wait(), min(part.piece, part.bytes - at), sum);
            reader.release();
        }
    readers_sync();
}

// Each block's largest logit, to all.
__device__ __forceinline__ bool find_best(const Sizes& s, const Mail& mail, const Patience& patience, unsigned tag) {
    if (threadIdx.x == 0) tagged::put_pair(mail.best + 2 * blockIdx.x, tag, blockIdx.x, tag);
    bool wrong = false;
    if (threadIdx.x < s.blocks) {
        const tagged::Word* const its = mail.best + 2 * threadIdx.x;
        const uint2 best = tagged::settle(tagged::peek(its), its, tag, patience);
        wrong = best.x != tag || best.y != threadIdx.x;
    }
    readers_sync();
    return wrong;
}

template <Exchange E, Hop H, bool STREAMS>
__global__ void __launch_bounds__(THREADS + 32, 1)
    fewer_kernel(const __grid_constant__ Sizes s, const Mail mail, const unsigned char* weights, unsigned* checksum) {
    constexpr bool CLUSTERS = E == SHARED || H == MEETING || H == ASYNC;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Shared shared;
    const Patience patience = {clock64() + 4000000000ll};
    if (threadIdx.x == 0) {
        stream_init(shared.stream, s.slots, WARPS);
        mail_init(shared.sum_box);
        for (int letter = 0; letter < 2; ++letter) mail_expect(shared.sum_box, letter, 4 * s.width);
        for (int i = 0; i < 3; ++i) {
            mail_init(shared.hop_boxes[i]);
            for (int letter = 0; letter < 2; ++letter)
                mail_expect(shared.hop_boxes[i], letter, 4 * s.hop_words[i] * s.group);
        }
    }
    if (threadIdx.x < KINDS) shared.parts[threadIdx.x] = part_of(s, threadIdx.x, blockIdx.x);
    __syncthreads();
    if (CLUSTERS) cluster_meet();
    if (threadIdx.x >= THREADS) {
        if (!STREAMS || threadIdx.x > THREADS) return;
        PieceFeeder feeder(shared.stream, memory, s.slots, s.slot_bytes, s.own_bytes != 0);
        feed(s, shared.parts, weights, feeder);
        feeder.drain();
        return;
    }
    PieceReader reader(shared.stream, memory, s.slots, s.slot_bytes);
    Residual<E> residual(s, mail, shared, patience);
    const bool has_head = static_cast<int>(blockIdx.x) < s.headed();
    uint4 sum = make_uint4(0, 0, 0, 0);
    bool wrong = false;
    unsigned letter = 0;
    Turn turn = {0, 0, true};
    NO_UNROLL
    for (int step = 0; step < s.steps; ++step) {
        NO_UNROLL
        for (int layer = 0; layer < s.layers; ++layer, ++letter) {
            turn.heads = true, turn.set = 0;
            if (has_head) {
                use_part<STREAMS>(shared.parts[QKV], reader, sum);
                wrong |= hop<H>(s, mail, shared, patience, 0, letter);
                use_part<STREAMS>(shared.parts[CACHE], reader, sum);
                wrong |= hop<H>(s, mail, shared, patience, 1, letter);
                use_part<STREAMS>(shared.parts[PROJECTION], reader, sum);
                residual.add_up(turn);
            }
            residual.gather(turn);
            ++turn.number;

            turn.heads = false, turn.set = 1 + (letter & 1);
            use_part<STREAMS>(shared.parts[EXPAND], reader, sum);
            if (s.gathers) wrong |= hop<H>(s, mail, shared, patience, 2, letter);
            use_part<STREAMS>(shared.parts[CONTRACT], reader, sum);
            residual.add_up(turn);
            residual.gather(turn);
            UNROLL
            for (int i = 0; i < PAIRS; ++i) {
                const counted::Pair newest = residual.last_but_one[i];
                residual.last_but_one[i] = residual.last[i], residual.last[i] = newest;
            }
            ++turn.number;
        }
        use_part<STREAMS>(shared.parts[LOGITS], reader, sum);
        if (E != NONE) wrong |= find_best(s, mail, patience, step + 1);
    }
    if (CLUSTERS && !STREAMS) cluster_meet();
    if (wrong || residual.wrong) atomicOr(mail.errors, 1u);
    if (STREAMS) atomicXor(checksum, sum.x ^ sum.y ^ sum.z ^ sum.w);
}

// ----------------------------------------------------------------------------------------------------- 2. Host

__global__ void fill(unsigned* words, size_t count) {
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
        words[i] = static_cast<unsigned>(i) * 2654435761u ^ static_cast<unsigned>(i >> 13);
}

struct Variant {
    const char* name;
    Exchange exchange;
    Hop hop;
    bool streams, clusters, gathers;  // clusters: groups are clusters
    bool from_l2 = false;
};

constexpr Variant VARIANTS[] = {
    {"exchange: sums, a counter", COUNTER, NO_HOPS, false, false, false},
    {"exchange: counted sums", COUNTED, NO_HOPS, false, false, false},
    {"exchange: slices, sums, a counter", COUNTER, NO_HOPS, false, true, true},
    {"exchange: slices, counted sums, shared", SHARED, NO_HOPS, false, true, true},
    {"2 hops: cluster barrier", NONE, MEETING, false, true, false},
    {"2 hops: cluster mail", NONE, ASYNC, false, true, false},
    {"2 hops: words in global memory", NONE, GLOBAL, false, false, false},
    {"handovers: counted, words", COUNTED, GLOBAL, false, false, false},
    {"handovers: slices, counted, shared, mail", SHARED, ASYNC, false, true, true},
    {"stream: groups of 11", NONE, NO_HOPS, true, false, false},
    {"stream: clusters", NONE, NO_HOPS, true, true, false},
    {"all from L2: slices, counted, shared, mail", SHARED, ASYNC, true, true, true, true},
    {"all: counted, words", COUNTED, GLOBAL, true, false, false},
    {"all: slices, a counter, mail", COUNTER, ASYNC, true, true, true},
    {"all: slices, counted, shared, mail", SHARED, ASYNC, true, true, true},
};

using Kernel = void (*)(const Sizes, const Mail, const unsigned char*, unsigned*);

template <Exchange E, Hop H>
static Kernel kernel_for(const Variant& v) {
    return v.streams ? fewer_kernel<E, H, true> : fewer_kernel<E, H, false>;
}
static Kernel kernel_of(const Variant& v) {
    const int which = 4 * v.exchange + v.hop;
    switch (which) {
        case 4 * NONE + NO_HOPS: return kernel_for<NONE, NO_HOPS>(v);
        case 4 * NONE + MEETING: return fewer_kernel<NONE, MEETING, false>;
        case 4 * NONE + ASYNC: return kernel_for<NONE, ASYNC>(v);
        case 4 * NONE + GLOBAL: return kernel_for<NONE, GLOBAL>(v);
        case 4 * COUNTER + NO_HOPS: return kernel_for<COUNTER, NO_HOPS>(v);
        case 4 * COUNTER + ASYNC: return kernel_for<COUNTER, ASYNC>(v);
        case 4 * COUNTED + NO_HOPS: return kernel_for<COUNTED, NO_HOPS>(v);
        case 4 * COUNTED + GLOBAL: return kernel_for<COUNTED, GLOBAL>(v);
        case 4 * SHARED + NO_HOPS: return kernel_for<SHARED, NO_HOPS>(v);
        case 4 * SHARED + ASYNC: return kernel_for<SHARED, ASYNC>(v);
        default: throw std::logic_error("a variant without a kernel");
    }
}

struct Memory {
    unsigned char* weights;
    Mail mail;
    unsigned char* all;  // that the mail is in
    size_t mail_bytes;
    unsigned* checksum;
};

// For any variant.
static Memory allocate(size_t weight_bytes, int blocks, int width) {
    Memory memory = {};
    const auto pass = [&](unsigned char* base) {
        size_t at = 0;
        const auto take = [&](auto*& part, size_t count) {
            part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(base + at);
            at += (count * sizeof *part + 127) / 128 * 128;
        };
        take(memory.mail.sums, SETS * width), take(memory.mail.counters, 2 * LINE);
        take(memory.mail.best, 2 * blocks), take(memory.mail.letters, 3 * 2 * blocks * MAX_HOP_WORDS);
        take(memory.mail.errors, 1);
        return at;
    };
    memory.mail_bytes = pass(nullptr);
    CUDA_CHECK(cudaMalloc(&memory.all, memory.mail_bytes));
    pass(memory.all);
    CUDA_CHECK(cudaMalloc(&memory.weights, weight_bytes));
    CUDA_CHECK(cudaMalloc(&memory.checksum, sizeof(unsigned)));
    return memory;
}

struct Launch {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    Launch(int blocks, int cluster, int shared_bytes) {
        attributes[0].id = cudaLaunchAttributeCooperative, attributes[0].val.cooperative = 1;
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim.x = cluster;
        attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
        config.gridDim = dim3(blocks), config.blockDim = dim3(THREADS + 32), config.dynamicSmemBytes = shared_bytes;
        config.attrs = attributes, config.numAttrs = cluster > 1 ? 2 : 1;
    }
};

static void launch(const Variant& v, const Sizes& s, const Memory& memory) {
    CUDA_CHECK(cudaMemset(memory.all, 0, memory.mail_bytes));
    CUDA_CHECK(cudaMemset(memory.checksum, 0, sizeof(unsigned)));
    const Kernel kernel = kernel_of(v);
    const int shared = s.slots * s.slot_bytes;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    Launch how(s.blocks, v.clusters ? s.group : 1, shared);
    CUDA_CHECK(cudaLaunchKernelEx(&how.config, kernel, s, memory.mail, memory.weights, memory.checksum));
}

#ifndef CUDA_SIMULATOR
// Clusters of so many blocks that run at once, with as much shared memory as here.
static int clusters_of(int cluster, int shared_bytes) {
    const auto kernel = fewer_kernel<SHARED, ASYNC, true>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    if (cluster > 8) CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    Launch how(cluster, cluster, shared_bytes);
    how.attributes[0].val.cooperative = 0;
    int clusters = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &how.config));
    return clusters;
}

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
    int cluster = small ? 2 : 8, clusters = small ? 3 : 16;
#ifndef CUDA_SIMULATOR
    if (!small) {
        std::printf("clusters of so many blocks that run at once:");
        for (int size : {2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16})
            std::printf("  %d of %d", clusters_of(size, 200 << 10), size);
        std::printf("\n");
        clusters = std::min(clusters, clusters_of(cluster, 200 << 10));
        if (clusters < 12 || processors < 132) {
            std::fprintf(stderr, "needs 132 multiprocessors and 12 clusters of 8 blocks: %d, %d\n", processors,
                         clusters);
            return 1;
        }
    }
#endif
    const Sizes sizes = sizes_of(small, processors, clusters, cluster, false, false);
    const Memory memory = allocate(sizes.bytes, processors, sizes.width);
    fill<<<small ? 2 : 1024, 256>>>(reinterpret_cast<unsigned*>(memory.weights), sizes.bytes / 4);
    CUDA_CHECK_LAUNCH();
    std::vector<unsigned> host(sizes.bytes / 4);
    CUDA_CHECK(cudaMemcpy(host.data(), memory.weights, sizes.bytes, cudaMemcpyDeviceToHost));
    unsigned expected = 0;
    for (unsigned word : host) expected ^= word;

    std::printf("%.1f MB in a step\n", 1e-6 * static_cast<double>(sizes.bytes));
    bool right = true;
    for (const Variant& v : VARIANTS) {
        Sizes s = sizes_of(small, processors, clusters, cluster, v.clusters, v.gathers);
        s.own_bytes = v.from_l2 ? std::min(sizes.bytes, size_t{24} << 20) / s.blocks / 128 * 128 : 0;
        const bool sums = v.streams && !v.from_l2;
        s.steps = small ? 2 : 3;
        launch(v, s, memory);
        unsigned found = 0, errors = 0;
        CUDA_CHECK(cudaMemcpy(&found, memory.checksum, sizeof found, cudaMemcpyDeviceToHost));
        CUDA_CHECK(cudaMemcpy(&errors, memory.mail.errors, sizeof errors, cudaMemcpyDeviceToHost));
        const unsigned wanted = s.steps % 2 ? expected : 0u;  // each step once more
        const bool fine = errors == 0 && (!sums || found == wanted);
        right &= fine;
        std::printf("%-48s %3d blocks  %s", v.name, s.blocks, fine ? "right" : "WRONG");
#ifndef CUDA_SIMULATOR
        if (!small) {
            s.steps = 100;
            const double time = microseconds(v, s, memory);
            std::printf(" %8.1f us/step", time);
            if (v.streams) std::printf(" %6.2f TB/s", 1e-6 * static_cast<double>(sizes.bytes) / time);
        }
#endif
        std::printf("\n");
        std::fflush(stdout);
    }
    return right ? 0 : 1;
}
