// hopper_backward_work.cuh - shared by the roles of hopper_backward.cuh: shared memory, and the work of a CTA.
//
//   1. Shapes       Shape, Barriers             a CTA's shared memory
//   2. Policies     Scores, Instance            what is applied to a score or a weight; which rows see a key
//                   Operands                    where wgmma reads in shared memory
//   3. Work         BackwardProblem, Walk       the kernel's arguments; the tiles of a work tile
//                   StageData                   data loaded along with them
//                   DenseKeys                   a policy: all rows, or those at and below a diagonal
//
// Needs sm_90a.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/cuda/hopper_rows.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/kernels/flash/flash_query_sum.cuh"

// ------------------------------------------------------------------------------------------------------- 1. Shapes
//
// A tile is B_r rows of Q or dO. Q needs one stage more than dO, since the next tile's S is started before this one's
// dK. K has two, so that a work tile's K arrives before the previous one's dQ is done. KV_IN_REGISTERS: a group also
// keeps its rows of K and V in registers, as operands of S and dP; the tensor cores then read half as much from shared
// memory.

template <typename T_, int D_, bool KV_IN_REGISTERS_, int DS_STAGES_>
struct Shape {
    using T = T_;
    static constexpr bool WIDE = false;
    static constexpr int CTAS = 1;  // per work tile
    static constexpr int D = D_, GROUPS = 2, STEP = 64, STEPS = 128 / D;  // STEPS: per tile
    static constexpr int B_r = STEP * STEPS, B_c = hopper::GROUP_ROWS * GROUPS;
    static constexpr int K_STAGES = 2, Q_STAGES = 3, DO_STAGES = 2, DS_STAGES = DS_STAGES_, DQ_STAGES = 1;
    static constexpr bool KV_IN_REGISTERS = KV_IN_REGISTERS_;
    static constexpr int THREADS = hopper::GROUP_THREADS * (1 + GROUPS), CONSUMER_WARPS = 4 * GROUPS;
    using Registers = hopper::RegisterShares<GROUPS>;
    using Q = hopper::Tile<B_r, D>;     // or dO
    using K = hopper::Tile<B_c, D>;     // or V
    using dS = hopper::Tile<B_c, STEP>;  // dS^T of a step
    static constexpr int PIECES = GROUPS;  // pieces per tile of dQ
    static constexpr int PIECE_BYTES = QuerySum<D>::PIECE * sizeof(float);
    static_assert(B_r * D == PIECES * QuerySum<D>::PIECE);
    // Shared memory, in bytes: K [K_STAGES], V, Q [Q_STAGES], dO [DO_STAGES], dS [DS_STAGES], pieces of dQ [GROUPS]
    static constexpr int V_AT = K_STAGES * K::BYTES, Q_AT = V_AT + K::BYTES, DO_AT = Q_AT + Q_STAGES * Q::BYTES;
    static constexpr int DS_AT = DO_AT + DO_STAGES * Q::BYTES, DQ_AT = DS_AT + DS_STAGES * dS::BYTES;
    static constexpr int BYTES = DQ_AT + GROUPS * PIECE_BYTES + hopper::ALIGNMENT;
    static_assert(BYTES <= hopper::MAX_SHARED);

    // A group's piece of dQ: its index in the tile, and where it starts in the sum and in shared memory.
    static __device__ __forceinline__ int piece_of(int group) { return group; }
    static __device__ __forceinline__ int piece_begin(int group) { return group * QuerySum<D>::PIECE; }
    static __device__ __forceinline__ int piece_at(int group, int /*stage*/) { return DQ_AT + group * PIECE_BYTES; }
    static __device__ __forceinline__ int piece_bytes(int /*group*/) { return PIECE_BYTES; }

    // The CTA's first key in a work tile; loading the work tile's K into a stage.
    static __device__ __forceinline__ int first_key() { return 0; }
    template <class Stages, class Ring>
    static __device__ __forceinline__ void fill_keys(Stages& stages, const Ring& ring, unsigned char* shared,
                                                     const CUtensorMap& key, int row, int head, int batch) {
        hopper::fill<K>(stages, ring, shared, key, row, head, batch);
    }
    // Which work tiles the CTA takes: one by its own index, then those drawn from a counter.
    struct Numbers {
        int* counter;
        bool drawn = false;

        template <class Barriers>
        __device__ __forceinline__ int next(Barriers&) {
            const int number = drawn ? gridDim.x + atomicAdd(counter, 1) : blockIdx.x;
            drawn = true;
            return number;
        }
    };
};

template <typename T>
using D64 = Shape<T, 64, true, 3>;
template <typename T>
using D128 = Shape<T, 128, false, 1>;
template <typename T>
using D64Capped = Shape<T, 64, false, 3>;  // uses the registers of K and V for P^T (1 - t^2)

