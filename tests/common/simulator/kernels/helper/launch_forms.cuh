// Launches in which C++ converts arguments, deduces template arguments, or chooses among kernels. Each adds 1 to an
// element of `out`.
#pragma once
#include <cstdint>

struct Plus {
    float by;
    __device__ float operator()(float a) const { return a + by; }
};
struct Two {
    int a;
    float b;
};
struct Copied {  // C++ passes the address of a copy
    alignas(32) int n;
    float* out;
    __host__ __device__ Copied(int n) : n(n), out(nullptr) {}
    __host__ __device__ Copied(const Copied& other) : n(other.n), out(other.out) {}
    ~Copied() {}
};

__global__ void with_default(float* out, int n = 4) { *out += n == 4; }
template <typename T>
__global__ void deduced_const(const T* same, T* out, int n) { *out += same == out && n == 5; }
__global__ void overloaded(float* out) { *out += 1; }
__global__ void overloaded(const float* same, float* out, int n) { *out += same == out && n == 5; }
template <typename T>
__global__ void overloaded(T* out, T) { *out += 1; }
template <typename T, int N = 4, typename Op>
__global__ void with_functor(const T* same, T* out, Op op) { *out += same == out && N == 4 && op(T(2)) == T(5); }
template <typename T>
__global__ void braced(T* out, Two two, const float* nothing) { *out += two.a == 1 && two.b == 2.5f && !nothing; }
template <typename T>
__global__ void with_object(T* out, const Copied one, int n, Copied other) {
    *out += one.n == 7 && other.n == 8 && n == 9 && reinterpret_cast<uintptr_t>(&other) % 32 == 0;
}
template <typename T, typename... Values>
__global__ void variadic(T* out, Values... values) { *out += (values + ...) == 66; }
template <auto kernel, typename... Arguments>
void through_template(cudaStream_t stream, Arguments... arguments) { kernel<<<1, 1, 0, stream>>>(arguments...); }

inline void launch_forms(float* out, cudaStream_t stream) {
    const int64_t five = 5;
    Copied seven(7);
    with_default<<<1, 1, 0, stream>>>(out++);
    deduced_const<<<1, 1, 0, stream>>>(out, out, 5), ++out;
    deduced_const<<<1, 1, 0, stream>>>(out, out, five), ++out;
    overloaded<<<1, 1, 0, stream>>>(out++);
    overloaded<<<1, 1, 0, stream>>>(out, out, five), ++out;
    overloaded<<<1, 1, 0, stream>>>(out++, 1.0f);
    with_functor<float><<<1, 1, 0, stream>>>(out, out, Plus{3}), ++out;
    with_functor<<<1, 1, 0, stream>>>(out, out, Plus{3}), ++out;
    braced<<<1, 1, 0, stream>>>(out++, {1, 2.5f}, nullptr);
    braced<float><<<1, 1, 0, stream>>>(out++, {1, 2.5f}, 0);
    with_object<<<1, 1, 0, stream>>>(out++, seven, 9, 8);
    with_object<float><<<1, 1, 0, stream>>>(out++, {7}, 9, {8});
    variadic<<<1, 1, 0, stream>>>(out++, 1, 2.0f, 3.0, 4ll, 5u, 6, 7, 8, 9, 10.0f, 11.0);
    through_template<with_default>(stream, out++, int64_t{4});
}
