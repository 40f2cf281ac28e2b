// cub: reductions and scans of warps and blocks, tiles, and sums over the device.
#include <cub/cub.cuh>
#include <cuda/functional>

#include "feature.h"

constexpr int THREADS = 96, ITEMS = 4;

__global__ void block_parts(const int* in, int* sums, int* before, int* most, int* stored) {
    using Load = cub::BlockLoad<int, THREADS, ITEMS, cub::BLOCK_LOAD_DIRECT>;
    using Store = cub::BlockStore<int, THREADS, ITEMS, cub::BLOCK_STORE_STRIPED>;
    using Scan = cub::BlockScan<int, THREADS>;
    using Reduce = cub::BlockReduce<int, THREADS>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Scan::TempStorage scan;
        typename Reduce::TempStorage reduce;
        typename Store::TempStorage store;
    } temp;
    int items[ITEMS], scanned[ITEMS], total;
    Load(temp.load).Load(in, items);
    __syncthreads();
    const int sum = Reduce(temp.reduce).Sum(items);
    __syncthreads();
    Scan(temp.scan).ExclusiveSum(items, scanned);
    __syncthreads();
    int one;
    Scan(temp.scan).InclusiveSum(items[0], one, total);
    __syncthreads();
    const int largest = Reduce(temp.reduce).Reduce(items[0], cuda::maximum<>());
    __syncthreads();
    if (threadIdx.x == 0) sums[0] = sum, sums[1] = total, most[0] = largest;
    for (int i = 0; i < ITEMS; ++i) before[threadIdx.x * ITEMS + i] = scanned[i];
    Store(temp.store).Store(stored, items);
}

__global__ void warp_parts(const int* in, int* out) {
    __shared__ typename cub::WarpReduce<int>::TempStorage reduce[2];
    __shared__ typename cub::WarpScan<int, 16>::TempStorage scan[4];
    const int t = threadIdx.x;
    const int sum = cub::WarpReduce<int>(reduce[t / 32]).Sum(in[t]);
    int inclusive;
    cub::WarpScan<int, 16>(scan[t / 16]).InclusiveSum(in[t], inclusive);
    out[2 * t] = t % 32 == 0 ? sum : 0;
    out[2 * t + 1] = inclusive;
}

// Each group of 4 lanes goes through a list of its own length, and the groups of a warp leave the loop one by one.
__global__ void lists(const int* lengths, int* out) {
    using Scan = cub::WarpScan<int, 4>;
    __shared__ typename Scan::TempStorage scan[16];
    const int group = threadIdx.x / 4, lane = threadIdx.x % 4;
    int length = 0, before = 0;
    for (int first = 0; first < lengths[group]; first += 4) {
        int total;
        Scan(scan[group]).ExclusiveSum(first + lane < lengths[group], before, total);
        before += length;
        length += total;
    }
    out[2 * threadIdx.x] = Scan(scan[group]).Broadcast(length, group % 4);
    out[2 * threadIdx.x + 1] = before;
}

__global__ void sort_block(const float* in, float* out, int* from) {
    using Sort = cub::BlockRadixSort<float, 64, 2, int>;
    __shared__ typename Sort::TempStorage storage;
    float keys[2];
    int places[2];
    for (int i = 0; i < 2; ++i) keys[i] = in[2 * threadIdx.x + i], places[i] = 2 * threadIdx.x + i;
    Sort(storage).Sort(keys, places);
    for (int i = 0; i < 2; ++i) out[2 * threadIdx.x + i] = keys[i], from[2 * threadIdx.x + i] = places[i];
}

