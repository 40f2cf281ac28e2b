// tensor_map.h - what a CUtensorMap holds here, and where the elements of a box lie in shared memory.
#pragma once
#include <string.h>

#include "../include/simulator/tensor_map.h"

namespace simulator {

struct TensorMap {
    uint64_t mark, data;
    uint32_t sizes_less_1[5];
    uint64_t strides[4];  // bytes, of dimensions 1 ...
    uint16_t box[5];
    uint8_t steps[5];
    uint8_t type, rank, swizzle, fill;

    uint64_t size(int d) const { return uint64_t{sizes_less_1[d]} + 1; }
    int extent(int d) const { return (box[d] + steps[d] - 1) / steps[d]; }  // elements of the box in shared memory
    unsigned element_bytes() const;
    uint32_t box_bytes() const;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));
constexpr uint64_t TENSOR_MAP_MARK = 0x70616d726f736e65ull;

// Where the byte at this place of an unswizzled tile lies: 16-byte pieces change places by the address's higher bits.
// mode: CU_TENSOR_MAP_SWIZZLE_...
inline uint32_t swizzled(uint32_t offset, unsigned mode) {
    const uint32_t bits = mode == 0 ? 0 : (1u << mode) - 1;
    return offset ^ ((offset >> 7 & bits) << 4);
}

}  // namespace simulator
