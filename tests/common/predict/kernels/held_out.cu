// held_out.cu - kernels that the model was not built on, of the kinds that other projects write.
#include "timed.cuh"

__device__ int here() { return blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void saxpy(float a, const float* x, float* y, int n) {
    if (here() < n) y[here()] += a * x[here()];
}
__global__ void saxpy_float4(float a, const float4* x, float4* y, int n) {
    const int i = here();
    if (i >= n / 4) return;
    const float4 u = x[i], v = y[i];
    y[i] = make_float4(a * u.x + v.x, a * u.y + v.y, a * u.z + v.z, a * u.w + v.w);
}
__global__ void gelu(const float* x, float* y, int n) {
    const int i = here();
    if (i >= n) return;
    const float v = x[i];
    y[i] = 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
}
__global__ void layer_norm(const float* x, float* y, int width) {  // a warp per row
    const int lane = threadIdx.x % 32;
    const size_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    float sum = 0, squares = 0;
    for (int i = lane; i < width; i += 32) {
        const float v = x[row * width + i];
        sum += v, squares += v * v;
    }
    for (int d = 16; d; d /= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
        squares += __shfl_xor_sync(~0u, squares, d);
    }
    const float mean = sum / width, scale = rsqrtf(squares / width - mean * mean + 1e-5f);
    for (int i = lane; i < width; i += 32) y[row * width + i] = (x[row * width + i] - mean) * scale;
}
__global__ void stencil_5(const float* x, float* y, int rows) {
    const int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    if (!c || !r || c >= rows - 1 || r >= rows - 1) return;
    const int i = r * rows + c;
    y[i] = 0.2f * (x[i] + x[i - 1] + x[i + 1] + x[i - rows] + x[i + rows]);
}
__global__ void convolve_17(const float* x, const float* w, float* y, int n) {
    __shared__ float tile[256 + 16];
    const int i = here();
    for (int k = threadIdx.x; k < 256 + 16; k += 256) {
        const int from = static_cast<int>(blockIdx.x) * 256 + k - 8;
        tile[k] = from >= 0 && from < n ? x[from] : 0.0f;
    }
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 17; ++k) sum += w[k] * tile[threadIdx.x + k];
    if (i < n) y[i] = sum;
}
__global__ void n_body(const float4* bodies, float4* forces, int n) {
    __shared__ float4 tile[256];
    const int i = here();
    const float4 me = bodies[i];
    float fx = 0, fy = 0, fz = 0;
    for (int from = 0; from < n; from += 256) {
        tile[threadIdx.x] = bodies[from + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 256; ++k) {
            const float dx = tile[k].x - me.x, dy = tile[k].y - me.y, dz = tile[k].z - me.z;
            const float near = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-3f), pull = tile[k].w * near * near * near;
            fx += pull * dx, fy += pull * dy, fz += pull * dz;
        }
        __syncthreads();
    }
    forces[i] = make_float4(fx, fy, fz, 0);
}
__global__ void matrix_vector(const float* a, const float* x, float* y, int columns) {  // a warp per row
    const int lane = threadIdx.x % 32;
    const size_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    float sum = 0;
    for (int i = lane; i < columns; i += 32) sum += a[row * columns + i] * x[i];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (!lane) y[row] = sum;
}
__global__ void matrix_vector_thread(const float* a, const float* x, float* y, int columns) {  // a thread per row
    float sum = 0;
    for (int i = 0; i < columns; ++i) sum += a[size_t(here()) * columns + i] * x[i];
    y[here()] = sum;
}
__global__ void gather(const float* table, const int* rows, float* y, int width) {
    y[blockIdx.x * width + threadIdx.x] = table[size_t(rows[blockIdx.x]) * width + threadIdx.x];
}
__global__ void scan_block(const float* x, float* y) {  // Hillis and Steele, 1024 numbers per block
    __shared__ float a[1024];
    a[threadIdx.x] = x[here()];
    for (int d = 1; d < 1024; d *= 2) {
        __syncthreads();
        const float before = threadIdx.x >= d ? a[threadIdx.x - d] : 0.0f;
        __syncthreads();
        a[threadIdx.x] += before;
    }
    y[here()] = a[threadIdx.x];
}
__global__ void black_scholes(const float* price, const float* strike, float* call, int n) {
    const int i = here();
    if (i >= n) return;
    const float s = price[i] + 10.0f, k = strike[i] + 11.0f;
    const float d1 = (logf(s / k) + 0.06f) / 0.3f, d2 = d1 - 0.3f;
    call[i] = s / (1.0f + expf(-1.6f * d1)) - k * expf(-0.02f) / (1.0f + expf(-1.6f * d2));
}
__global__ void mandelbrot(float* y, int rows) {
    const int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    const float cx = 3.0f * c / rows - 2.0f, cy = 2.0f * r / rows - 1.0f;
    float zx = 0, zy = 0;
    int steps = 0;
    for (; steps < 256 && zx * zx + zy * zy < 4.0f; ++steps) {
        const float next = zx * zx - zy * zy + cx;
        zy = 2 * zx * zy + cy, zx = next;
    }
    y[r * rows + c] = steps;
}
__global__ void naive_matmul(const float* a, const float* b, float* c, int n) {
    const int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[y * n + k] * b[k * n + x];
    c[y * n + x] = sum;
}
__global__ void histogram(const float* x, unsigned* bins, int n) {  // contended: the model has no number for it
    if (here() < n) atomicAdd(&bins[static_cast<unsigned>(x[here()]) % 64], 1u);
}

int main(int argc, char** argv) {
    const int n = size_of(argc, argv);  // 2^20, 2^22, 2^24
    int rows = 1;
    while (rows * rows < n) rows *= 2;
    float *x = floats(n), *y = floats(n), *z = floats(n);
    const dim3 cells(rows / 32, rows / 8), cell(32, 8);
    TIMED(saxpy, n / 256, 256, 0, 2.0f, x, y, n);
    TIMED(saxpy_float4, n / 1024, 256, 0, 2.0f, reinterpret_cast<float4*>(x), reinterpret_cast<float4*>(y), n);
    TIMED(gelu, n / 256, 256, 0, x, y, n);
    TIMED(layer_norm, n / 1024 / 8, 256, 0, x, y, 1024);
    TIMED(stencil_5, cells, cell, 0, x, y, rows);
    TIMED(convolve_17, n / 256, 256, 0, x, z, y, n);
    TIMED(n_body, rows * 4 / 256, 256, 0, reinterpret_cast<float4*>(x), reinterpret_cast<float4*>(y), rows * 4);
    TIMED(matrix_vector, rows / 8, 256, 0, x, z, y, rows);
    TIMED(matrix_vector_thread, rows / 64, 64, 0, x, z, y, rows);
    TIMED(gather, n / 256, 256, 0, x, reinterpret_cast<int*>(z), y, 256);
    TIMED(scan_block, n / 1024, 1024, 0, x, y);
    TIMED(black_scholes, n / 256, 256, 0, x, z, y, n);
    TIMED(mandelbrot, cells, cell, 0, y, rows);
    TIMED(naive_matmul, dim3(rows / 32, rows / 32), dim3(16, 16), 0, x, y, z, rows / 2);
    TIMED(histogram, n / 256, 256, 0, x, reinterpret_cast<unsigned*>(z), n);
    return cudaDeviceSynchronize();
}
