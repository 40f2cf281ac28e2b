// tensor_map.h - the simulator's contents of a CUtensorMap, and the layout of a box in shared memory.
#pragma once
#include <string.h>

#include "../include/simulator/tensor_map.h"
#include "hopper.h"

namespace simulator {

struct TensorMap {
    uint64_t mark, data;
    uint32_t sizes_less_1[5];
    uint64_t strides[4];  // bytes, for dimensions 1 to 4
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

// Maps an offset in an unswizzled tile to the swizzled one: 16-byte pieces are XORed with higher address bits.
// mode: CU_TENSOR_MAP_SWIZZLE_...
inline uint32_t swizzled(uint32_t offset, unsigned mode) {
    const uint32_t bits = mode == 0 ? 0 : (1u << mode) - 1;
    return offset ^ ((offset >> 7 & bits) << 4);
}

// Calls run(shared-memory address, tensor address or null if outside, bytes) for each piece of a box that is contiguous
// on both sides, at most 16 bytes.
template <typename Run>
void each_piece(const Transfer& t, char* tile, const Run& run) {
    const TensorMap& map = *t.map;
    const unsigned element = map.element_bytes(), per_piece = 16 / element;
    const int inner = map.extent(0);
    int counts[5] = {1, 1, 1, 1, 1}, i[5] = {};
    for (int d = 1; d < map.rank; ++d) counts[d] = map.extent(d);
    uintptr_t row_start = reinterpret_cast<uintptr_t>(tile);
    for (bool more = true; more; row_start += inner * element) {
        bool inside = true;
        uint64_t row = map.data;
        for (int d = 1; d < map.rank; ++d) {
            const int64_t c = int64_t{t.at[d]} + i[d] * map.steps[d];
            inside &= c >= 0 && c < static_cast<int64_t>(map.size(d));
            row += static_cast<uint64_t>(c) * map.strides[d - 1];
        }
        for (int first = 0; first < inner; first += per_piece) {
            const uintptr_t plain = row_start + first * element;
            char* piece = tile + (static_cast<intptr_t>(plain & ~uintptr_t{1023}) - reinterpret_cast<intptr_t>(tile)) +
                          swizzled(static_cast<uint32_t>(plain & 1023), map.swizzle);
            const int64_t c = int64_t{t.at[0]} + int64_t{first} * map.steps[0];
            if (inside && map.steps[0] == 1 && c >= 0 && c + per_piece <= static_cast<int64_t>(map.size(0))) {
                run(piece, reinterpret_cast<char*>(row + c * element), 16u);
                continue;
            }
            for (unsigned e = 0; e < per_piece; ++e) {
                const int64_t at = c + int64_t{e} * map.steps[0];
                const bool here = inside && at >= 0 && at < static_cast<int64_t>(map.size(0));
                run(piece + e * element, here ? reinterpret_cast<char*>(row + at * element) : nullptr, element);
            }
        }
        more = false;
        for (int d = 1; d < map.rank && !more; ++d) {
            more = ++i[d] < counts[d];
            if (!more) i[d] = 0;
        }
    }
}

}  // namespace simulator