template <class S>
struct Barriers {
    hopper::Stages<S::K_STAGES> k;
    hopper::Stages<1> v;
    hopper::Stages<S::Q_STAGES> q;
    hopper::Stages<S::DO_STAGES> grad_out;
    hopper::Stages<S::DS_STAGES> ds;
    hopper::Stages<1> dq[S::GROUPS];

    __device__ void init() {
        k.init(S::CONSUMER_WARPS + S::GROUPS);  // the adders read the work tile, too
        v.init(S::CONSUMER_WARPS), q.init(S::CONSUMER_WARPS), grad_out.init(S::CONSUMER_WARPS);
        ds.init(S::CONSUMER_WARPS / S::STEPS, S::CONSUMER_WARPS);  // read by both groups, or by one of them
        for (auto& piece : dq) piece.init(1, 4);
        hopper::mbarrier_init_done();
    }
    // Where an adder arrives when it has read a group's piece.
    __device__ __forceinline__ hopper::Mbarrier& read(int group, int stage) { return dq[group].empty[stage]; }
};

// ----------------------------------------------------------------------------------------------------- 2. Policies

// What is applied between S and P, and between dP and dS.
//
//   PLAIN      P = exp(scale S - lse)                            dS = P (dP - delta)
//   CAPPED     t = tanh(scale S / c), P = exp(c t - lse)         dS = P (dP - delta) (1 - t^2)
//   DROPPED    P as PLAIN; dV takes kept P / (1 - p)             dS = P (kept dP / (1 - p) - delta)
enum class Scores { PLAIN, CAPPED, DROPPED };

struct DenseKeys;

// A kernel: a shape, which rows see a key, what is applied to a score. Keys is a policy like DenseKeys:
//
//   WorkTile       a work tile; WorkOrder<S>: which work tiles exist, and their order
//   hides          whether some row of a step does not see all of 64 keys; hide: masks their scores
//   store          writes a group's rows of dK or dV
template <class Shape, class Keys_, Scores SCORES_>
struct Instance : Shape {
    using Keys = Keys_;
    using WorkTile = typename Keys::WorkTile;
    using Problem = typename Keys::Problem;
    static constexpr Scores SCORES = SCORES_;
    static constexpr bool KEEPS_SLOPE = SCORES == Scores::CAPPED && Shape::D == 64;  // D = 128: too few registers
    static constexpr bool ADDRESSES_ANEW =
        Shape::WIDE || (Shape::D == 128 && (std::is_same_v<Keys, DenseKeys> || SCORES != Scores::PLAIN));
};

// Tiles as operands of wgmma; MnMajor: of Q or dO, or of one box. The compiler keeps each operand's address in a
// register. With ADDRESSES_ANEW, where registers do not suffice for that, addresses are recomputed at each use.
template <class S>
class Operands {
  public:
    __device__ __forceinline__ explicit Operands(const unsigned char* shared)
        : shared_(shared),
          k_major_(hopper::k_major<typename S::K>(shared)),
          mn_major_(hopper::mn_major<typename S::Q>(shared)) {}

    // The operand `at` bytes after `place` in shared memory.
    __device__ __forceinline__ hopper::KMajor k_major(int place, int at = 0) {
        if constexpr (S::ADDRESSES_ANEW) return anew(k_major_).plus(place + at);
        return hopper::k_major<typename S::K>(shared_ + place).plus(at);
    }
    __device__ __forceinline__ hopper::MnMajor mn_major(int place, int at = 0) {
        if constexpr (S::ADDRESSES_ANEW) return anew(mn_major_).plus(place + at);
        return hopper::mn_major<typename S::Q>(shared_ + place).plus(at);
    }

  private:
    template <class Matrix>
    static __device__ __forceinline__ Matrix& anew(Matrix& matrix) {
        asm volatile("" : "+l"(matrix.bits));
        return matrix;
    }
    const unsigned char* shared_;
    hopper::KMajor k_major_;
    hopper::MnMajor mn_major_;
};

// --------------------------------------------------------------------------------------------------------- 3. Work

// The arguments of every instance; names as in FlashArguments and FlashGradients.
struct BackwardProblem {
    CUtensorMap query, key, value, grad_out;
    const float *lse, *delta;  // [batch, heads, rows], see RowNumbers
    float* grad_query_sum;
    void *grad_key, *grad_value;
    int* counter;  // for drawing work tiles after each CTA's first
    int* turns;    // [batch, heads, rows / 64, D / 64] or nullptr, see reduce_dQ
    float factor, scale;  // factor: multiplies a score, includes log2(e)
    int S_q, S_k, rows, head_dim, kv_heads, group;  // group: query heads per key head
    bool causal;
    int diagonal;
    int batch_kv, k_blocks, section;
};

// Iterates over the tiles of a work tile: those of its first query head, then the second's, ...
struct Walk {
    int head = 0, tile, left;

