// matrix.h - mma and ldmatrix, the warp operations behind common/cuda/mma.cuh and ldmatrix.cuh, which document them.
//
// Both are built on collective(): every lane passes pointers to its registers, and the last lane to arrive computes the
// results of all. mma touches only registers. For ldmatrix, each lane that gives an address reads its 16 bytes of
// shared memory in one access, inlined into the student's function, where the checked build sees it.
#pragma once
#include "atomics.h"
#include "float16.h"
#include "thread.h"

namespace simulator {

typedef float Float4 __attribute__((vector_size(16)));
typedef uint32_t Bits4 __attribute__((vector_size(16)));

// A lane's arguments to any matrix operation.
struct MatrixOperation {
    const char* name;
    Position at;
};

// Tensor core operations need all 32 lanes at the same instruction.
SIMULATOR_UNCHECKED inline void require_whole_warp(void** lanes, unsigned mask) {
    const auto& first = *static_cast<const MatrixOperation*>(lanes[__builtin_ctz(mask)]);
    if (mask != ~0u)
        current_block()->fail("%s at %s:%d: only the lanes 0x%08x of the warp take part, all 32 must", first.name, first.at.file,
             first.at.line, mask);
    for (unsigned lane = 1; lane < 32; ++lane) {
        const auto& other = *static_cast<const MatrixOperation*>(lanes[lane]);
        if (other.at.line != first.at.line)
            current_block()->fail("warp divergence: lane 0 reached %s at %s:%d, lane %u of its warp at %s:%d", first.name, first.at.file,
                 first.at.line, lane, other.at.file, other.at.line);
    }
}

// ---- mma

// Four elements as floats. Vectors and unrolled loops, because a simulated GEMM spends its time here.
SIMULATOR_INLINE Float4 widen_fp16(Bits4 bits) {
    const Bits4 magnitude = bits & 0x7fff;
    const Bits4 infinite = reinterpret_cast<Bits4>(magnitude >= 0x7c00) & 0x7f800000;  // or NaN
    const Float4 finite = reinterpret_cast<Float4>(magnitude << 13) * 0x1p112f;  // exponent biases 15 and 127
    return reinterpret_cast<Float4>(reinterpret_cast<Bits4>(finite) | infinite | (bits & 0x8000) << 16);
}
SIMULATOR_INLINE Float4 widen_bf16(Bits4 bits) { return reinterpret_cast<Float4>(bits << 16); }

struct Multiplication : MatrixOperation {
    float* d;
    const unsigned *a, *b;
};

// D [16][8] += A [16][K] B [K][8], two elements per register. Products of two elements are exact in float; each sum of
// K products is added to D once.
template <typename Element>
SIMULATOR_UNCHECKED void multiply(void** lanes, unsigned mask) {
    constexpr bool fp16 = __is_same(Element, Float16<Fp16Format>);
    static_assert(fp16 || __is_same(Element, Float16<Bf16Format>), "mma takes __half and __nv_bfloat16");
    constexpr unsigned K = 16;
    require_whole_warp(lanes, mask);
#ifdef SIMULATOR_CHECKED
    check_tensor_work(2 * 16 * 8 * K);
#endif
    union {  // transposed: [K][16]
        uint32_t bits[K][16];
        Bits4 bits4[K * 4];
        Float4 values4[K * 4];
        float values[K][16];
    } a;
    union {
        uint32_t bits[K][8];
        Bits4 bits4[K * 2];
        Float4 values4[K * 2];
    } b;
    for (unsigned lane = 0; lane < 32; ++lane) {
        const auto& from = *static_cast<const Multiplication*>(lanes[lane]);
        const unsigned group = lane / 4, first = lane % 4 * 2;
#pragma GCC unroll 2
        for (unsigned e = 0; e < 2; ++e) {
#pragma GCC unroll 4
            for (unsigned i = 0; i < 4; ++i)
                a.bits[first + i / 2 * 8 + e][group + i % 2 * 8] = from.a[i] << (1 - e) * 16 >> 16;
#pragma GCC unroll 2
            for (unsigned i = 0; i < 2; ++i) b.bits[first + i * 8 + e][group] = from.b[i] << (1 - e) * 16 >> 16;
        }
    }
    for (unsigned i = 0; i < K * 4; ++i) a.values4[i] = fp16 ? widen_fp16(a.bits4[i]) : widen_bf16(a.bits4[i]);
    for (unsigned i = 0; i < K * 2; ++i) b.values4[i] = fp16 ? widen_fp16(b.bits4[i]) : widen_bf16(b.bits4[i]);
    union {
        Float4 values4[16 * 2];
        float values[16][8];
    } sums;
    for (unsigned row = 0; row < 16; ++row) {
        Float4 left = {}, right = {};
#pragma GCC unroll 16
        for (unsigned k = 0; k < K; ++k) {
            left += a.values[k][row] * b.values4[2 * k];
            right += a.values[k][row] * b.values4[2 * k + 1];
        }
        sums.values4[2 * row] = left;
        sums.values4[2 * row + 1] = right;
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
        float* d = static_cast<const Multiplication*>(lanes[lane])->d;
#pragma GCC unroll 4
        for (unsigned i = 0; i < 4; ++i) d[i] += sums.values[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}

// ---- fragments of mma.h

// A lane's arguments: its call site and its fragments' elements. Element e of lane l has the row-major index
// l * (elements in a lane) + e. `d` is mma_sync's own memory, not the student's fragment.
struct Meeting : MatrixOperation {
    void* d;
    const void *a, *b, *c;
};
SIMULATOR_INLINE float number(Float16<Fp16Format> x) { return Fp16Format::widen(x.bits); }
SIMULATOR_INLINE float number(Float16<Bf16Format> x) { return Bf16Format::widen(x.bits); }
SIMULATOR_INLINE float number(float x) { return x; }
SIMULATOR_INLINE double number(double x) { return x; }
SIMULATOR_INLINE int number(int x) { return x; }
SIMULATOR_INLINE void assign(Float16<Fp16Format>& to, float x) { to.bits = Fp16Format::round(x); }
SIMULATOR_INLINE void assign(float& to, float x) { to = x; }
SIMULATOR_INLINE void assign(double& to, double x) { to = x; }
SIMULATOR_INLINE void assign(int& to, int x) { to = x; }

template <int M, int N, int K, typename Exact, typename A, typename B, typename C, typename D>
SIMULATOR_UNCHECKED void multiply_fragments(void** lanes, unsigned mask) {
    static_assert((M == 16 && N == 16 && (K == 16 || K == 8)) || (M == 32 && N == 8 && K == 16) || (M == 8 && N == 32 && K == 16) ||
                      (M == 8 && N == 8 && K == 4),
                  "wmma has no such shape");
#define SIMULATOR_IS_FACTOR(T)                                                                                              \
    (__is_same(T, Float16<Fp16Format>) || __is_same(T, Float16<Bf16Format>) || __is_same(T, float) || __is_same(T, double) || \
     __is_same(T, signed char) || __is_same(T, unsigned char))
#define SIMULATOR_IS_SUM(T) (__is_same(T, Float16<Fp16Format>) || __is_same(T, float) || __is_same(T, double) || __is_same(T, int))
    static_assert(SIMULATOR_IS_FACTOR(A) && SIMULATOR_IS_FACTOR(B) && SIMULATOR_IS_SUM(C) && SIMULATOR_IS_SUM(D),
                  "CUDA has no such fragments");
    static_assert(__is_same(Exact, float) || __is_same(Exact, double) || __is_same(Exact, int));
#undef SIMULATOR_IS_FACTOR
#undef SIMULATOR_IS_SUM
    require_whole_warp(lanes, mask);
#ifdef SIMULATOR_CHECKED
    check_tensor_work(2 * M * N * K);
#endif
    Exact a[M][K], b[K][N];
    constexpr int of_a = M * K / 32, of_b = K * N / 32, of_d = M * N / 32;
    for (int i = 0; i < M * K; ++i)
        a[i / K][i % K] = static_cast<Exact>(simulator::number(static_cast<const A*>(static_cast<Meeting*>(lanes[i / of_a])->a)[i % of_a]));
    for (int i = 0; i < K * N; ++i)
        b[i / N][i % N] = static_cast<Exact>(simulator::number(static_cast<const B*>(static_cast<Meeting*>(lanes[i / of_b])->b)[i % of_b]));
    for (int i = 0; i < M * N; ++i) {
        const auto& lane = *static_cast<Meeting*>(lanes[i / of_d]);
        Exact sum = static_cast<Exact>(simulator::number(static_cast<const C*>(lane.c)[i % of_d]));
        for (int k = 0; k < K; ++k) sum += a[i / N][k] * b[k][i % N];
        simulator::assign(static_cast<D*>(lane.d)[i % of_d], sum);
    }
}

// ---- ldmatrix

struct MatrixLoad : MatrixOperation {
    Bits4 row;              // the matrix row at this lane's address
    unsigned registers[4];  // one per matrix
};

template <bool TRANSPOSED>
SIMULATOR_UNCHECKED void distribute(void** lanes, unsigned mask) {
    require_whole_warp(lanes, mask);
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        uint16_t elements[8][8];
        for (unsigned row = 0; row < 8; ++row)
            *reinterpret_cast<Bits4*>(elements[row]) = static_cast<const MatrixLoad*>(lanes[8 * matrix + row])->row;
        for (unsigned lane = 0; lane < 32; ++lane) {
            const unsigned i = lane / 4, j = lane % 4 * 2;
            const unsigned low = TRANSPOSED ? elements[j][i] : elements[i][j];
            const unsigned high = TRANSPOSED ? elements[j + 1][i] : elements[i][j + 1];
            static_cast<MatrixLoad*>(lanes[lane])->registers[matrix] = low | high << 16;
        }
    }
}

template <bool TRANSPOSED>
__attribute__((always_inline)) inline void load_matrices(const char* name, Position at, const void* row, unsigned& r0,
                                                         unsigned& r1, unsigned& r2, unsigned& r3) {
    MatrixLoad mine;
    mine.name = name;
    mine.at = at;
    if (const size_t past = reinterpret_cast<uintptr_t>(row) % 16)
        fail("%s at %s:%d: the row address of lane %u is %zu byte(s) past a multiple of 16", name, at.file, at.line,
             current_thread()->lane, past);
    mine.row = *static_cast<const Bits4*>(row);
    collective(~0u, &mine, distribute<TRANSPOSED>, name, at);
    r0 = mine.registers[0], r1 = mine.registers[1], r2 = mine.registers[2], r3 = mine.registers[3];
}

// ---- stmatrix, the inverse: lanes 8 i ... 8 i + 7 give the row addresses of matrix i and write the rows.

struct MatrixStore : MatrixOperation {
    const unsigned* registers;
    Bits4 row;
};

template <bool TRANSPOSED>
SIMULATOR_UNCHECKED void collect(void** lanes, unsigned mask) {
    require_whole_warp(lanes, mask);
    for (unsigned lane = 0; lane < 32; ++lane) {
        auto& mine = *static_cast<MatrixStore*>(lanes[lane]);
        alignas(16) uint16_t elements[8];
        for (unsigned column = 0; column < 8; ++column) {
            const unsigned i = TRANSPOSED ? column : lane % 8, j = TRANSPOSED ? lane % 8 : column;
            const unsigned word = static_cast<const MatrixStore*>(lanes[i * 4 + j / 2])->registers[lane / 8];
            elements[column] = static_cast<uint16_t>(word >> j % 2 * 16);
        }
        mine.row = *reinterpret_cast<const Bits4*>(elements);
    }
}

__attribute__((always_inline)) inline void store_matrices(const char* name, int count, bool transposed, Position at, void* row,
                                                          const unsigned* r) {
    const int lane = static_cast<int>(current_thread()->lane);
    unsigned registers[4] = {};
    for (int i = 0; i < count; ++i) registers[i] = r[i];
    MatrixStore mine;
    mine.name = name;
    mine.at = at;
    mine.registers = registers;
    const size_t past = reinterpret_cast<uintptr_t>(row) % 16;
    if (past && lane < 8 * count)
        fail("%s at %s:%d: the row address of lane %d is %zu byte(s) past a multiple of 16", name, at.file, at.line, lane, past);
    collective(~0u, &mine, transposed ? collect<true> : collect<false>, name, at);
    if (lane < 8 * count) *static_cast<Bits4*>(row) = mine.row;
}

}  // namespace simulator

template <typename T>
void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                  simulator::Position at = simulator::here()) {
    float sums[4] = {d[0], d[1], d[2], d[3]};  // d may be any memory
    simulator::Multiplication mine{{"mma_m16n8k16", at}, sums, a, b};
    simulator::collective(~0u, &mine, simulator::multiply<T>, "mma_m16n8k16", at);
    for (int i = 0; i < 4; ++i) d[i] = sums[i];
}

#define SIMULATOR_LDMATRIX __attribute__((always_inline)) inline void
SIMULATOR_LDMATRIX ldmatrix_x4(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* row,
                               simulator::Position at = simulator::here()) {
    simulator::load_matrices<false>("ldmatrix_x4", at, row, r0, r1, r2, r3);
}
SIMULATOR_LDMATRIX ldmatrix_x4_trans(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* row,
                                     simulator::Position at = simulator::here()) {
    simulator::load_matrices<true>("ldmatrix_x4_trans", at, row, r0, r1, r2, r3);
}
SIMULATOR_LDMATRIX stmatrix_x4(void* row, unsigned r0, unsigned r1, unsigned r2, unsigned r3,
                               simulator::Position at = simulator::here()) {
    const unsigned registers[] = {r0, r1, r2, r3};
    simulator::store_matrices("stmatrix_x4", 4, false, at, row, registers);
}
#undef SIMULATOR_LDMATRIX
