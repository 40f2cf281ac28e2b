// wgmma.cuh - Hopper's warpgroup MMA: D = A B + D for 64 rows, by four warps, asynchronously. Compute capability 9.0.
//
//   KMajor, MnMajor                     a tile in shared memory and how it is read: at(), plus()
//   wgmma<T>(d, a, b, accumulate)       d [64][N] (+)= a [64][16] b [16][N]; a KMajor or in registers, b KMajor
//   wgmma<T>(d, a, b)                   d [64][N] += a [64][16] b [16][N]; a in registers, b MnMajor
//   wgmma<T>(d, a, b, accumulate)       d [64][N] (+)= a [64][16] b [16][N]; a and b MnMajor
//   wgmma_begin()                       before the first wgmma that uses registers written by other instructions
//   wgmma_commit()                      makes a group of all wgmma since the last commit
//   wgmma_wait<N>()                     waits until at most the N latest groups are pending
//   keep_order(d)                       accesses of d before this point stay before it, those after stay after
//   more_registers, fewer_registers     a warpgroup's share of the SM's registers
//
// T is __half or __nv_bfloat16, sums are float. The four warps, numbers 4 g ... 4 g + 3, are a warpgroup. All its
// threads must call convergently. Needs a build for sm_90a; see "wgmma" in the PTX manual.
//
// Registers. Warp w of the group has rows 16 w ... 16 w + 15 of A and D, and in them the fragments of mma.cuh: d[n] are
// columns 8 n ... 8 n + 7, a[4] is an A tile of 16 x 16. So P = softmax(S) becomes the A operand of P V in registers,
// as with mma.sync. N = 32, 64, 80, 96, 112, 128, 160, 192 or 256.
//
// Asynchronous. An instruction is issued and the warps go on; until the wait, no thread may touch d, change a
// (registers) or overwrite a and b (shared memory). The compiler does not know that d is written after the instruction
// is issued: keep_order(d) after the wait keeps all accesses of d after it. If ptxas warns that it serializes wgmma
// (C7510 and related warnings), such a rule was violated, registers do not suffice, or only some threads may reach a
// wgmma.
//
// Shared memory. Tiles as tma.cuh writes them, boxes [rows][64] with the 128-byte swizzle. Eight rows of a box are 1024
// bytes, one swizzle atom; a box is a column of atoms. Two ways to read a box:
//
//   KMajor      a row of the box is a row of A, or a column of B: its 64 elements are 64 steps of k. Q and K in Q K^T.
//               One wgmma takes 16 of them; the next 16 start 32 bytes later: plus(32). Rows: 64, or N.
//   MnMajor     a row of the box is a row of B, one step of k: V in P V. One wgmma takes 16 rows; the next 16 start
//               16 * 128 bytes later. N > 64: the next 64 columns are in the next box, `box_bytes` later.
//               As A: the 64 columns of one box are the rows of A; dS^T, stored key by key, in dQ = dS K.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/cuda/shared_offset.cuh"
#include "common/cuda/unroll.cuh"

namespace hopper {

// The "matrix descriptor": addresses and distances in units of 16 bytes.
//
//   bits 0-13 start   16-29 from box to box (MnMajor)   32-45 from one atom to the next below   62-63 the swizzle: 1
__device__ __forceinline__ uint64_t matrix_descriptor(const void* box, unsigned box_bytes) {
    constexpr uint64_t ATOM_BYTES = 1024, SWIZZLE_128 = uint64_t{1} << 62;
    return SWIZZLE_128 | ATOM_BYTES / 16 << 32 | static_cast<uint64_t>(box_bytes / 16) << 16 |
           (shared_offset(box) & 0x3ffff) / 16;
}

struct KMajor {
    uint64_t bits;

    __device__ __forceinline__ static KMajor at(const void* box) { return {matrix_descriptor(box, 16)}; }
    // The tile that starts `bytes` later.
    __device__ __forceinline__ KMajor plus(unsigned bytes) const { return {bits + bytes / 16}; }
};

struct MnMajor {
    uint64_t bits;

    __device__ __forceinline__ static MnMajor at(const void* box, unsigned box_bytes) {
        return {matrix_descriptor(box, box_bytes)};
    }
    __device__ __forceinline__ MnMajor plus(unsigned bytes) const { return {bits + bytes / 16}; }
};

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

template <int N8>
__device__ __forceinline__ void keep_order(float (&d)[N8][4]) {
    UNROLL
    for (int i = 0; i < 4 * N8; ++i) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}

// The instruction names each of its registers, so every N needs its own text.
#define D_COLS_8(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define D_COLS_16(n) D_COLS_8(n), D_COLS_8(n + 1)
#define D_COLS_32(n) D_COLS_16(n), D_COLS_16(n + 2)
#define D_COLS_64(n) D_COLS_32(n), D_COLS_32(n + 4)
#define D_NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define D_NAMES_64                                                           \
    D_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D_NAMES_80 D_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define D_NAMES_96 D_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define D_NAMES_112 D_NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define D_NAMES_128 D_NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D_NAMES_160 D_NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define D_NAMES_192 D_NAMES_160 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define D_NAMES_256                                                                                       \
    D_NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
                ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// i0 ... i5: the numbers of the operands after those of d.
#define WGMMA_SHARED(N, TYPE, TRANSPOSED, i0, i1, i2, ...)                                              \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #i2 ", 0;\n"                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D_NAMES_##N "}, " \
                 "%" #i0 ", %" #i1 ", add, 1, 1, " TRANSPOSED ";\n}"                                    \
                 : __VA_ARGS__                                                                          \
                 : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(accumulate)))
