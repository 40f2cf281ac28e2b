// Accesses outside of what was allocated, at addresses that their size does not divide, and to memory that is gone.
//
//   next             reads one element past the end
//   unguarded        more threads than elements
//   before           index -1
//   far              an index that is in no memory at all
//   rows             a matrix read with the row length of another one
//   counted_past     an atomic past the end
//   past_dynamic     past the end of dynamic shared memory
//   past_static      past the end of a static shared array, through a pointer and by index
//   first_of_two     past the first of two shared arrays
//   past_row         past a row of a 2-D array and still inside the array
//   null             a null pointer
//   twice            memory after cudaFree(), freed twice, never freed
//   quads, pairs, half_pairs   vectors at odd addresses
//   parameters       structs by value, __constant__ and __device__ variables, local arrays: all fine
#include <cuda_fp16.h>

#include "case.h"

// out[t] = in[t] + in[t + 1].
__global__ void next(const float* in, float* out) {
    const int t = threadIdx.x;
    out[t] = in[t] + in[t + 1];  // line: past the end
}
RUN(read_inside, 65, 64, { next<<<1, 64>>>(in.data, out.data); })
RUN(read_past_end, 64, 64, { next<<<1, 64>>>(in.data, out.data); })

template <bool GUARD>
__global__ void unguarded(const float* in, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (!GUARD || i < n) out[i] = in[i % n];  // line: unguarded write
}
RUN(write_guarded, 127, 127, { unguarded<true><<<4, 32>>>(in.data, out.data, 127); })
RUN(write_past_end, 127, 127, { unguarded<false><<<4, 32>>>(in.data, out.data, 127); })

__global__ void before(const float* in, float* out) {
    const int t = threadIdx.x;
    out[t] = in[t] + in[t - 1];  // line: before the start
}
RUN(read_before_start, 64, 64, { before<<<1, 64>>>(in.data, out.data); })

__global__ void far(const float* in, float* out, long long stride) {
    const int t = threadIdx.x;
    out[t] = in[t * stride];  // line: far away
}
RUN(read_far_away, 64, 64, { far<<<1, 64>>>(in.data, out.data, 1ll << 36); })

// out[r] = the sum of row r of in [8, columns].
__global__ void rows(const float* in, float* out, int columns, int row_length) {
    const int r = threadIdx.x;
    float sum = 0;
    for (int c = 0; c < columns; ++c) sum += in[r * row_length + c];  // line: wrong row
    out[r] = sum;
}
RUN(row_length_right, 96, 8, { rows<<<1, 8>>>(in.data, out.data, 12, 12); })
RUN(row_length_wrong, 96, 8, { rows<<<1, 8>>>(in.data, out.data, 12, 13); })

__global__ void counted_past(const int* in, int* bins) {
    atomicAdd(&bins[in[threadIdx.x] / 4], 1);  // line: atomic past the end
}
CASE(atomic_inside) {
    Array<int> in = integers(64), bins = zeros<int>(16);
    counted_past<<<1, 64>>>(in.data, bins.data);
    bins.download(result);
}
CASE(atomic_past_end) {
    Array<int> in = integers(64), bins = zeros<int>(15);
    counted_past<<<1, 64>>>(in.data, bins.data);
    bins.download(result);
}

__global__ void past_dynamic(const float* in, float* out) {
    extern __shared__ float window[];
    const int t = threadIdx.x;
    window[t + 1] = in[t];  // line: past dynamic
    if (t == 0) window[0] = 0;
    __syncthreads();
    out[t] = window[t];
}
RUN(dynamic_shared_large_enough, 64, 64, { past_dynamic<<<1, 64, 65 * sizeof(float)>>>(in.data, out.data); })
RUN(dynamic_shared_too_small, 64, 64, { past_dynamic<<<1, 64, 64 * sizeof(float)>>>(in.data, out.data); })

// The compiler does not know the bounds of what `row` points to.
__device__ __noinline__ void store(float* row, int i, float value) {
    row[i] = value;  // line: store
}
__global__ void past_static(const float* in, float* out, int shift) {
    __shared__ float only[64];
    const int t = threadIdx.x;
    store(only, t + shift, in[t]);
    __syncthreads();
    out[t] = only[t];
}
RUN(static_shared_inside, 64, 64, { past_static<<<1, 64>>>(in.data, out.data, 0); })
RUN(static_shared_one_past_end, 64, 64, { past_static<<<1, 64>>>(in.data, out.data, 1); })
RUN(static_shared_far_past_end, 64, 64, { past_static<<<1, 64>>>(in.data, out.data, 16384); })

__global__ void indexed(const float* in, float* out, int shift) {
    __shared__ float matrix[8][8];
    const int t = threadIdx.x;
    matrix[t / 8 + shift][t % 8] = in[t];  // line: row index
    __syncthreads();
    out[t] = matrix[t / 8][t % 8];
}
RUN(static_shared_index_past_end, 64, 64, { indexed<<<1, 64>>>(in.data, out.data, 1024); })

// 64 values for the 63 elements of `first`; `second` is another array.
__global__ void first_of_two(const float* in, float* out) {
    __shared__ float first[63];
    __shared__ float second[64];
    const int t = threadIdx.x;
    second[t] = 0;
    __syncthreads();
    store(first, t, in[t]);
    __syncthreads();
    out[t] = second[t] + (t < 63 ? first[t] : 0);
}
RUN(past_first_of_two_arrays, 64, 64, { first_of_two<<<1, 64>>>(in.data, out.data); })

