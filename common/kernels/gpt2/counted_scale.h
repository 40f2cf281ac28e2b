// counted_scale.h - in which units counted sums are, and what is too large for them (counted_sums.cuh). Host and device.
//
//   Scale, scale_for(addends)
#pragma once
#include <cuda_runtime.h>

namespace counted {

constexpr int COUNT_SHIFT = 56;

constexpr float LARGEST = 131072.0f;  // 2^17

struct Scale {
    float up, down;   // 1 / unit, unit: powers of 2
    long long most;   // LARGEST in units
    long long wrong;  // instead of what is larger
};
// For sums of so many addends, 1 .. 255, and of fewer.
__host__ __device__ constexpr Scale scale_for(int addends) {
    const long long wrong = ((1ll << (COUNT_SHIFT - 1)) - 1) / addends;
    Scale scale = {1.0f, 1.0f, 1ll << 17, wrong};
    while (scale.up < 4294967296.0f && 2 * scale.most <= wrong / (2 * addends))
        scale.up *= 2, scale.down /= 2, scale.most *= 2;
    return scale;
}

}  // namespace counted