    template <class WorkTile>
    __device__ __forceinline__ Walk(const WorkTile& work, int group) : tile(work.first), left(work.tiles * group) {}
    template <class WorkTile>
    __device__ __forceinline__ bool advance(const WorkTile& work) {
        if (++tile == work.first + work.tiles) tile = work.first, ++head;
        return --left > 0;
    }
    // The head's index in [batch, heads].
    template <class WorkTile>
    __device__ __forceinline__ int head_number(const WorkTile& work, int group) const {
        return work.batch_kv * group + head;
    }
};

// Data loaded along with the tiles: a work tile with K, lse and delta of the rows with Q and dO.
template <class S>
struct StageData {
    typename S::WorkTile work_tiles[S::K_STAGES];
    alignas(16) float lse[S::Q_STAGES][S::B_r], delta[S::DO_STAGES][S::B_r];
};

// Head and block of work tile `number`, where each of batch_kv heads has `blocks` blocks of keys. The order: sections
// of a few heads, small enough that what their CTAs read and add to at a time stays in the L2 cache; within a section
// the first keys of all heads, then the second, ... Under a causal mask the first keys have the most tiles, so that
// short work tiles even out the end. Without a mask a section is one head.
struct HeadAndBlock {
    int batch_kv, block;

    __device__ __forceinline__ HeadAndBlock(const BackwardProblem& a, int number) {
        const int first = number / (a.section * a.k_blocks) * a.section;
        const int heads = min(a.section, a.batch_kv - first), rest = number - first * a.k_blocks;
        block = rest / heads, batch_kv = first + rest % heads;
    }
};

// Dense: rows see all keys, or with `causal` row i sees keys j <= i + diagonal.
struct DenseKeys {
    using Problem = BackwardProblem;
    static constexpr bool MORE_CTAS_THAN_WORK_TILES = false;

    // A work tile: B_c keys of a K/V head, and the tiles of rows that see any of them, in each of the query heads that
    // use it. Keys that no row sees get the last tile, in which they are hidden: their gradients are 0. tiles = 0: no
    // more work.
    struct WorkTile {
        int batch_kv, k_start, first, tiles;
        // Where the sequence starts in Q, K and the workspaces; whether it contributes to dQ.
        static constexpr int row = 0, key = 0, sum_row = 0, dropout_heads = 0;
        static constexpr bool adds = true;
        // The value of a tile's turn at which this work tile may add to it.
        __device__ __forceinline__ int turn(int /*row*/) const { return k_start; }
    };

    // A work tile as the consumers keep it: in registers.
    struct ConsumerWorkTile {
        WorkTile work;
        __device__ __forceinline__ const WorkTile& operator*() const { return work; }
        __device__ __forceinline__ const WorkTile* operator->() const { return &work; }
    };

    template <class S>
    struct WorkOrder {
        const Problem& a;
        static __device__ __forceinline__ bool skips(const WorkTile&) { return false; }
        __device__ __forceinline__ WorkTile at(int number) const {
            if (number >= a.batch_kv * a.k_blocks) return {};
            const HeadAndBlock place(a, number);
            const int k_start = place.block * S::B_c, end = ceil_div(a.S_q, S::B_r);
            const int tile = min(a.causal ? max(k_start - a.diagonal, 0) / S::B_r : 0, end - 1);
            return {place.batch_kv, k_start, tile, end - tile};
        }
    };

    // key: the first of the group's keys; row: the first of the step's
    template <class S>
    static __device__ __forceinline__ bool hides(const Problem& a, const WorkTile&, int key, int /*group*/, int row) {
        const int end = key + hopper::GROUP_ROWS;
        return end > a.S_k || (a.causal && end - 1 > row + a.diagonal);
    }
    // key: the first of the warp's 16
    template <class S, int N8>
    static __device__ __forceinline__ void hide(float (&s)[N8][4], const Problem& a, const WorkTile& work, int warp_key,
                                                int row) {
        int begin[2];
        UNROLL
        for (int i = 0; i < 2; ++i) {
            const int key = work.k_start + warp_key + mma::d_row(threadIdx.x % 32, 2 * i);
            begin[i] = key >= a.S_k ? S::STEP : a.causal ? key - a.diagonal - row : 0;
        }
        hopper::hide_before(s, begin);
    }

// Writes factor * a warp's rows of dK or dV, starting at `key`.
    template <class S, int D8>
    static __device__ __forceinline__ void store(const Problem& a, const WorkTile& work, void* gradient, int key,
                                                 const float (&d)[D8][4], float factor) {
        using T = typename S::T;
        T* to = static_cast<T*>(gradient) + (int64_t{work.batch_kv} * a.S_k + key) * a.head_dim;
        hopper::write_rows<T>(to, d, {factor, factor}, a.S_k - key, a.head_dim, a.head_dim);
    }
};
