// mbarriers and named barriers (compute capability 9.0) between the warps of a block.
//
//   handed_over     warp 0 fills a row, warp 1 waits for it and reads
//   rounds          the same several times, with a barrier for "full" and one for "empty"
//   misused         barriers that are not there, or get too many arrivals
//   halves          named barriers: warps that write and warps that read
#include "case.h"
#include "common/cuda/mbarrier.cuh"

using namespace hopper;

enum class Hand { right, no_wait, parity_off, one_arrival_missing, too_many_arrivals, one_lane_arrives, polls, by_state, drops };

// 64 threads; out[t] = in[(t + 1) % 32] by warp 1
template <Hand HOW>
__global__ void handed_over(const float* in, float* out) {
    __shared__ float row[32];
    __shared__ Mbarrier full;
    const int t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(full, HOW == Hand::one_arrival_missing ? 33 : HOW == Hand::too_many_arrivals ? 31 : HOW == Hand::one_lane_arrives ? 1 : 32);
        mbarrier_init_done();
    }
    __syncthreads();
    if (t < 32) {
        row[t] = in[t];  // line: fill row
        if (HOW == Hand::drops)
            asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" ::"r"(shared_offset(&full)) : "memory");
        else if (HOW != Hand::one_lane_arrives || t == 31)
            mbarrier_arrive(full);  // line: arrive
        return;
    }
    if (HOW == Hand::polls) {
        unsigned ready = 0;
        while (!ready)
            asm volatile(
                "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
                : "=r"(ready)
                : "r"(shared_offset(&full))
                : "memory");
    } else if (HOW != Hand::no_wait)
        mbarrier_wait(full, HOW == Hand::parity_off);  // line: wait for row
    out[t - 32] = row[(t + 1) % 32];                   // line: read row
}
template <Hand HOW>
static void handed_over_case(float* result) {
    Array<float> in = ramp(32), out(32);
    handed_over<HOW><<<1, 64>>>(in.data, out.data);
    out.download(result);
}
CASE(mbarrier_hands_over) { handed_over_case<Hand::right>(result); }
CASE(mbarrier_not_waited_for) { handed_over_case<Hand::no_wait>(result); }
CASE(mbarrier_parity_off_by_one) { handed_over_case<Hand::parity_off>(result); }
CASE(mbarrier_arrival_missing) { handed_over_case<Hand::one_arrival_missing>(result); }
CASE(mbarrier_arrival_too_many) { handed_over_case<Hand::too_many_arrivals>(result); }
CASE(mbarrier_one_lane_for_all) { handed_over_case<Hand::one_lane_arrives>(result); }
CASE(mbarrier_polled) { handed_over_case<Hand::polls>(result); }
CASE(mbarrier_drop) { handed_over_case<Hand::drops>(result); }

enum class Rounds { right, no_empty, full_parity_stays, empty_parity_wrong, one_round_short };

// 64 threads, 5 rounds through one slot; out[t] = 0 + 1 + ... + 4 rows of 32, each lane its neighbor's
template <Rounds HOW>
__global__ void rounds(const float* in, float* out) {
    __shared__ float slot[32];
    __shared__ Mbarrier full, empty;
    const int t = threadIdx.x, lane = t % 32, count = 5;
    if (t == 0) {
        mbarrier_init(full, 32), mbarrier_init(empty, 32);
        mbarrier_init_done();
    }
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < count; ++i) {
        const unsigned parity = i % 2;
        if (t < 32) {
            if (HOW != Rounds::no_empty)
                mbarrier_wait(empty, parity ^ (HOW != Rounds::empty_parity_wrong));  // line: wait for empty
            slot[lane] = in[32 * i + lane];                                        // line: fill slot
            if (HOW != Rounds::one_round_short || i + 1 < count) mbarrier_arrive(full);
        } else {
            mbarrier_wait(full, HOW == Rounds::full_parity_stays ? 0 : parity);  // line: wait for full
            sum += slot[(lane + 1) % 32];                                      // line: use slot
            mbarrier_arrive(empty);
        }
    }
    if (t >= 32) out[lane] = sum;
}
template <Rounds HOW>
static void rounds_case(float* result) {
    Array<float> in = ramp(160), out(32);
    rounds<HOW><<<1, 64>>>(in.data, out.data);
    out.download(result);
}
CASE(rounds_full_and_empty) { rounds_case<Rounds::right>(result); }
CASE(rounds_without_empty) { rounds_case<Rounds::no_empty>(result); }
CASE(rounds_parity_never_flips) { rounds_case<Rounds::full_parity_stays>(result); }
CASE(rounds_empty_parity_wrong) { rounds_case<Rounds::empty_parity_wrong>(result); }
CASE(rounds_last_arrival_missing) { rounds_case<Rounds::one_round_short>(result); }

