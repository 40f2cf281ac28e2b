// unroll.cuh - how often the compiler writes down the body of a loop. Each precedes the loop.
//
//   UNROLL         once for every turn: loops over registers, fragments of mma.cuh among them
//   UNROLL_BY(n)   n turns at a time
//   NO_UNROLL      once: a loop whose body is long enough
//
//   UNROLL
//   for (int n = 0; n < N; ++n) mma_m16n8k16<T>(d[n], a, b[n]);
//
// On a GPU they are #pragma unroll: registers have no addresses, so every index must be a constant. In the simulator
// registers are memory and need no such thing; there they are nothing, since hundreds of copies of mma and ldmatrix
// only take the compiler's time (ten times as much for a FlashAttention kernel).
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
