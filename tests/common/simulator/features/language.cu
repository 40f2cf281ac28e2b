// The language: launches, shared memory, __constant__, __device__ and __managed__ variables, templates, lambdas, structs,
// recursion, printf and assert, vector types, variables called like CUDA's own, functions as template arguments.
#include <assert.h>
#include <device_launch_parameters.h>
#include <math_constants.h>
#include <utility>
#ifdef CUDA_VERSION
#error cuda.h defines this, cuda_runtime.h does not
#endif

#include "feature.h"

__constant__ float coefficients[4];
__device__ int launches = 0;
__managed__ int answer = 0;

template <typename T, int N>
struct Polynomial {
    T c[N];
    __host__ __device__ T operator()(T x) const {
        T sum = 0;
        for (int i = N - 1; i >= 0; --i) sum = sum * x + c[i];
        return sum;
    }
};

template <typename F>
__global__ void __launch_bounds__(256) map(const float* __restrict__ in, float* out, int n, F f) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = f(in[i]);
    if (i == 0) atomicAdd(&launches, 1);
}

template <int TILE>
__global__ void transpose(const float* in, float* out, int rows, int cols) {
    __shared__ float tile[TILE][TILE + 1];
    extern __shared__ float row_sums[];
    const int c = blockIdx.x * TILE + threadIdx.x, r = blockIdx.y * TILE + threadIdx.y;
    if (threadIdx.x == 0) row_sums[threadIdx.y] = coefficients[3];
    if (r < rows && c < cols) tile[threadIdx.y][threadIdx.x] = in[r * cols + c];
    __syncthreads();
    const int tc = blockIdx.y * TILE + threadIdx.x, tr = blockIdx.x * TILE + threadIdx.y;
    if (tr < cols && tc < rows) out[tr * rows + tc] = tile[threadIdx.x][threadIdx.y] + row_sums[threadIdx.y];
}

__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

template <float (*F)(float, float)>
__device__ float folded(float a, float b, float c) {
    return F(F(a, b), c);
}
__device__ float larger(float a, float b) { return a > b ? a : b; }

__global__ void rest(float4* out) {
    __builtin_assume(out != nullptr);
    assert(blockDim.x == 1 && folded<larger>(float(1), CUDART_ZERO_F, CUDART_PIO2_F) == CUDART_PIO2_F);
    float4 v = make_float4(1, 2, 3, 4);
    const int2 p = {fibonacci(10), 7};
    v.x += p.x, v.w *= p.y;
    *out = v;
    answer = 42;
    printf("from a kernel: %d %s\n", p.x, "text");
}

// The argument itself, not a copy: here a __managed__ variable.
__global__ void one_more(int& x) { ++x; }

template <int N>
__global__ void add(float* x) {
    *x += N;
}
template <int... N>
void add_all(float* x, std::integer_sequence<int, N...>) {
    (add<N><<<1, 1>>>(x), ...);
}

int main() {
    const int rows = 20, cols = 37;
    Buffer<float> in(rows * cols), out(rows * cols), mapped(rows * cols);
    for (int i = 0; i < rows * cols; ++i) in[i] = i;
    const float c[4] = {1, 2, 3, 0.5f};
    EXPECT(cudaMemcpyToSymbol(coefficients, c, sizeof c) == cudaSuccess);
    dim3 blockDim(16, 16), gridDim((cols + blockDim.x - 1) / blockDim.x, (rows + blockDim.y - 1) / blockDim.y);
    transpose<16><<<gridDim, blockDim, 16 * sizeof(float)>>>(in.device(), out.device(), rows, cols);
    const Polynomial<float, 3> square = {{1, 2, 1}};
    map<<<4, 256>>>(in.device(), mapped.device(), rows * cols, square);
    out.fetch(), mapped.fetch();
    for (int i = 0; i < rows * cols; ++i) {
        EXPECT(out[i] == (i % rows) * cols + i / rows + 0.5f);
        EXPECT(mapped[i] == float(i + 1) * float(i + 1));
    }
    int count = 0;
    EXPECT(cudaMemcpyFromSymbol(&count, launches, sizeof count) == cudaSuccess && count == 1);
    Buffer<float4> vector(1);
    rest<<<1, 1>>>(vector.device());
    one_more<<<1, 1>>>(answer);
    vector.fetch();
    EXPECT(vector[0].x == 56 && vector[0].y == 2 && vector[0].w == 28 && answer == 43);
    Buffer<float> sum(1);
    add_all(sum.device(), std::make_integer_sequence<int, 5>());
    sum.fetch();
    EXPECT(sum[0] == 10);
    return done();
}
