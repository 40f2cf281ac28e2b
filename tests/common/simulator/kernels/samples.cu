/* In the style of the CUDA samples: everything in one main-like function, C casts, checkCudaErrors. */
#include <stdio.h>
#include <assert.h>
#include "cuda_runtime.h"
#include "device_launch_parameters.h"
#include <math.h>
#include "test.h"
#include "helper/reduce.cuh"

#ifdef CUDA_SIMULATOR
#define ON_CPU 1
#else
static __device__ int lane_id() { int r; asm volatile("mov.u32 %0, %laneid;" : "=r"(r)); return r; }
#endif

#define checkCudaErrors(val) check((val), #val, __FILE__, __LINE__)
static void check(cudaError_t result, char const* const func, const char* const file, int const line) {
  if (result) { fprintf(stderr, "CUDA error at %s:%d code=%d(%s) \"%s\"\n", file, line, (int)result, cudaGetErrorName(result), func); throw std::runtime_error("sample failed"); }
}

__constant__ float c_coef[4];
__device__ float d_bias = 0.5f;
__managed__ int m_count;
__device__ __noinline__ float bias(float x) { return x + d_bias; }
static __device__ __forceinline__ float poly(float x) { return ((c_coef[3] * x + c_coef[2]) * x + c_coef[1]) * x + c_coef[0]; }

__global__ void polynomial(const float* __restrict__ in, float* __restrict__ out, const __grid_constant__ int n)
{
  int idx = blockIdx.x * blockDim.x + threadIdx.x;
  int stride = blockDim.x * gridDim.x;
  assert(n > 0);
#pragma unroll 4
  for (int i = idx; i < n; i += stride)
    out[i] = bias(poly(in[i]));
  if (idx == 0) { m_count = n; printf("polynomial of %d values\n", n); }
}

EXPORT(sample_polynomial, (const float* h_in, float* h_out, int n, float* milliseconds), {
  float *d_in = NULL, *d_out;
  size_t size = n * sizeof(float);
  cudaStream_t stream; cudaEvent_t start, stop;
  float coef[4] = {1, 2, 3, 4}, back[2];
  checkCudaErrors(cudaMalloc((void**)&d_in, size));
  checkCudaErrors(cudaMalloc(&d_out, size));
  checkCudaErrors(cudaMemcpy(d_in, h_in, size, cudaMemcpyHostToDevice));
  checkCudaErrors(cudaMemset(d_out, 0, size));
  checkCudaErrors(cudaMemcpyToSymbol(c_coef, coef, sizeof coef));
  checkCudaErrors(cudaMemcpyFromSymbol(back, c_coef, sizeof back, 2 * sizeof(float)));
  checkCudaErrors(cudaStreamCreate(&stream));
  checkCudaErrors(cudaEventCreate(&start)); checkCudaErrors(cudaEventCreate(&stop));
  dim3 threads(256), blocks((n + threads.x - 1) / threads.x);
  checkCudaErrors(cudaEventRecord(start, stream));
  polynomial<<<blocks, threads, 0, stream>>>(d_in, d_out, n);
  checkCudaErrors(cudaGetLastError());
  checkCudaErrors(cudaEventRecord(stop, stream));
  checkCudaErrors(cudaEventSynchronize(stop));
  checkCudaErrors(cudaEventElapsedTime(milliseconds, start, stop));
  checkCudaErrors(cudaMemcpyAsync(h_out, d_out, size, cudaMemcpyDeviceToHost, stream));
  checkCudaErrors(cudaDeviceSynchronize());
  if (m_count != n || back[1] != 4.0f) throw std::runtime_error("managed or constant memory");
  cudaFree(d_in); cudaFree(d_out); cudaEventDestroy(start); cudaEventDestroy(stop); cudaStreamDestroy(stream);
})

EXPORT(sample_reduce, (const float* in, float* out, int n), {
  reduce_sum<256><<<1, 256>>>(in, out, n);
  checkCudaErrors(cudaPeekAtLastError());
})

// Column-major and with indices from one, as translated from Fortran.
#define A(I, J) a[((I)-1) + ((J)-1) * (*lda)]
#define X(I) x[(I)-1]
extern "C" __global__ void DGEMV_(const int *m, const int *n, const double *a, const int *lda, const double *x, double *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x + 1, j; double t = 0.0;
  if (!(i <= *m)) goto end;
  for (j = 1; j <= *n; ++j) t += A(i, j) * X(j);
  y[i - 1] = t;
end:;
}
EXPORT(sample_dgemv, (const double* a, const double* x, double* y, const int* m, const int* n), {
  DGEMV_<<<(*m + 31) / 32, 32>>>(m, n, a, m, x, y);
})

EXPORT(device_properties, (char* name, int* out), {
  cudaDeviceProp prop; int count = 0;
  checkCudaErrors(cudaGetDeviceCount(&count));
  checkCudaErrors(cudaGetDeviceProperties(&prop, 0));
  memcpy(name, prop.name, 64);
  out[0] = count, out[1] = prop.warpSize, out[2] = prop.sharedMemPerBlock, out[3] = prop.sharedMemPerBlockOptin;
  out[4] = prop.major * 10 + prop.minor, out[5] = prop.multiProcessorCount > 0;
  checkCudaErrors(cudaDeviceGetAttribute(&out[6], cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  out[7] = cudaSetDevice(3);
  out[8] = cudaGetLastError();
  checkCudaErrors(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out[9], polynomial, 256, 0));
})
