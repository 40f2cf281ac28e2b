// unroll.cuh - UNROLL: before a loop over fragments of mma.cuh, which are registers.
//
//   UNROLL
//   for (int n = 0; n < N; ++n) mma_m16n8k16<T>(d[n], a, b[n]);
//
// On a GPU it is #pragma unroll: registers have no addresses, so every index must be a constant. In the simulator
// fragments are memory and need no such thing; there it is nothing, since hundreds of copies of mma and ldmatrix only
// take the compiler's time (ten times as much for a FlashAttention kernel).
#pragma once

#ifdef CUDA_SIMULATOR
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif
