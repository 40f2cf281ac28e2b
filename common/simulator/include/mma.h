// mma.h - nvcuda::wmma: warp-level matrix multiplication on fragments.
//
// A fragment's elements are distributed over the lanes, each lane's in its `x`. The mapping is unspecified, as on a
// GPU, but the same for all fragments of one kind. A GPU stores each element of a and b in two lanes, so its
// num_elements is twice the one here.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "simulator/matrix.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

namespace details {

template <typename T>
using Storage = std::conditional_t<__is_same(T, precision::tf32), float, T>;
template <typename T>
using SumOf = std::conditional_t<__is_same(T, int) || __is_same(T, double), T, float>;
template <typename Use, int M, int N, int K>
constexpr int ROWS = __is_same(Use, matrix_b) ? K : M;
template <typename Use, int M, int N, int K>
constexpr int COLS = __is_same(Use, matrix_a) ? K : N;

constexpr bool exists(int m, int n, int k) {
    return (m == 16 && n == 16 && (k == 16 || k == 8)) || (m == 32 && n == 8 && k == 16) || (m == 8 && n == 32 && k == 16) ||
           (m == 8 && n == 8 && k == 4);
}

}  // namespace details

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
class fragment {
    static_assert(details::exists(M, N, K), "wmma has the shapes 16x16x16, 32x8x16, 8x32x16, 16x16x8 (tf32) and 8x8x4 (double)");

  public:
    using element_type = details::Storage<T>;
    using storage_element_type = element_type;
    static constexpr int rows = details::ROWS<Use, M, N, K>, cols = details::COLS<Use, M, N, K>;
    static constexpr int num_elements = rows * cols / 32;
    element_type x[num_elements];
};

inline float __float_to_tf32(float value) {
    return __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, value) + 0x1000) & 0xffffe000u);
}

template <typename Use, int M, int N, int K, typename T, typename Layout, typename V>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, V value) {
    for (auto& element : f.x) element = value;
}

namespace details {

inline void all_lanes(const char* name, simulator::Position at) {
    simulator::MatrixOperation mine{name, at};
    simulator::collective(~0u, &mine, simulator::require_whole_warp, name, at);
}
template <typename T, typename F, typename Element>
void load(F& f, const Element* memory, unsigned stride, bool by_rows, simulator::Position at) {
    all_lanes("load_matrix_sync", at);
    const int first = static_cast<int>(simulator::current_thread()->lane) * F::num_elements;
    for (int e = 0; e < F::num_elements; ++e) {
        const unsigned row = (first + e) / F::cols, col = (first + e) % F::cols;
        f.x[e] = memory[by_rows ? row * stride + col : col * stride + row];
    }
}

}  // namespace details

template <typename Use, int M, int N, int K, typename T, typename Layout, typename Element>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const Element* memory, unsigned stride,
                      simulator::Position at = simulator::here()) {
    static_assert(!__is_same(Use, accumulator), "an accumulator is loaded with a layout: mem_row_major or mem_col_major");
    details::load<T>(f, memory, stride, __is_same(Layout, row_major), at);
}
template <int M, int N, int K, typename T, typename Element>
void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const Element* memory, unsigned stride, layout_t layout,
                      simulator::Position at = simulator::here()) {
    details::load<T>(f, memory, stride, layout == mem_row_major, at);
}
template <int M, int N, int K, typename T, typename Element>
void store_matrix_sync(Element* memory, const fragment<accumulator, M, N, K, T>& f, unsigned stride, layout_t layout,
                       simulator::Position at = simulator::here()) {
    details::all_lanes("store_matrix_sync", at);
    using F = fragment<accumulator, M, N, K, T>;
    const int first = static_cast<int>(simulator::current_thread()->lane) * F::num_elements;
    for (int e = 0; e < F::num_elements; ++e) {
        const unsigned row = (first + e) / F::cols, col = (first + e) % F::cols;
        memory[layout == mem_row_major ? row * stride + col : col * stride + row] = f.x[e];
    }
}

// d = a b + c, computed in the accumulator's type, or in float if that is half.
template <int M, int N, int K, typename D, typename A, typename LayoutA, typename B, typename LayoutB, typename C>
void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, A, LayoutA>& a,
              const fragment<matrix_b, M, N, K, B, LayoutB>& b, const fragment<accumulator, M, N, K, C>& c,
              simulator::Position at = simulator::here()) {
    D sums[M * N / 32];
    simulator::Meeting mine{{"mma_sync", at}, sums, a.x, b.x, c.x};
    simulator::collective(
        ~0u, &mine, simulator::multiply_fragments<M, N, K, details::SumOf<C>, details::Storage<A>, details::Storage<B>, C, D>,
        "mma_sync", at);
    for (int e = 0; e < M * N / 32; ++e) d.x[e] = sums[e];
}

}  // namespace nvcuda::wmma
