// philox.cuh - stateless random numbers: a function of a position and a key, Philox 4x32.
//
//   philox<ROUNDS>(place, key)   four independent words of 32 random bits; 10 rounds, or 7
//
// Every thread computes the numbers for its own positions, in any order and any number of times: a forward and a
// backward pass that use the same positions get the same numbers, with nothing stored in between. A round is two
// multiplications whose high and low halves are mixed with the key. 7 rounds are the fewest that pass BigCrush; 10
// leave a margin.
//
// J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3 (Philox) and table 2 (its
// constants). curand and PyTorch use the same generator.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

template <int ROUNDS = 10>
__device__ __forceinline__ uint4 philox(uint4 place, uint2 key) {
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const uint64_t left = uint64_t{0xD2511F53} * place.x, right = uint64_t{0xCD9E8D57} * place.z;
        place = make_uint4(static_cast<unsigned>(right >> 32) ^ place.y ^ key.x, static_cast<unsigned>(right),
                           static_cast<unsigned>(left >> 32) ^ place.w ^ key.y, static_cast<unsigned>(left));
        key.x += 0x9E3779B9u, key.y += 0xBB67AE85u;
    }
    return place;
}
