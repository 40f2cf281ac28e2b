// Launches in every style: "a<<<1, 1>>>(b)" in comments and strings is none.   /* k<<<1, 1>>>(); */
#include "helper/launch_forms.cuh"
#include "test.h"

#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))

namespace outer {
namespace {
template <typename T, int N, bool LARGE = (N > 32)>
__global__ void fill(T* out, T value) {
    if (threadIdx.x < N) out[blockIdx.x * N + threadIdx.x] = value + T(LARGE);
}
}  // namespace
namespace inner { __global__ void plain(int* out, int value) { out[threadIdx.x] = value; } }
}  // namespace outer

struct Config {
    static constexpr int N = 64;
};
template <class T>
__global__ void deduced(T* out, const T value, int n) {
    if (threadIdx.x < n) out[threadIdx.x] = value;
}
extern "C" __global__ void c_kernel(int* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = gridDim.x * 100 + blockDim.x; }
template <int N, int M>
__global__ void __launch_bounds__(256, 2) two(int* out) { out[threadIdx.x] = N * 10 + M; }
template <bool Less>
__global__ void boolean(int* out) { out[0] = Less; }
struct Pair { int a; float b; };
__global__ void takes_struct(float* out, Pair pair, const float* other) {
    out[0] = pair.a + pair.b;
    out[1] = other == nullptr;
}
__global__ void geometry(int* out) {
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] += block * 1000 + thread;
}

#define LAUNCH(NN, ...)                                       \
    do {                                                      \
        outer::fill<float, NN><<<dim3(1), dim3(NN), 0, 0>>>(  \
            __VA_ARGS__);                                     \
    } while (0)

EXPORT(launch_macro, (float* out), { LAUNCH(16, out, 3.f); })
EXPORT(launch_template, (float* out), {
    const char* text = "not a launch <<<1, 2>>>(x)"; (void)text;
    outer::fill<float, Config::N, (Config::N > 32)><<<CEIL_DIV(100, 64), Config::N>>>(out, 1.0f);
})
EXPORT(launch_deduced, (float* out), { deduced<<<1, 32>>>(out, 9.f, 20); })
EXPORT(launch_pointer, (float* out), {
    auto pointer = &deduced<float>;
    void (*table[2])(float*, float, int) = {pointer, nullptr};
    pointer<<<dim3(1, 1), dim3{32, 1, 1}>>>(out, 8.f, 10);
    (*table[0])<<<1, 32>>>(out + 32, 7.f, 32);
    table[0]<<<1, 32>>>(out + 64, 6.f, 32);
})
EXPORT(launch_spaced, (int* out), {
    c_kernel <<< 3,
                 4 >>> (
        out);
})
EXPORT(launch_nested_braces, (int* out), {
    if (true) for (int i = 0; i < 2; ++i) ::outer::inner::plain<<<dim3{1}, {2, 1, 1}>>>(out + 2 * i, i + 1);
})
EXPORT(launch_comparison, (int* out), {
    two<(3 < 4 ? 1 : 2), (1 << 3)><<<(2 > 1) ? 1 : 2, 1>>>(out);
    boolean<(3 < 4)><<<1, 1>>>(out + 1);
    boolean<3 < 2><<<1, 1>>>(out + 2), two<4, 2><<<1, 1>>>(out + 3), c_kernel<<<1, 1>>>(out);
    out += 4, boolean<true><<<1, 1>>>(out);
})
EXPORT(launch_braced, (float* out), {
    int n = 5;
    takes_struct<<<1, 1>>>(out, {n, 0.5f}, NULL);
    takes_struct<<<1, 1>>>(out + 2, Pair{n, 1.5f}, nullptr);
    takes_struct<<<1, 1>>>(out + 4, {1, 2}, 0);
})
EXPORT(launch_argument_once, (int* out), {
    int calls = 0;
    outer::inner::plain<<<1, 4>>>(out, ++calls);
    out[4] = calls;
})
EXPORT(launch_geometry, (int* out, int gx, int gy, int gz, int bx, int by, int bz), {
    geometry<<<dim3(gx, gy, gz), dim3(bx, by, bz)>>>(out);
    require(cudaGetLastError());
})
template <typename T, int N>
void in_template(T* out, T value) { outer::fill<T, N><<<1, N>>>(out, value); }
EXPORT(launch_in_template, (int* out), { in_template<int, 40>(out, 2); })
struct Model {
    int value = 3;
    void run(int* out) { outer::inner::plain<<<1, 4>>>(out, value); }
};
EXPORT(launch_in_method, (int* out), { Model().run(out); })
EXPORT(launch_by_function, (int* out, int value), {
    void* arguments[] = {&out, &value};
    require(cudaLaunchKernel(outer::inner::plain, dim3(1), dim3(4), arguments, 0, nullptr));
})
EXPORT(launch_all_forms, (float* out), { launch_forms(out, nullptr); })
EXPORT(launch_many, (int* out, int count), {
    for (int i = 0; i < count; ++i) geometry<<<4, 32>>>(out);
})
