// nvcuda::wmma: half, bfloat16, tf32, int8 and double, rows and columns.
#include <mma.h>

#include "feature.h"

using namespace nvcuda;

template <typename T, typename Sum, int M, int N, int K, typename LA, typename LB>
__global__ void multiply(const T* a, const T* b, Sum* c, int k) {
    wmma::fragment<wmma::matrix_a, M, N, K, T, LA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, T, LB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, Sum> fc;
    constexpr bool a_rows = std::is_same<LA, wmma::row_major>::value, b_rows = std::is_same<LB, wmma::row_major>::value;
    wmma::fill_fragment(fc, Sum(0));
    for (int i = 0; i < k; i += K) {
        wmma::load_matrix_sync(fa, a_rows ? a + i : a + i * M, a_rows ? k : M);
        wmma::load_matrix_sync(fb, b_rows ? b + i * N : b + i, b_rows ? N : k);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    for (int i = 0; i < fc.num_elements; ++i) fc.x[i] = fc.x[i] * Sum(2);
    wmma::store_matrix_sync(c, fc, N, wmma::mem_row_major);
}

template <typename T, typename Sum, int M, int N, int K, bool A_ROWS, bool B_ROWS>
void check() {
    constexpr int k = 3 * K;
    using LA = typename std::conditional<A_ROWS, wmma::row_major, wmma::col_major>::type;
    using LB = typename std::conditional<B_ROWS, wmma::row_major, wmma::col_major>::type;
    Buffer<T> a(M * k), b(k * N);
    Buffer<Sum> c(M * N);
    int A[M][k], B[k][N];
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < k; ++j) a[A_ROWS ? i * k + j : j * M + i] = T(float(A[i][j] = (i * 7 + j * 3) % 11 - 5));
    for (int i = 0; i < k; ++i)
        for (int j = 0; j < N; ++j) b[B_ROWS ? i * N + j : j * k + i] = T(float(B[i][j] = (i * 5 + j) % 9 - 4));
    multiply<T, Sum, M, N, K, LA, LB><<<1, 32>>>(a.device(), b.device(), c.device(), k);
    c.fetch();
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            int sum = 0;
            for (int l = 0; l < k; ++l) sum += A[i][l] * B[l][j];
            EXPECT(float(c[i * N + j]) == 2 * sum);
        }
}

__global__ void tf32(const float* a, const float* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> fc;
    wmma::load_matrix_sync(fa, a, 8);
    wmma::load_matrix_sync(fb, b, 8);
    for (auto& x : fa.x) x = wmma::__float_to_tf32(x);
    for (auto& x : fb.x) x = wmma::__float_to_tf32(x);
    wmma::load_matrix_sync(fc, c, 16, wmma::mem_row_major);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}

int main() {
    check<__half, float, 16, 16, 16, true, true>();
    check<__half, float, 16, 16, 16, false, true>();
    check<__half, __half, 32, 8, 16, true, false>();
    check<__nv_bfloat16, float, 8, 32, 16, false, false>();
    check<signed char, int, 16, 16, 16, true, false>();
    check<double, double, 8, 8, 4, true, false>();
    Buffer<float> a(16 * 8), b(16 * 8), c(256, 1.0f);
    for (int i = 0; i < 128; ++i) a[i] = i % 13, b[i] = i % 7;
    tf32<<<1, 32>>>(a.device(), b.device(), c.device());
    c.fetch();
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
            float sum = 1;
            for (int k = 0; k < 8; ++k) sum += a[i * 8 + k] * b[j * 8 + k];
            EXPECT(c[i * 16 + j] == sum);
        }
    return done();
}
