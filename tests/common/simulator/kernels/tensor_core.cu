// Tensor cores and what feeds them: mma, ldmatrix, swizzle, cp.async. All together: the fast kernels of sparse attention.
#include "common/cuda/cp_async.cuh"
#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/mma.cuh"
#include "test.h"

using namespace mma;

// ---- fragments

// Where register i of a lane is, as table[lane][6]: row and column in D, A and B.
__global__ void fragment_table(int* d, int* a, int* b) {
    const int lane = threadIdx.x;
    for (int i = 0; i < 4; ++i) {
        d[(lane * 4 + i) * 2] = mma::d_row(lane, i), d[(lane * 4 + i) * 2 + 1] = mma::d_col(lane, i);
        a[(lane * 4 + i) * 2] = mma::a_row(lane, i), a[(lane * 4 + i) * 2 + 1] = mma::a_col(lane, i);
    }
    for (int i = 0; i < 2; ++i)
        b[(lane * 2 + i) * 2] = mma::b_row(lane, i), b[(lane * 2 + i) * 2 + 1] = mma::b_col(lane);
}
EXPORT(fragments, (int* d, int* a, int* b), { fragment_table<<<1, 32>>>(d, a, b); })

// ---- mma: a [tiles][16][16], b [tiles][16][8], c and d [tiles][16][8]; one warp per tile, element by element

template <typename T>
__device__ unsigned two(const T* first, int step) {
    const T values[2] = {first[0], first[step]};
    unsigned short bits[2];
    memcpy(bits, values, 4);
    return bits[0] | static_cast<unsigned>(bits[1]) << 16;
}

template <typename T>
__global__ void mma_tiles(float* d, const T* a, const T* b, const float* c, int repeats) {
    const int lane = threadIdx.x % 32, tile = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    unsigned a_regs[4], b_regs[2];
    float sums[4];
    for (int i = 0; i < 4; ++i) {
        a_regs[i] = two(&a[(tile * 16 + mma::a_row(lane, i)) * 16 + mma::a_col(lane, i)], 1);
        sums[i] = c[(tile * 16 + mma::d_row(lane, i)) * 8 + mma::d_col(lane, i)];
    }
    for (int i = 0; i < 2; ++i) b_regs[i] = two(&b[(tile * 16 + mma::b_row(lane, i)) * 8 + mma::b_col(lane)], 8);
    for (int r = 0; r < repeats; ++r) mma_m16n8k16<T>(sums, a_regs, b_regs);
    for (int i = 0; i < 4; ++i) d[(tile * 16 + mma::d_row(lane, i)) * 8 + mma::d_col(lane, i)] = sums[i];
}
EXPORT(mma_half, (float* d, const half* a, const half* b, const float* c, int tiles, int repeats),
       { mma_tiles<<<tiles / 2, 64>>>(d, a, b, c, repeats); })
EXPORT(mma_bf16, (float* d, const nv_bfloat16* a, const nv_bfloat16* b, const float* c, int tiles, int repeats),
       { mma_tiles<<<tiles / 2, 64>>>(d, a, b, c, repeats); })

template <typename T>
__global__ void pack_pairs(unsigned* out, const float* in) {
    out[threadIdx.x] = pack<T>(in[2 * threadIdx.x], in[2 * threadIdx.x + 1]);
}
EXPORT(pack_half, (unsigned* out, const float* in, int n), { pack_pairs<half><<<1, n>>>(out, in); })
EXPORT(pack_bf16, (unsigned* out, const float* in, int n), { pack_pairs<nv_bfloat16><<<1, n>>>(out, in); })

