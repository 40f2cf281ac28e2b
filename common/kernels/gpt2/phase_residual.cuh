// phase_residual.cuh - the residual stream: all blocks add to it, and all read the sum. The exchange of the kernel.
//
//   begin        the embedding of a step's token, by those who read the slice
//   add          a number of a product, on its way to everyone
//   gather       the sum of all clusters' numbers -> the stream, in the shared memory of every block
//
// A block keeps the stream's columns of its slice (BlockShare::columns), as a fixed-point number of 64 bits each
// (counted_sums.cuh); so do the blocks of the same rank in all other clusters, and they come to the same numbers.
// PROJECTION and CONTRACT give a block numbers of its slice only:
//
//     block r of cluster 0   adds its numbers \   words of slice r   / looks until all have come, sends to cluster 0
//     block r of cluster 1   adds              >  in the L2 cache   <  looks, sends to cluster 1
//     ...                                     /                      \ ...
//
// so a word has as many addends as there are clusters (PROJECTION: clusters with a head), and as many readers. One trip
// to the L2 cache, one back, and one through the cluster, in which all blocks get the whole stream as floats.
//
// Sets. Nobody may add to words that somebody has not read yet. PROJECTION has a set of words of its own. Who adds to it
// again has had CONTRACT's sum in between, with an addend from every cluster's block of this rank, which had read
// PROJECTION's sum before. CONTRACT has two sets in turn: between two of its sums there is only one of PROJECTION, and to
// that a cluster without a head adds nothing. Who adds to the same set again has had the other one's sum.
//
// A launch begins with words that are 0, and nothing is ever set to 0 in between: a block remembers what it last saw.
#pragma once
#include "common/cuda/unroll.cuh"
#include "common/kernels/gpt2/counted_sums.cuh"
#include "common/kernels/gpt2/phase_block.cuh"

constexpr long long NOT_A_NUMBER = static_cast<long long>(1ull << 63);  // in the stream, from then on

template <class K>
class ResidualStream {
  public:
    __device__ __forceinline__ ResidualStream(const Steps& steps, const BlockMemory& memory, const BlockShare& share,
                                              Boxes& boxes)
        : a_(steps), m_(memory), share_(share), box_(boxes.stream), rows_(K::rows(steps)),
          columns_(share.columns.count()), pairs_(columns_ / 2) {
        while (lanes_ < K::cluster(steps) && 2 * lanes_ * rows_ * pairs_ <= BLOCK_THREADS) lanes_ *= 2;
        const int item = static_cast<int>(threadIdx.x) / lanes_;
        step_ = BLOCK_THREADS / lanes_, lane_ = threadIdx.x % lanes_, row_ = item / max(pairs_, 1), pair_ = item - row_ * pairs_;
        for (int i = threadIdx.x; i < (1 + SUM_SETS) * rows_ * columns_; i += BLOCK_THREADS) m_.sums[i] = 0;
    }

