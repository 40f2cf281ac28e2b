// piece_stream.cuh - what a block is going to need, copied to shared memory long before it does. Compute capability 9.0.
//
//   Piece           bytes of global memory, or two stretches of them, that are used together
//   PieceStream     slots in shared memory through which the pieces of a kernel pass, one after the other
//
// A source says which piece comes next. Every warp uses every piece, in the source's order:
//
//     const unsigned char* piece = stream.wait();     ... it is here ...     stream.release();
//
// One thread of the block, the issuer, asks the copy engine for pieces as slots become free:
//
//     stream.refill(source, idle)     until all slots but `idle` are filled or on their way, or the source has no more
//
// so copies go on while the block waits for other blocks: the pieces depend on nothing that is still to be computed.
// refill() waits for warps that have not released the piece which a new one overwrites. At the end of a phase, when all
// have met, it waits for nobody (idle = 0); between two pieces the issuer's own warp leaves the others half the slots
// of a lead.
#pragma once
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/tma.cuh"

constexpr int MAX_SLOTS = 64;

struct Piece {
    const void* first;
    unsigned first_bytes;
    const void* second;  // goes to second_at of the slot; if there is one
    unsigned second_bytes, second_at;
};

// Of each slot: whether it has been filled, and whether all warps are done with it.
struct SlotBarriers {
    Mbarrier full[MAX_SLOTS], empty[MAX_SLOTS];
};

class PieceStream {
public:
    // All threads; a __syncthreads() must follow. memory [slots][slot_bytes], shared, at a multiple of 128 bytes.
    __device__ __forceinline__ PieceStream(SlotBarriers& barriers, unsigned char* memory, int slots, unsigned slot_bytes,
                                           unsigned warps, bool keep)
        : barriers_(barriers), memory_(memory), slots_(slots), slot_bytes_(slot_bytes), keep_(keep) {
        if (threadIdx.x > 0) return;
        for (int i = 0; i < slots; ++i) mbarrier_init(barriers.full[i], 1), mbarrier_init(barriers.empty[i], warps);
        mbarrier_init_done();
    }

    __device__ __forceinline__ const unsigned char* wait() const {
        mbarrier_wait(barriers_.full[used_.slot], used_.parity);
        return memory_ + used_.slot * slot_bytes_;
    }
    __device__ __forceinline__ void release() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers_.empty[used_.slot]);
        used_.advance(slots_);
        --ahead_;
    }
    __device__ __forceinline__ int slots() const { return slots_; }

    // The issuer only, as are those below. source.next(piece): false if there is none yet.
    template <class Source>
    __device__ __forceinline__ void refill(Source& source, int idle) {
        Piece piece;
        while (ahead_ < slots_ - idle && source.next(piece)) {
            Mbarrier& full = barriers_.full[filled_.slot];
            unsigned char* const to = memory_ + filled_.slot * slot_bytes_;
            mbarrier_wait(barriers_.empty[filled_.slot], filled_.parity ^ 1);
            mbarrier_expect(full, piece.first_bytes + piece.second_bytes);
            load(to, piece.first, piece.first_bytes, full);
            if (piece.second_bytes) load(to + piece.second_at, piece.second, piece.second_bytes, full);
            filled_.advance(slots_);
            ++ahead_;
        }
    }
    // Waits for what is still on its way, so that the block may end.
    __device__ __forceinline__ void drain() {
        for (; ahead_ > 0; --ahead_, used_.advance(slots_)) mbarrier_wait(barriers_.full[used_.slot], used_.parity);
    }

private:
    struct Cursor {
        int slot = 0;
        unsigned parity = 0;
        __device__ __forceinline__ void advance(int slots) {
            if (++slot == slots) slot = 0, parity ^= 1;
        }
    };

    __device__ __forceinline__ void load(void* to, const void* from, unsigned bytes, Mbarrier& full) const {
        if (keep_)
            bulk_load(to, from, bytes, full);
        else
            bulk_load_once(to, from, bytes, full);
    }

    SlotBarriers& barriers_;
    unsigned char* const memory_;
    const int slots_;
    const unsigned slot_bytes_;
    const bool keep_;  // in the L2 cache
    Cursor used_, filled_;
    int ahead_ = 0;  // pieces asked for and not released by this thread
};