#define WGMMA_REGISTERS(N, TYPE, TRANSPOSED, i0, i1, i2, i3, i4, i5, ...)                               \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #i5 ", 0;\n"                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D_NAMES_##N "}, " \
                 "{%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", add, 1, 1, " TRANSPOSED ";\n}"    \
                 : __VA_ARGS__                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(accumulate)))

#define WGMMA_FUNCTION(N, PARAMETERS, INSTRUCTION, ...)                                   \
    template <typename T>                                                                 \
    __device__ __forceinline__ void wgmma PARAMETERS {                                    \
        static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);     \
        if constexpr (std::is_same_v<T, __half>)                                          \
            INSTRUCTION(N, "f16", __VA_ARGS__);                                           \
        else                                                                              \
            INSTRUCTION(N, "bf16", __VA_ARGS__);                                          \
    }
#define WGMMA_FUNCTIONS(N, i0, i1, i2, i3, i4, i5, ...)                                                              \
    WGMMA_FUNCTION(N, (float(&d)[N / 8][4], KMajor a, KMajor b, bool accumulate), WGMMA_SHARED, "0, 0", i0, i1, i2,  \
                   __VA_ARGS__)                                                                                      \
    WGMMA_FUNCTION(N, (float(&d)[N / 8][4], MnMajor a, MnMajor b, bool accumulate), WGMMA_SHARED, "1, 1", i0, i1,    \
                   i2, __VA_ARGS__)                                                                                  \
    WGMMA_FUNCTION(N, (float(&d)[N / 8][4], const unsigned(&a)[4], KMajor b, bool accumulate), WGMMA_REGISTERS, "0", \
                   i0, i1, i2, i3, i4, i5, __VA_ARGS__)                                                              \
    WGMMA_FUNCTION(N, (float(&d)[N / 8][4], const unsigned(&a)[4], MnMajor b, bool accumulate = true),               \
                   WGMMA_REGISTERS, "1", i0, i1, i2, i3, i4, i5, __VA_ARGS__)

WGMMA_FUNCTIONS(32, 16, 17, 18, 19, 20, 21, D_COLS_32(0))
WGMMA_FUNCTIONS(64, 32, 33, 34, 35, 36, 37, D_COLS_64(0))
WGMMA_FUNCTIONS(80, 40, 41, 42, 43, 44, 45, D_COLS_64(0), D_COLS_16(8))
WGMMA_FUNCTIONS(96, 48, 49, 50, 51, 52, 53, D_COLS_64(0), D_COLS_32(8))
WGMMA_FUNCTIONS(112, 56, 57, 58, 59, 60, 61, D_COLS_64(0), D_COLS_32(8), D_COLS_16(12))
WGMMA_FUNCTIONS(128, 64, 65, 66, 67, 68, 69, D_COLS_64(0), D_COLS_64(8))
WGMMA_FUNCTIONS(160, 80, 81, 82, 83, 84, 85, D_COLS_64(0), D_COLS_64(8), D_COLS_32(16))
WGMMA_FUNCTIONS(192, 96, 97, 98, 99, 100, 101, D_COLS_64(0), D_COLS_64(8), D_COLS_64(16))
WGMMA_FUNCTIONS(256, 128, 129, 130, 131, 132, 133, D_COLS_64(0), D_COLS_64(8), D_COLS_64(16), D_COLS_64(24))

#undef D_COLS_8
#undef D_COLS_16
#undef D_COLS_32
#undef D_COLS_64
#undef D_NAMES_32
#undef D_NAMES_64
#undef D_NAMES_80
#undef D_NAMES_96
#undef D_NAMES_112
#undef D_NAMES_128
#undef D_NAMES_160
#undef D_NAMES_192
#undef D_NAMES_256
#undef WGMMA_SHARED
#undef WGMMA_REGISTERS
#undef WGMMA_FUNCTION
#undef WGMMA_FUNCTIONS

// Sets how many registers each thread may use from here on: a multiple of 8, 24 .. 256. Every warp of a warpgroup
// calls; `more` waits until others have released enough.
template <int N>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace hopper