enum class Misuse { not_initialized, overwritten, copied, twice, invalidated };

template <Misuse HOW>
__global__ void misused(float* out) {
    __shared__ Mbarrier barrier[2];
    if (HOW != Misuse::not_initialized && threadIdx.x == 0) {
        mbarrier_init(barrier[0], 32);
        if (HOW == Misuse::twice) mbarrier_init(barrier[0], 32);
        mbarrier_init_done();
    }
    __syncthreads();
    if (HOW == Misuse::overwritten && threadIdx.x == 0) barrier[0] = 0;
    if (HOW == Misuse::copied && threadIdx.x == 0) barrier[1] = barrier[0];
    if (HOW == Misuse::invalidated && threadIdx.x == 0)
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_offset(&barrier[0])) : "memory");
    __syncthreads();
    Mbarrier& used = barrier[HOW == Misuse::copied];
    mbarrier_arrive(used);
    mbarrier_wait(used, 0);
    out[threadIdx.x] = 1;
}
template <Misuse HOW>
static void misused_case(float* result) {
    Array<float> out(32);
    misused<HOW><<<1, 32>>>(out.data);
    out.download(result);
}
CASE(mbarrier_never_initialized) { misused_case<Misuse::not_initialized>(result); }
CASE(mbarrier_overwritten) { misused_case<Misuse::overwritten>(result); }
CASE(mbarrier_copied) { misused_case<Misuse::copied>(result); }
CASE(mbarrier_initialized_twice) { misused_case<Misuse::twice>(result); }
CASE(mbarrier_used_after_inval) { misused_case<Misuse::invalidated>(result); }

enum class Halves { right, producers_wait, no_barrier, counts_differ, one_warp_missing, other_number };

// 128 threads: warps 0 and 1 write 64 numbers, warps 2 and 3 read those of the other warp.
template <Halves HOW>
__global__ void halves(const float* in, float* out) {
    __shared__ float row[64];
    const int t = threadIdx.x;
    if (t < 64) {
        row[t] = in[t];  // line: fill half
        if (HOW == Halves::one_warp_missing && t >= 32) return;
        if (HOW == Halves::producers_wait)
            asm volatile("barrier.sync 1, 128;" ::: "memory");
        else if (HOW != Halves::no_barrier)
            asm volatile("barrier.arrive 1, 128;" ::: "memory");  // line: half arrives
        return;
    }
    if (HOW == Halves::counts_differ)
        asm volatile("barrier.sync 1, 64;" ::: "memory");  // line: other count
    else if (HOW == Halves::other_number)
        asm volatile("barrier.sync 2, 128;" ::: "memory");  // line: other number
    else if (HOW != Halves::no_barrier)
        asm volatile("barrier.sync 1, 128;" ::: "memory");  // line: half waits
    out[t - 64] = row[(t + 32) % 64];                       // line: read half
}
template <Halves HOW>
static void halves_case(float* result) {
    Array<float> in = ramp(64), out(64);
    halves<HOW><<<1, 128>>>(in.data, out.data);
    out.download(result);
}
CASE(named_barrier_arrive_and_sync) { halves_case<Halves::right>(result); }
CASE(named_barrier_all_sync) { halves_case<Halves::producers_wait>(result); }
CASE(named_barrier_missing) { halves_case<Halves::no_barrier>(result); }
CASE(named_barrier_counts_differ) { halves_case<Halves::counts_differ>(result); }
CASE(named_barrier_warp_missing) { halves_case<Halves::one_warp_missing>(result); }
CASE(named_barrier_other_number) { halves_case<Halves::other_number>(result); }
