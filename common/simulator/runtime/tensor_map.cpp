// tensor_map.cpp - cuTensorMapEncodeTiled, with the driver's argument checks.
#include "tensor_map.h"

#include <stdio.h>

#include "worker.h"

namespace simulator {

static unsigned bytes_of(unsigned type) {
    switch (type) {
        case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
        case CU_TENSOR_MAP_DATA_TYPE_UINT16:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
        case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
        case CU_TENSOR_MAP_DATA_TYPE_UINT64:
        case CU_TENSOR_MAP_DATA_TYPE_INT64:
        case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
        default: return 4;
    }
}
unsigned TensorMap::element_bytes() const { return bytes_of(type); }
uint32_t TensorMap::box_bytes() const {
    uint32_t bytes = element_bytes();
    for (int d = 0; d < rank; ++d) bytes *= extent(d);
    return bytes;
}

static CUresult refuse(const char* why) {
    if (is_program()) hint((std::string("cuTensorMapEncodeTiled: ") + why).c_str());
    return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace simulator

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
                                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill fill) {
    using namespace simulator;
    if (!map || reinterpret_cast<uintptr_t>(map) % 64) return refuse("the map's address must be a multiple of 64 bytes");
    if (rank < 1 || rank > 5) return refuse("the rank must be 1 to 5");
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return refuse("the simulator has no interleaved layouts");
    if (!data || reinterpret_cast<uintptr_t>(data) % 16) return refuse("the tensor's address must be a multiple of 16 bytes");
    const unsigned bytes = bytes_of(type);
    TensorMap m = {};
    m.mark = TENSOR_MAP_MARK;
    m.data = reinterpret_cast<uintptr_t>(data);
    m.type = static_cast<uint8_t>(type), m.rank = static_cast<uint8_t>(rank);
    m.swizzle = static_cast<uint8_t>(swizzle), m.fill = static_cast<uint8_t>(fill);
    for (unsigned d = 0; d < rank; ++d) {
        if (sizes[d] < 1 || sizes[d] > uint64_t{1} << 32) return refuse("a size must be 1 to 2^32");
        if (box[d] < 1 || box[d] > 256) return refuse("a box has 1 to 256 elements in each dimension");
        if (steps[d] < 1 || steps[d] > 8) return refuse("an element stride is 1 to 8");
        m.sizes_less_1[d] = static_cast<uint32_t>(sizes[d] - 1);
        m.box[d] = static_cast<uint16_t>(box[d]), m.steps[d] = static_cast<uint8_t>(steps[d]);
        if (d == 0) continue;
        if (strides[d - 1] % 16) return refuse("a stride must be a multiple of 16 bytes");
        if (strides[d - 1] >= uint64_t{1} << 40) return refuse("a stride must be below 2^40 bytes");
        m.strides[d - 1] = strides[d - 1];
    }
    const uint32_t inner = static_cast<uint32_t>(m.extent(0)) * bytes;
    if (inner % 16) return refuse("the box's rows must be a multiple of 16 bytes");
    if (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && inner > 16u << swizzle)
        return refuse("the box's rows are longer than the swizzle: 32, 64 or 128 bytes");
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}