    // Columns col ... col + 3 of the embedding. The threads that read the slice need a block_sync() behind it.
    __device__ __forceinline__ void begin(int row, int col, const float4& x) const {
        if (col < share_.columns.begin || col >= share_.columns.end) return;
        long long* const stream = m_.sums + row * columns_ + col - share_.columns.begin;
        const float values[4] = {x.x, x.y, x.z, x.w};
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const long long fixed = counted::to_fixed(a_.plan.sum_scale, values[i]);
            stream[i] = fixed == a_.plan.sum_scale.wrong ? NOT_A_NUMBER : fixed;
        }
    }
    __device__ __forceinline__ void add(int set, int row, int col, float value) const {
        counted::add(word(set, row, col), counted::to_fixed(a_.plan.sum_scale, value));
    }
    // Memory for a step's first stream, which comes from no exchange.
    __device__ __forceinline__ float* fresh() const { return letter(number_ + 1); }
    // addends: of each word. Every thread that computes gets the stream, float [rows][width]; it
    // stays until the next gather() but one, which must be behind a block_sync().
    __device__ __forceinline__ const float* gather(int set, unsigned addends) {
        if (threadIdx.x == 0) mail_expect(box_, number_, 4 * rows_ * a_.model.width);
        float* const stream = letter(number_);
        int row = row_, pair = pair_;
        NO_UNROLL
        for (int first = 0; first < lanes_ * rows_ * pairs_; first += BLOCK_THREADS) {
            const bool exists = row < rows_;
            const int at = 2 * pair, col = share_.columns.begin + at;
            Pair now = {}, found = {};
            if (exists) found = look(set, row, at, col, addends, now);
            __syncwarp();  // all lanes of the pair have read what the first one now changes
            if (exists) {
                const uint2 bits = make_uint2(as_bits(found.x[0]), as_bits(found.x[1]));
                NO_UNROLL
                for (int to = lane_; to < K::cluster(a_); to += lanes_)
                    send(stream + row * a_.model.width + col, to, box_, number_, bits);
                if (lane_ == 0) now.store(of_slice(1 + set, row, at)), found.store(of_slice(0, row, at));
            }
            pair += step_;
            while (pair >= pairs_ && row < rows_) pair -= pairs_, ++row;
        }
        mail_wait(box_, number_);
        ++number_;
        return stream;
    }

  private:
    struct Pair {  // two columns of a row
        long long x[2] = {};
        __device__ __forceinline__ void load(const long long* from) {
            const longlong2 both = *reinterpret_cast<const longlong2*>(from);
            x[0] = both.x, x[1] = both.y;
        }
        __device__ __forceinline__ void store(long long* to) const {
            *reinterpret_cast<longlong2*>(to) = make_longlong2(x[0], x[1]);
        }
    };

    __device__ __forceinline__ float* letter(unsigned number) const {
        return m_.stream + (number & 1) * rows_ * a_.model.width;
    }
    __device__ __forceinline__ counted::Sum* word(int set, int row, int col) const {
        return reinterpret_cast<counted::Sum*>(a_.words) + a_.plan.exchange.sums +
               (set * rows_ + row) * a_.model.width + col;
    }
    // which: 0 the stream, 1 + set the words as last seen
    __device__ __forceinline__ long long* of_slice(int which, int row, int at) const {
        return m_.sums + (which * rows_ + row) * columns_ + at;
    }
    __device__ __forceinline__ unsigned as_bits(long long x) const {
        return __float_as_uint(x == NOT_A_NUMBER ? NAN : counted::to_float(a_.plan.sum_scale, x));
    }
    // Two words, looked at until they are whole -> now. Returns the stream with what came to it.
    __device__ __forceinline__ Pair look(int set, int row, int at, int col, unsigned addends,
                                         Pair& now) const {
        const counted::Scale scale = a_.plan.sum_scale;
        const counted::Sum* const words = word(set, row, col);
        Pair before, stream;
        before.load(of_slice(1 + set, row, at)), stream.load(of_slice(0, row, at));
        long long came[2] = {};
        bool whole = false;
        while (!whole) {
            const counted::Pair both = counted::peek(words);
            const counted::Sum sums[2] = {both.x, both.y};
            whole = true;
            UNROLL
            for (int i = 0; i < 2; ++i) {
                came[i] = counted::since(sums[i], static_cast<counted::Sum>(before.x[i]), addends);
                whole &= counted::is_whole(came[i]);
                now.x[i] = static_cast<long long>(sums[i]);
            }
        }
        UNROLL
        for (int i = 0; i < 2; ++i) {
            const bool fine = stream.x[i] != NOT_A_NUMBER && counted::is_number(scale, came[i], addends);
            stream.x[i] = fine ? stream.x[i] + came[i] : NOT_A_NUMBER;
        }
        return stream;
    }

    const Steps& a_;
    const BlockMemory& m_;
    const BlockShare& share_;
    MailBox& box_;
    const int rows_, columns_, pairs_;
    // Of a pair: neighbouring threads that see to it, each of which sends it to its share of the blocks; which of them
    // this is; the thread's first pair, and how far away the next one is
    int lanes_ = 1, lane_, row_, pair_, step_;
    unsigned number_ = 0;  // of the exchange
};
