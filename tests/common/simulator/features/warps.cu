// Warps and atomics: shuffles, votes, matches, reductions, __activemask() in branches, sums after lanes have returned,
// atomic operations of every type, a spin lock. One of each; every type and width: kernels/warp.cu, kernels/atomics.cu.
#include "feature.h"

#define FULL 0xffffffffu

__global__ void lanes(int* out) {
    const int t = threadIdx.x;
    out[t] = __shfl_down_sync(FULL, t, 1) + __popc(__ballot_sync(FULL, t % 4 == 0)) + __popc(__match_any_sync(FULL, t % 8));
    out[t] += __reduce_add_sync(FULL, 1) + (t % 2 ? __popc(__activemask()) : 16);
    if (t >= 20) return;
    int sum = t;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(FULL, sum, d);
    if (t == 0) out[0] += sum;
}

struct Totals {
    int sum, least, bits, lock, guarded;
    unsigned long long wide;
    float real;
    double exact;
};
__global__ void atomics(Totals* totals) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&totals->sum, i), atomicMin(&totals->least, -i), atomicOr(&totals->bits, 1 << i % 20);
    atomicAdd(&totals->wide, 1ull << 33), atomicAdd(&totals->real, 0.5f), atomicAdd(&totals->exact, 0.25);
    while (atomicCAS(&totals->lock, 0, 1)) {}
    __threadfence();
    *(volatile int*)&totals->guarded += 1;
    __threadfence();
    atomicExch(&totals->lock, 0);
}

int main() {
    Buffer<int> out(32);
    lanes<<<1, 32>>>(out.device());
    out.fetch();
    for (int t = 1; t < 32; ++t) EXPECT(out[t] == (t == 31 ? t : t + 1) + 8 + 4 + 32 + 16);
    EXPECT(out[0] == 61 + 190);
    Buffer<Totals> totals(1);
    atomics<<<5, 60>>>(totals.device());
    totals.fetch();
    const Totals& t = totals[0];
    EXPECT(t.sum == 44850 && t.least == -299 && t.bits == (1 << 20) - 1 && t.guarded == 300);
    EXPECT(t.wide == (1ull << 33) * 300 && t.real == 150 && t.exact == 75);
    return done();
}
