// elementwise.cu - layernorm and bias + gelu for every dtype, in 16-byte accesses.
//
//   layernorm_kernel            one warp per row
//   short_layernorm_kernel      the same; a row stays in the warp's registers between its three passes
//   bias_gelu_kernel            one thread per 16 bytes
//
// Used by the prefill. Sums are float32; the residual stream is rounded to T when written, and the rounded sum is what
// is normalized, as in transformers. UNIT: see vectors.cuh.
#include "common/cuda/check.h"
#include "common/cuda/dependent_launch.cuh"
#include "common/cuda/unroll.cuh"
#include "common/cuda/warp.cuh"
#include "common/kernels/gpt2/gelu.cuh"
#include "common/kernels/gpt2/gpt2.h"
#include "common/kernels/gpt2/vectors.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;

template <typename T, int UNIT>
__global__ void __launch_bounds__(THREADS)
    layernorm_kernel(const T* x, const T* residual, const T* weight, const T* bias, T* out, T* sum, int64_t rows,
                     int width, float eps) {
    const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    const int first = static_cast<int>(threadIdx.x) % 32 * UNIT;
    float a[UNIT], b[UNIT], c[UNIT], total = 0.0f, squares = 0.0f;
    T* const stream = sum + row * width;
    for (int col = first; col < width; col += 32 * UNIT) {
        load<T>(a, x + row * width + col);
        if (residual) {
            load<T>(b, residual + row * width + col);
            UNROLL
            for (int i = 0; i < UNIT; ++i) a[i] = to_float(from_float<T>(a[i] + b[i]));
        }
        store(stream + col, a);
        UNROLL
        for (int i = 0; i < UNIT; ++i) total += a[i];
    }
    const float mean = warp_sum(total) / width;
    for (int col = first; col < width; col += 32 * UNIT) {
        load<T>(a, stream + col);
        UNROLL
        for (int i = 0; i < UNIT; ++i) squares += (a[i] - mean) * (a[i] - mean);
    }
    const float inverse_std = rsqrtf(warp_sum(squares) / width + eps);
    for (int col = first; col < width; col += 32 * UNIT) {
        load<T>(a, stream + col);
        load<T>(b, weight + col);
        load<T>(c, bias + col);
        UNROLL
        for (int i = 0; i < UNIT; ++i) a[i] = (a[i] - mean) * inverse_std * b[i] + c[i];
        store(out + row * width + col, a);
    }
}

// Rows of up to PIECES * 32 * 16 bytes. May start before its predecessor, which produces x or residual, has finished.
template <typename T, int PIECES>
__global__ void __launch_bounds__(THREADS)
    short_layernorm_kernel(const T* x, const T* residual, const T* weight, const T* bias, T* out, T* sum, int64_t rows,
                           int width, float eps) {
    constexpr int UNIT = Vector<T>::SIZE;
    const int64_t row = int64_t{blockIdx.x} * WARPS + threadIdx.x / 32;
    const int first = static_cast<int>(threadIdx.x) % 32 * UNIT;
    const auto for_pieces = [&](auto f) {
        UNROLL
        for (int i = 0; i < PIECES; ++i)
            if (const int col = first + i * 32 * UNIT; col < width) f(i, col);
    };
    uint4 bits[PIECES], more[PIECES], scale[PIECES], shift[PIECES];
    for_pieces([&](int i, int col) {
        scale[i] = *reinterpret_cast<const uint4*>(weight + col);
        shift[i] = *reinterpret_cast<const uint4*>(bias + col);
    });
    launch_dependents();
    wait_for_predecessor();
    if (row >= rows) return;
    for_pieces([&](int i, int col) { bits[i] = *reinterpret_cast<const uint4*>(x + row * width + col); });
    if (residual)
        for_pieces([&](int i, int col) { more[i] = *reinterpret_cast<const uint4*>(residual + row * width + col); });
    float a[PIECES][UNIT], total = 0.0f, squares = 0.0f;
    for_pieces([&](int i, int col) {
        Vector<T>::unpack(a[i], bits[i]);
        if (residual) {
            float b[UNIT];
            Vector<T>::unpack(b, more[i]);
            UNROLL
            for (int j = 0; j < UNIT; ++j) a[i][j] = to_float(from_float<T>(a[i][j] + b[j]));
        }
        store(sum + row * width + col, a[i]);
        UNROLL
        for (int j = 0; j < UNIT; ++j) total += a[i][j];
    });
    const float mean = warp_sum(total) / width;
    for_pieces([&](int i, int) {
        UNROLL
        for (int j = 0; j < UNIT; ++j) squares += (a[i][j] - mean) * (a[i][j] - mean);
    });
    const float inverse_std = rsqrtf(warp_sum(squares) / width + eps);
    for_pieces([&](int i, int col) {
        float b[UNIT], c[UNIT];
        Vector<T>::unpack(b, scale[i]);
        Vector<T>::unpack(c, shift[i]);
        UNROLL
        for (int j = 0; j < UNIT; ++j) a[i][j] = (a[i][j] - mean) * inverse_std * b[j] + c[j];
        store(out + row * width + col, a[i]);
    });
}

