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
RUN(mbarrier_hands_over, 32, 32, { handed_over<Hand::right><<<1, 64>>>(in.data, out.data); })
RUN(mbarrier_not_waited_for, 32, 32, { handed_over<Hand::no_wait><<<1, 64>>>(in.data, out.data); })
RUN(mbarrier_parity_off_by_one, 32, 32, { handed_over<Hand::parity_off><<<1, 64>>>(in.data, out.data); })
RUN(mbarrier_arrival_missing, 32, 32, { handed_over<Hand::one_arrival_missing><<<1, 64>>>(in.data, out.data); })
RUN(mbarrier_arrival_too_many, 32, 32, { handed_over<Hand::too_many_arrivals><<<1, 64>>>(in.data, out.data); })
RUN(mbarrier_one_lane_for_all, 32, 32, { handed_over<Hand::one_lane_arrives><<<1, 64>>>(in.data, out.data); })
RUN(mbarrier_polled, 32, 32, { handed_over<Hand::polls><<<1, 64>>>(in.data, out.data); })
RUN(mbarrier_drop, 32, 32, { handed_over<Hand::drops><<<1, 64>>>(in.data, out.data); })

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
RUN(rounds_full_and_empty, 160, 32, { rounds<Rounds::right><<<1, 64>>>(in.data, out.data); })
RUN(rounds_without_empty, 160, 32, { rounds<Rounds::no_empty><<<1, 64>>>(in.data, out.data); })
RUN(rounds_parity_never_flips, 160, 32, { rounds<Rounds::full_parity_stays><<<1, 64>>>(in.data, out.data); })
RUN(rounds_empty_parity_wrong, 160, 32, { rounds<Rounds::empty_parity_wrong><<<1, 64>>>(in.data, out.data); })
RUN(rounds_last_arrival_missing, 160, 32, { rounds<Rounds::one_round_short><<<1, 64>>>(in.data, out.data); })

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
RUN(mbarrier_never_initialized, 1, 32, { misused<Misuse::not_initialized><<<1, 32>>>(out.data); })
RUN(mbarrier_overwritten, 1, 32, { misused<Misuse::overwritten><<<1, 32>>>(out.data); })
RUN(mbarrier_copied, 1, 32, { misused<Misuse::copied><<<1, 32>>>(out.data); })
RUN(mbarrier_initialized_twice, 1, 32, { misused<Misuse::twice><<<1, 32>>>(out.data); })
RUN(mbarrier_used_after_inval, 1, 32, { misused<Misuse::invalidated><<<1, 32>>>(out.data); })

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
RUN(named_barrier_arrive_and_sync, 64, 64, { halves<Halves::right><<<1, 128>>>(in.data, out.data); })
RUN(named_barrier_all_sync, 64, 64, { halves<Halves::producers_wait><<<1, 128>>>(in.data, out.data); })
RUN(named_barrier_missing, 64, 64, { halves<Halves::no_barrier><<<1, 128>>>(in.data, out.data); })
RUN(named_barrier_counts_differ, 64, 64, { halves<Halves::counts_differ><<<1, 128>>>(in.data, out.data); })
RUN(named_barrier_warp_missing, 64, 64, { halves<Halves::one_warp_missing><<<1, 128>>>(in.data, out.data); })
RUN(named_barrier_other_number, 64, 64, { halves<Halves::other_number><<<1, 128>>>(in.data, out.data); })