int main() {
    const int n = THREADS * ITEMS;
    Buffer<int> in(n), sums(2), before(n), most(1), stored(n), warps(128);
    for (int i = 0; i < n; ++i) in[i] = (i * 37) % 101;
    block_parts<<<1, THREADS>>>(in.device(), sums.device(), before.device(), most.device(), stored.device());
    warp_parts<<<1, 64>>>(in.device(), warps.device());
    sums.fetch(), before.fetch(), most.fetch(), stored.fetch(), warps.fetch();
    int sum = 0, firsts = 0, largest = 0;
    for (int i = 0; i < n; ++i) {
        EXPECT(before[i] == sum);
        sum += in[i];
        if (i % ITEMS == 0) firsts += in[i], largest = in[i] > largest ? in[i] : largest;
        EXPECT(stored[i % ITEMS * THREADS + i / ITEMS] == in[i]);
    }
    EXPECT(sums[0] == sum && sums[1] == firsts && most[0] == largest);
    int warp = 0, sixteen = 0;
    for (int t = 0; t < 64; ++t) {
        sixteen = t % 16 ? sixteen + in[t] : in[t];
        EXPECT(warps[2 * t + 1] == sixteen);
    }
    for (int t = 0; t < 32; ++t) warp += in[t];
    EXPECT(warps[0] == warp);
    for (int group = 0; group < 16; ++group) in[group] = 3 * group + 1;
    lists<<<1, 64>>>(in.device(), warps.device());
    warps.fetch();
    for (int t = 0; t < 64; ++t) {
        const int length = 3 * (t / 4) + 1, last = (length - 1) / 4 * 4;
        EXPECT(warps[2 * t] == length && warps[2 * t + 1] == min(length, last + t % 4));
    }
    for (int i = 0; i < n; ++i) in[i] = (i * 37) % 101;
    size_t bytes = 0;
    int *source = in.device(), *result = sums.device(), *scanned = before.device();
    EXPECT(cub::DeviceReduce::Sum(nullptr, bytes, source, result, n) == cudaSuccess && bytes > 0);
    void* storage;
    cudaMalloc(&storage, bytes);
    EXPECT(cub::DeviceReduce::Sum(storage, bytes, source, result, n) == cudaSuccess);
    cudaFree(storage), cudaMalloc(&storage, 1 << 20), bytes = 1 << 20;
    EXPECT(cub::DeviceScan::InclusiveSum(storage, bytes, source, scanned, n) == cudaSuccess);
    cudaFree(storage);
    sums.fetch(), before.fetch();
    EXPECT(sums[0] == sum && before[n - 1] == sum && before[0] == in[0]);
    // Radix sorts: of a block, and of the device with values and both buffers.
    Buffer<float> keys(128), sorted(128);
    Buffer<int> order(128), ordered(128);
    for (int i = 0; i < 128; ++i) keys[i] = (i * 37 % 128 - 64) / 4.0f, order[i] = i;
    sort_block<<<1, 64>>>(keys.device(), sorted.device(), ordered.device());
    sorted.fetch(), ordered.fetch();
    for (int i = 0; i < 128; ++i) EXPECT(sorted[i] == (i - 64) / 4.0f && keys[ordered[i]] == sorted[i]);
    float *from = keys.device(), *to = sorted.device();
    int *values = order.device(), *values_out = ordered.device();
    EXPECT(cub::DeviceRadixSort::SortPairsDescending(nullptr, bytes, from, to, values, values_out, 128) == cudaSuccess);
    cudaMalloc(&storage, bytes);
    EXPECT(cub::DeviceRadixSort::SortPairsDescending(storage, bytes, from, to, values, values_out, 128) == cudaSuccess);
    sorted.fetch(), ordered.fetch();
    for (int i = 0; i < 128; ++i) EXPECT(sorted[i] == (63 - i) / 4.0f && keys[ordered[i]] == sorted[i]);
    cub::DoubleBuffer<float> both(from, to);
    cudaFree(storage), bytes = 0;
    cub::DeviceRadixSort::SortKeys(nullptr, bytes, both, 128);
    cudaMalloc(&storage, bytes);
    EXPECT(cub::DeviceRadixSort::SortKeys(storage, bytes, both, 128) == cudaSuccess);
    cudaMemcpy(sorted.host.data(), both.Current(), 512, cudaMemcpyDeviceToHost), cudaFree(storage);
    for (int i = 0; i < 128; ++i) EXPECT(sorted[i] == (i - 64) / 4.0f);
    return done();
}
