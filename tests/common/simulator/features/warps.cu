// Warps and atomics: shuffles, votes, matches, reductions, __activemask() in branches, sums after lanes have returned,
// atomic operations of every type, a spin lock, a last block that finishes the work of all.
#include "feature.h"

#define FULL 0xffffffffu

__global__ void lanes(int* out) {
    const int t = threadIdx.x;
    out[8 * t] = __shfl_down_sync(FULL, t, 1, 16);
    out[8 * t + 1] = __popc(__ballot_sync(FULL, t % 3 == 0));
    out[8 * t + 2] = __popc(__match_any_sync(FULL, t % 5));
    out[8 * t + 3] = __reduce_add_sync(FULL, t);
    out[8 * t + 4] = t % 2 ? __popc(__activemask()) : -1;
    out[8 * t + 5] = __any_sync(FULL, t == 40) + 2 * __all_sync(FULL, t < 64);
    __syncwarp();
    out[8 * t + 6] = __syncthreads_count(t < 10);
    if (t >= 20) return;
    int sum = t;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(FULL, sum, d);
    __syncthreads();
    out[8 * t + 7] = sum;
}

struct Totals {
    int sum, least, most, bits;
    unsigned ring;
    unsigned long long wide;
    float real;
    double exact;
    int lock, guarded;
    unsigned blocks;
    int finished;
};
__global__ void atomics(Totals* totals, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&totals->sum, i), atomicMin(&totals->least, -i), atomicMax(&totals->most, i);
        atomicOr(&totals->bits, 1 << i % 20), atomicInc(&totals->ring, 6u);
        atomicAdd(&totals->wide, 1ull << 33), atomicAdd(&totals->real, 0.5f), atomicAdd(&totals->exact, 0.25);
        for (bool done = false; !done;)
            if (atomicCAS(&totals->lock, 0, 1) == 0) {
                __threadfence();
                volatile int* guarded = &totals->guarded;
                *guarded = *guarded + 1;
                __threadfence();
                atomicExch(&totals->lock, 0);
                done = true;
            }
    }
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicInc(&totals->blocks, gridDim.x) == gridDim.x - 1;
    __syncthreads();
    if (is_last && threadIdx.x == 0) totals->finished = *(volatile int*)&totals->sum, totals->blocks = 0;
}

int main() {
    Buffer<int> out(64 * 8);
    lanes<<<1, 64>>>(out.device());
    out.fetch();
    for (int t = 0; t < 64; ++t) {
        int same = 0, thirds = 0;
        for (int other = t / 32 * 32; other < t / 32 * 32 + 32; ++other) same += other % 5 == t % 5, thirds += other % 3 == 0;
        EXPECT(out[8 * t] == (t % 16 == 15 ? t : t + 1) && out[8 * t + 1] == thirds && out[8 * t + 2] == same);
        EXPECT(out[8 * t + 3] == 496 + t / 32 * 1024 && out[8 * t + 4] == (t % 2 ? 16 : -1));
        EXPECT(out[8 * t + 5] == (t >= 32) + 2 && out[8 * t + 6] == 10);
    }
    EXPECT(out[7] == 190);
    Buffer<Totals> totals(1);
    const int n = 300;
    atomics<<<5, 64>>>(totals.device(), n);
    totals.fetch();
    const Totals& t = totals[0];
    EXPECT(t.sum == n * (n - 1) / 2 && t.least == 1 - n && t.most == n - 1 && t.bits == (1 << 20) - 1 && t.ring == n % 7);
    EXPECT(t.wide == (1ull << 33) * n && t.real == 0.5f * n && t.exact == 0.25 * n && t.guarded == n);
    EXPECT(t.finished == t.sum && t.blocks == 0);
    return done();
}
