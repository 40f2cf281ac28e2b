// unroll.cuh - loop unrolling. Each macro precedes the loop.
//
//   UNROLL         fully: loops over registers, including fragments of mma.cuh
//   UNROLL_BY(n)   by n iterations
//   NO_UNROLL      not at all: a loop whose body is long enough
//
//   UNROLL
//   for (int n = 0; n < N; ++n) mma_m16n8k16<T>(d[n], a, b[n]);
//
// On a GPU these are #pragma unroll: registers have no addresses, so every index must be a constant. In the simulator
// registers are memory, so the macros are empty: hundreds of copies of mma and ldmatrix would only add compile time
// (ten times as much for a FlashAttention kernel).
#pragma once

#ifdef CUDA_SIMULATOR
#define UNROLL
#define UNROLL_BY(n)
#define NO_UNROLL
#else
#define UNROLL_PRAGMA(words) _Pragma(#words)
#define UNROLL UNROLL_PRAGMA(unroll)
#define UNROLL_BY(n) UNROLL_PRAGMA(unroll n)
#define NO_UNROLL UNROLL_PRAGMA(unroll 1)
#endif