// out [16][8] = (q [16][16] k [16][16]^T) rounded, times v [16][8]: attention without its softmax, P in registers.
template <typename T>
__global__ void two_products(float* out, const T* q, const T* k, const T* v) {
    __shared__ __align__(16) T q_tile[16][16], k_tile[16][16], v_tile[16][8];
    const int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) q_tile[i / 16][i % 16] = q[i], k_tile[i / 16][i % 16] = k[i];
    for (int i = lane; i < 128; i += 32) v_tile[i / 8][i % 8] = v[i];
    __syncwarp();
    unsigned q_regs[4], k_regs[2][2], p_regs[4], v_regs[2];
    float s[2][4] = {}, o[4] = {};
    ldmatrix_x4(q_regs[0], q_regs[1], q_regs[2], q_regs[3], &q_tile[lane % 16][lane / 16 * 8]);
    ldmatrix_x4(k_regs[0][0], k_regs[0][1], k_regs[1][0], k_regs[1][1],
                &k_tile[lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
    unsigned again[2];  // V has the columns of one mma
    ldmatrix_x4_trans(v_regs[0], v_regs[1], again[0], again[1], v_tile[lane % 16]);
    for (int n = 0; n < 2; ++n) mma_m16n8k16<T>(s[n], q_regs, k_regs[n]);
    accumulators_as_a<T>(p_regs, s[0], s[1]);
    mma_m16n8k16<T>(o, p_regs, v_regs);
    for (int i = 0; i < 4; ++i) out[mma::d_row(lane, i) * 8 + mma::d_col(lane, i)] = o[i];
}
EXPORT(two_products_half, (float* out, const half* q, const half* k, const half* v),
       { two_products<<<1, 32>>>(out, q, k, v); })
EXPORT(two_products_bf16, (float* out, const nv_bfloat16* q, const nv_bfloat16* k, const nv_bfloat16* v),
       { two_products<<<1, 32>>>(out, q, k, v); })

// ---- ldmatrix: both forms, rows in any order; tile [64][8], rows [32]: the row whose address the lane gives

__global__ void load_all(unsigned* x4, unsigned* x4t, const unsigned short* tile, const int* rows) {
    __shared__ __align__(16) unsigned short shared[64][8];
    const int lane = threadIdx.x;
    for (int i = lane; i < 64 * 8; i += 32) shared[i / 8][i % 8] = tile[i];
    __syncwarp();
    const void* row = shared[rows[lane]];
    ldmatrix_x4(x4[4 * lane], x4[4 * lane + 1], x4[4 * lane + 2], x4[4 * lane + 3], row);
    ldmatrix_x4_trans(x4t[4 * lane], x4t[4 * lane + 1], x4t[4 * lane + 2], x4t[4 * lane + 3], row);
}
EXPORT(ldmatrix_all, (unsigned* x4, unsigned* x4t, const unsigned short* tile, const int* rows),
       { load_all<<<1, 32>>>(x4, x4t, tile, rows); })

template <int ROW_BYTES>
__global__ void swizzle_table(int* out) {  // [rows of one block][chunks]
    const int chunks = ROW_BYTES / 16;
    out[blockIdx.x * chunks + threadIdx.x] = swizzle<ROW_BYTES>(blockIdx.x, threadIdx.x);
}
EXPORT(swizzle_rows, (int* out, int row_bytes, int rows), {
    const int chunks = row_bytes / 16;
    if (row_bytes == 16) swizzle_table<16><<<rows, chunks>>>(out);
    if (row_bytes == 32) swizzle_table<32><<<rows, chunks>>>(out);
    if (row_bytes == 48) swizzle_table<48><<<rows, chunks>>>(out);
    if (row_bytes == 64) swizzle_table<64><<<rows, chunks>>>(out);
    if (row_bytes == 96) swizzle_table<96><<<rows, chunks>>>(out);
    if (row_bytes == 128) swizzle_table<128><<<rows, chunks>>>(out);
    if (row_bytes == 192) swizzle_table<192><<<rows, chunks>>>(out);
    if (row_bytes == 256) swizzle_table<256><<<rows, chunks>>>(out);
})

// ---- cp.async

// Each thread copies BYTES; out [2][threads][BYTES / 4]: right after the wait; with zeros for threads >= valid.
template <int BYTES>
__global__ void copy_words(unsigned* out, const unsigned* in, int valid) {
    constexpr int WORDS = BYTES / 4;
    __shared__ __align__(16) unsigned plain[64 * WORDS], filled[64 * WORDS];
    const int t = threadIdx.x;
    for (int w = 0; w < WORDS; ++w) filled[t * WORDS + w] = 7;
    cp_async<BYTES>(&plain[t * WORDS], &in[t * WORDS]);
    cp_async_zfill<BYTES>(&filled[t * WORDS], &in[(t < valid ? t : 0) * WORDS], t < valid);
    cp_async_wait_all();
    for (int w = 0; w < WORDS; ++w) {
        out[t * WORDS + w] = plain[t * WORDS + w];
        out[(64 + t) * WORDS + w] = filled[t * WORDS + w];
    }
}
EXPORT(copy_async, (unsigned* out, const unsigned* in, int bytes, int valid), {
    if (bytes == 4) copy_words<4><<<1, 64>>>(out, in, valid);
    if (bytes == 8) copy_words<8><<<1, 64>>>(out, in, valid);
    if (bytes == 16) copy_words<16><<<1, 64>>>(out, in, valid);
})

// A pipeline three stages deep over `tiles` tiles of one float per thread; the sum over all tiles, in several blocks.
// The last rounds commit empty groups.
__global__ void pipeline_sum(float* out, const float* in, int tiles) {
    __shared__ float buffer[3][32];
    const int t = threadIdx.x;
    in += static_cast<size_t>(blockIdx.x) * tiles * 32;
    for (int i = 0; i < 2; ++i) {
        if (i < tiles) cp_async<4>(&buffer[i][t], &in[i * 32 + t]);
        cp_async_commit();
    }
    float sum = 0;
    for (int i = 0; i < tiles; ++i) {
        if (i + 2 < tiles) cp_async<4>(&buffer[(i + 2) % 3][t], &in[(i + 2) * 32 + t]);
        cp_async_commit();
        cp_async_wait<2>();
        __syncwarp();
        sum += buffer[i % 3][t ^ 1];
        __syncwarp();
    }
    out[blockIdx.x * 32 + t] = sum;
}
EXPORT(pipeline, (float* out, const float* in, int blocks, int tiles),
       { pipeline_sum<<<blocks, 32>>>(out, in, tiles); })

// What a thread sees of three groups of one float after wait<N>, and in the end, when it has written others: out
// [6][32][3].
__global__ void look_after_waits(float* out, const float* in) {
    __shared__ float shared[3][32];
    const int t = threadIdx.x;
    auto look = [&](int stage) {
        for (int g = 0; g < 3; ++g) out[(stage * 32 + t) * 3 + g] = shared[g][t];
    };
    for (int g = 0; g < 3; ++g) {
        shared[g][t] = 1;
        cp_async<4>(&shared[g][t], &in[g * 32 + t]);
        if (g < 2) cp_async_commit();  // the last copy stays outside of all groups
    }
    look(0);
    cp_async_wait<2>();
    look(1);
    cp_async_wait<1>();
    look(2);
    cp_async_wait<0>();
    look(3);
    cp_async_wait_all();
    look(4);
    for (int g = 0; g < 3; ++g) shared[g][t] = 2;
    cp_async_wait_all();
    look(5);
}
EXPORT(after_waits, (float* out, const float* in), { look_after_waits<<<1, 32>>>(out, in); })

// Copies that nobody waits for must not arrive in the next block of the same worker.
__global__ void abandoned(float* out, const float* in) {
    __shared__ float shared[64];
    if (blockIdx.x % 2 == 0) {
        cp_async<4>(&shared[threadIdx.x], &in[threadIdx.x]);
        cp_async_commit();
        return;
    }
    shared[threadIdx.x] = 1;
    cp_async_wait<0>();
    out[blockIdx.x / 2 * 64 + threadIdx.x] = shared[threadIdx.x];
}
EXPORT(abandoned_copies, (float* out, const float* in, int blocks), { abandoned<<<blocks, 64>>>(out, in); })

// ---- mistakes; a GPU does not survive some of them. The tests look for these lines by their comments.

__global__ void mma_divergent(float* out) {
    unsigned a[4] = {}, b[2] = {};
    float d[4] = {};
    if (threadIdx.x < 16) mma_m16n8k16<half>(d, a, b);  // line: mma_divergent
    __syncthreads();
    out[threadIdx.x] = d[0];
}
__global__ void mma_part_of_a_warp(float* out) {
    unsigned a[4] = {}, b[2] = {};
    float d[4] = {};
    mma_m16n8k16<half>(d, a, b);  // line: mma_part_of_a_warp
    out[threadIdx.x] = d[0];
}
__global__ void mma_in_two_places(float* out) {
    unsigned a[4] = {}, b[2] = {};
    float d[4] = {};
    if (threadIdx.x < 16)
        mma_m16n8k16<half>(d, a, b);  // line: mma first place
    else
        mma_m16n8k16<half>(d, a, b);  // line: mma_in_two_places
    out[threadIdx.x] = d[0];
}
__global__ void ldmatrix_misaligned(float* out) {
    __shared__ __align__(16) half tile[32][12];
    unsigned r[4];
    ldmatrix_x4(r[0], r[1], r[2], r[3], tile[threadIdx.x]);  // line: ldmatrix_misaligned
    out[threadIdx.x] = r[0];
}
__global__ void copy_to_misaligned(float* out, const float* in) {
    __shared__ __align__(16) float shared[64];
    cp_async<8>(&shared[threadIdx.x], &in[2 * threadIdx.x]);  // line: copy_to_misaligned
    out[threadIdx.x] = shared[threadIdx.x];
}
__global__ void copy_from_misaligned(float* out, const float* in) {
    __shared__ __align__(16) float shared[64][4];
    cp_async_zfill<16>(shared[threadIdx.x], &in[threadIdx.x], false);  // line: copy_from_misaligned
    out[threadIdx.x] = shared[threadIdx.x][0];
}
__global__ void copy_swapped(float* out, float* in) {
    __shared__ float shared[64];
    cp_async<4>(&in[threadIdx.x], &shared[threadIdx.x]);  // line: copy_swapped
    out[threadIdx.x] = shared[threadIdx.x];
}
__global__ void copy_from_null(float* out) {
    __shared__ float shared[64];
    cp_async<4>(&shared[threadIdx.x], static_cast<float*>(nullptr) + threadIdx.x);  // line: copy_from_null
    cp_async_wait_all();
    out[threadIdx.x] = shared[threadIdx.x];
}
__global__ void copies_without_end(float* out, const float* in) {
    __shared__ float shared[64];
    for (int i = 0; i < 100000; ++i) cp_async<4>(&shared[threadIdx.x], &in[i % 64]);  // line: copies_without_end
    cp_async_wait_all();
    out[threadIdx.x] = shared[threadIdx.x];
}
EXPORT(error_mma_divergent, (float* out, const float*), { mma_divergent<<<1, 32>>>(out); })
EXPORT(error_mma_part_of_a_warp, (float* out, const float*), { mma_part_of_a_warp<<<1, 48>>>(out); })
EXPORT(error_mma_in_two_places, (float* out, const float*), { mma_in_two_places<<<1, 32>>>(out); })
EXPORT(error_ldmatrix_misaligned, (float* out, const float*), { ldmatrix_misaligned<<<1, 32>>>(out); })
EXPORT(error_copy_to_misaligned, (float* out, const float* in), { copy_to_misaligned<<<1, 32>>>(out, in); })
EXPORT(error_copy_from_misaligned, (float* out, const float* in), { copy_from_misaligned<<<1, 32>>>(out, in); })
EXPORT(error_copy_swapped, (float* out, float* in), { copy_swapped<<<1, 32>>>(out, in); })
EXPORT(error_copy_from_null, (float* out, const float*), { copy_from_null<<<1, 32>>>(out); })
EXPORT(error_copies_without_end, (float* out, const float* in), { copies_without_end<<<1, 32>>>(out, in); })