// Element 9 of a row of nine is element 0 of the next row.
__device__ __noinline__ float load(const float* row, int i) { return row[i]; }
__global__ void past_row(const float* in, float* out) {
    __shared__ float padded[8][9];
    const int row = threadIdx.x;
    for (int c = 0; c < 9; ++c) padded[row][c] = in[row * 9 + c];
    __syncthreads();
    out[row] = load(padded[row], row < 7 ? 9 : 8);
}
RUN(past_row_inside_array, 72, 8, { past_row<<<1, 8>>>(in.data, out.data); })

__global__ void null(const float* in, const float* bias, float* out) {
    const int t = threadIdx.x;
    out[t] = in[t] + bias[t];  // line: null pointer
}
RUN(null_pointer_read, 64, 64, { null<<<1, 64>>>(in.data, nullptr, out.data); })

__global__ void twice(const float* in, float* out) {
    out[threadIdx.x] = 2 * in[threadIdx.x];  // line: freed read
}
CASE(used_after_free) {
    Array<float> out(64);
    float* in;
    require(cudaMalloc(&in, 64 * sizeof(float)));
    require(cudaMemset(in, 0, 64 * sizeof(float)));
    require(cudaFree(in));
    twice<<<1, 64>>>(in, out.data);
    out.download(result);
}
CASE(freed_twice) {
    float* in;
    require(cudaMalloc(&in, 64 * sizeof(float)));
    require(cudaFree(in));
    cudaFree(in);  // line: second free
    cudaGetLastError();
}
CASE(never_freed) {
    Array<float> out(64);
    float* in;
    require(cudaMalloc(&in, 64 * sizeof(float)));  // line: leaked
    require(cudaMemset(in, 0, 64 * sizeof(float)));
    twice<<<1, 64>>>(in, out.data);
    out.download(result);
}
CASE(freed_once) {
    Array<float> out(64);
    float* in;
    require(cudaMalloc(&in, 64 * sizeof(float)));
    require(cudaMemset(in, 0, 64 * sizeof(float)));
    twice<<<1, 64>>>(in, out.data);
    require(cudaFree(in));
    require(cudaMalloc(&in, 64 * sizeof(float)));  // it may well be where the first one lay
    require(cudaMemset(in, 0, 64 * sizeof(float)));
    twice<<<1, 64>>>(in, out.data);
    require(cudaFree(in));
    require(cudaFree(nullptr));
    out.download(result);
}

// Vectors that begin `shift` elements after the start of `in`.
__global__ void quads(const float* in, float4* out, int shift) {
    out[threadIdx.x] = *reinterpret_cast<const float4*>(in + 4 * threadIdx.x + shift);  // line: misaligned float4
}
__global__ void pairs(const float* in, float* out, int shift) {
    const float2 pair = make_float2(in[threadIdx.x], 0);
    *reinterpret_cast<float2*>(out + 2 * threadIdx.x + shift) = pair;  // line: misaligned float2
}
__global__ void half_pairs(const __half* in, __half2* out, int shift) {
    out[threadIdx.x] = *reinterpret_cast<const __half2*>(in + 2 * threadIdx.x + shift);  // line: misaligned half2
}
static void quads_case(float* result, int shift) {
    Array<float> in = ramp(68), out(64);
    quads<<<1, 16>>>(in.data, reinterpret_cast<float4*>(out.data), shift);
    out.download(result);
}
static void pairs_case(float* result, int shift) {
    Array<float> in = ramp(32), out = zeros(66);
    pairs<<<1, 32>>>(in.data, out.data, shift);
    out.download(result);
}
static void half_pairs_case(float* result, int shift) {
    Array<__half> in(counting<__half>(66)), out(64);
    half_pairs<<<1, 32>>>(in.data, reinterpret_cast<__half2*>(out.data), shift);
    out.download(result);
}
CASE(float4_aligned) { quads_case(result, 4); }
CASE(float4_misaligned) { quads_case(result, 2); }
CASE(float2_aligned) { pairs_case(result, 2); }
CASE(float2_misaligned) { pairs_case(result, 1); }
CASE(half2_aligned) { half_pairs_case(result, 2); }
CASE(half2_misaligned) { half_pairs_case(result, 1); }

struct Shape {
    int rows, columns;
    float scale[3];
};
__constant__ float weights[4];
__device__ float offsets[4] = {1, 2, 3, 4};
__device__ int launches;

// A struct by value, a constant table set by the host, an initialized and a zeroed device variable, a local array that
// is indexed by a loop variable.
__global__ void parameters(Shape shape, const float* in, float* out) {
    const int t = threadIdx.x;
    float local[8];
    for (int i = 0; i < 8; ++i) local[(i + t) % 8] = in[t] * weights[i % 4];
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += local[i];
    out[t] = sum * shape.scale[t % 3] + offsets[t % 4] + shape.rows * shape.columns;
    if (t == 0) launches += 1;
}
CASE(parameters_and_variables) {
    Array<float> in = ramp(64), out(64);
    const float table[4] = {1, 2, 3, 4};
    require(cudaMemcpyToSymbol(weights, table, sizeof table));
    const Shape shape = {2, 3, {1, 2, 3}};
    parameters<<<1, 64>>>(shape, in.data, out.data);
    parameters<<<1, 64>>>(shape, in.data, out.data);
    out.download(result);
}
