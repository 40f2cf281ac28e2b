// piece_stream.cuh - what a block is going to need, copied to shared memory long before it does. Hopper and later.
//
//   Piece                bytes of global memory, or two stretches of them, that are used together
//   StreamBarriers       of the slots in shared memory through which pieces pass; stream_init()
//   PieceFeeder          one thread asks the copy engine for one piece after the other, as slots become free
//   PieceReader          the warps that use them
//
// The feeder is a warp of its own, which does nothing else: it is ahead of the readers by as many pieces as there are
// slots, also while they wait for other blocks. Every reading warp uses every piece, in the feeder's order:
//
//     feeder   feed(piece); feed(piece); ...                    false: the readers have ended; then drain()
//     reader   piece = wait();  ... it is here ...  release();
//
// Between two pieces a feeder should add and compare, no more: what it takes for one is what the memory waits.
#pragma once
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/tma.cuh"
#include "common/cuda/unroll.cuh"

constexpr int MAX_SLOTS = 32;

struct Piece {
    const void* first;
    unsigned first_bytes;
    const void* second;  // goes to second_at of the slot; if there is one
    unsigned second_bytes, second_at;
};

// Of each slot: whether it has been filled, and whether all warps are done with it.
struct StreamBarriers {
    hopper::Mbarrier full[MAX_SLOTS], empty[MAX_SLOTS];
    hopper::Mbarrier told[2];  // the readers have come to the end of an even step, of an odd one
    unsigned ended;    // they want no more pieces
};

// By one thread; a __syncthreads() must follow. warps: that read.
__device__ __forceinline__ void stream_init(StreamBarriers& barriers, int slots, unsigned warps) {
    for (int i = 0; i < slots; ++i) {
        hopper::mbarrier_init(barriers.full[i], 1);
        hopper::mbarrier_init(barriers.empty[i], warps);
    }
    hopper::mbarrier_init(barriers.told[0], 1), hopper::mbarrier_init(barriers.told[1], 1);
    barriers.ended = 0;
    hopper::mbarrier_init_done();
}

struct StreamCursor {
    int slot = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void advance(int slots) {
        if (++slot == slots) slot = 0, parity ^= 1;
    }
    // by: fewer than slots
    __device__ __forceinline__ StreamCursor moved(int by, int slots) const {
        const bool wraps = slot + by >= slots;
        return {slot + by - (wraps ? slots : 0), parity ^ wraps};
    }
};

class PieceReader {
  public:
    // memory [slots][slot_bytes], shared, at a multiple of 128 bytes
    __device__ __forceinline__ PieceReader(StreamBarriers& barriers, unsigned char* memory, int slots,
                                           unsigned slot_bytes)
        : barriers_(barriers), memory_(memory), slots_(slots), slot_bytes_(slot_bytes) {}

    // The next piece, or the one so many pieces behind it; fewer than there are slots.
    __device__ __forceinline__ const unsigned char* wait(int behind = 0) const {
        const StreamCursor at = cursor_.moved(behind, slots_);
        hopper::mbarrier_wait(barriers_.full[at.slot], at.parity);
        return memory_ + at.slot * slot_bytes_;
    }
    // The next `count` pieces, all of them asked for at once; beyond them the last one again. count: 1 .. N
    template <int N>
    __device__ __forceinline__ void wait_for(const unsigned char* (&pieces)[N], int count) const {
        bool here = true;
        UNROLL
        for (int i = 0; i < N; ++i) {
            const StreamCursor at = cursor_.moved(min(i, count - 1), slots_);
            pieces[i] = memory_ + at.slot * slot_bytes_;
            here &= hopper::mbarrier_try_wait(barriers_.full[at.slot], at.parity);
        }
        if (here) return;
        NO_UNROLL
        for (int i = 0; i < count; ++i) wait(i);
    }
    // The next `count` pieces, 32 at most, are not wanted any more.
    __device__ __forceinline__ void release(int count = 1) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        __syncwarp();
        if (lane < count) hopper::mbarrier_arrive(barriers_.empty[cursor_.moved(lane, slots_).slot]);
        cursor_ = cursor_.moved(count, slots_);
    }
    // By one thread, behind a barrier of all readers: they have come to the end of a step; more: they want another one.
    __device__ __forceinline__ void tell(int step, bool more) {
        if (!more) atomicExch(&barriers_.ended, 1u);
        hopper::mbarrier_arrive(barriers_.told[step & 1]);
    }

  private:
    StreamBarriers& barriers_;
    unsigned char* const memory_;
    const int slots_;
    const unsigned slot_bytes_;
    StreamCursor cursor_;
};

class PieceFeeder {
  public:
    // keep: what is copied, in the L2 cache. Other arguments: as of PieceReader.
    __device__ __forceinline__ PieceFeeder(StreamBarriers& barriers, unsigned char* memory, int slots,
                                           unsigned slot_bytes, bool keep)
        : barriers_(barriers), memory_(memory), slots_(slots), slot_bytes_(slot_bytes), keep_(keep) {}

    // False: nobody wants it, as the readers have ended.
    __device__ __forceinline__ bool feed(const Piece& piece) {
        while (!hopper::mbarrier_try_wait(barriers_.empty[cursor_.slot], cursor_.parity ^ 1))
            if (have_ended()) return false;
        hopper::Mbarrier& full = barriers_.full[cursor_.slot];
        unsigned char* const to = memory_ + cursor_.slot * slot_bytes_;
        hopper::mbarrier_expect(full, piece.first_bytes + piece.second_bytes);
        load(to, piece.first, piece.first_bytes, full);
        if (piece.second_bytes) load(to + piece.second_at, piece.second, piece.second_bytes, full);
        cursor_.advance(slots_);
        return true;
    }
    // Waits for the end of this step of the readers'. The step after the next one must not have been fed yet. False: it
    // was their last.
    __device__ __forceinline__ bool hear(int step) {
        hopper::mbarrier_wait(barriers_.told[step & 1], step >> 1 & 1);
        return !have_ended();
    }
    // Waits for what is still on its way, so that the block may end.
    __device__ __forceinline__ void drain() {
        // Slots before the cursor were filled in this round, the others in the last one. If there was none, their first
        // phase is not complete, and that is what a wait for the phase before it finds.
        for (int i = 0; i < slots_; ++i)
            hopper::mbarrier_wait(barriers_.full[i], i < cursor_.slot ? cursor_.parity : cursor_.parity ^ 1);
    }

  private:
    __device__ __forceinline__ bool have_ended() const { return atomicAdd(&barriers_.ended, 0u) != 0; }
    __device__ __forceinline__ void load(void* to, const void* from, unsigned bytes, hopper::Mbarrier& full) const {
        if (keep_)
            hopper::bulk_load(to, from, bytes, full);
        else
            hopper::bulk_load_once(to, from, bytes, full);
    }

    StreamBarriers& barriers_;
    unsigned char* const memory_;
    const int slots_;
    const unsigned slot_bytes_;
    const bool keep_;
    StreamCursor cursor_;
};