template <typename T, int UNIT>
__global__ void __launch_bounds__(THREADS)
    bias_gelu_kernel(const T* x, const T* bias, T* out, int64_t units, int row_units) {
    const int64_t unit = int64_t{blockIdx.x} * THREADS + threadIdx.x;
    if (unit >= units) return;
    float a[UNIT], b[UNIT];
    load<T>(a, x + unit * UNIT);
    load<T>(b, bias + unit % row_units * UNIT);
    UNROLL
    for (int i = 0; i < UNIT; ++i) a[i] = gelu(a[i] + b[i]);
    store(out + unit * UNIT, a);
}

template <typename T>
static void launch_layernorm(const void* x, const void* residual, const void* weight, const void* bias, void* out,
                             void* sum, int64_t rows, int width, float eps, cudaStream_t stream) {
    const unsigned blocks = static_cast<unsigned>(ceil_div(rows, int64_t{WARPS}));
    const auto launch = [&](auto kernel) {
        kernel<<<blocks, THREADS, 0, stream>>>(static_cast<const T*>(x), static_cast<const T*>(residual),
                                               static_cast<const T*>(weight), static_cast<const T*>(bias),
                                               static_cast<T*>(out), static_cast<T*>(sum), rows, width, eps);
        CUDA_CHECK_LAUNCH();
    };
    const auto launch_short = [&](auto kernel) {
        launch_after(kernel, blocks, THREADS, 0, stream, static_cast<const T*>(x), static_cast<const T*>(residual),
                     static_cast<const T*>(weight), static_cast<const T*>(bias), static_cast<T*>(out),
                     static_cast<T*>(sum), rows, width, eps);
    };
    constexpr int PIECE = 32 * Vector<T>::SIZE;
    if (!vectors_fit<T>(width, {x, residual, weight, bias, out, sum}))
        launch(layernorm_kernel<T, 1>);
    else if (width <= 4 * PIECE)
        launch_short(short_layernorm_kernel<T, 4>);
    else if (width <= 8 * PIECE)
        launch_short(short_layernorm_kernel<T, 8>);
    else
        launch(layernorm_kernel<T, Vector<T>::SIZE>);
}

template <typename T>
static void launch_bias_gelu(const void* x, const void* bias, void* out, int64_t rows, int width,
                             cudaStream_t stream) {
    const int unit = vectors_fit<T>(width, {x, bias, out}) ? Vector<T>::SIZE : 1;
    const int64_t units = rows * width / unit;
    const unsigned blocks = static_cast<unsigned>(ceil_div(units, int64_t{THREADS}));
    const auto launch = [&](auto kernel) {
        kernel<<<blocks, THREADS, 0, stream>>>(static_cast<const T*>(x), static_cast<const T*>(bias),
                                               static_cast<T*>(out), units, width / unit);
        CUDA_CHECK_LAUNCH();
    };
    if (unit > 1)
        launch(bias_gelu_kernel<T, Vector<T>::SIZE>);
    else
        launch(bias_gelu_kernel<T, 1>);
}

void layernorm(FloatType type, const void* x, const void* residual, const void* weight, const void* bias, void* out,
               void* sum, int64_t rows, int width, float eps, cudaStream_t stream) {
    for_float_type(type, [&]<typename T>() {
        launch_layernorm<T>(x, residual, weight, bias, out, sum, rows, width, eps, stream);
    });
}

void bias_gelu(FloatType type, const void* x, const void* bias, void* out, int64_t rows, int width,
               cudaStream_t stream) {
    for_float_type(type, [&]<typename T>() { launch_bias_gelu<T>(x, bias, out, rows, width, stream); });
}
