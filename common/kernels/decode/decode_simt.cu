// decode_simt.cu - decoding without tensor cores: float32 caches, and whatever tensor cores do not support; chooses
// between the two kernels.
#include "common/kernels/decode/decode_list.cuh"
#include "common/kernels/decode/decode_simt.cuh"
#include "common/kernels/decode/decode_variants.h"

template <int D>
static int64_t with_heads(const DecodeArguments& a, bool launch) {
    if (a.heads == a.layout.kv_heads) return decode_list<SimtWarp<float, D, 1>>(a, launch);
    return decode_list<SimtWarp<float, D, 8>>(a, launch);
}

int64_t decode_simt(const DecodeArguments& a, FloatType type, bool launch) {
    if (type == FloatType::FLOAT16) return decode_list<SimtWarp<__half, 128, 8>>(a, launch);
    if (type == FloatType::BFLOAT16) return decode_list<SimtWarp<__nv_bfloat16, 128, 8>>(a, launch);
    return a.layout.head_dim <= 64 ? with_heads<64>(a, launch) : with_heads<128>(a, launch);
}

static int64_t decode_any(const DecodeArguments& a, FloatType type, bool launch) {
    const bool has_instruction =
        type == FloatType::FLOAT16 || device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8;
    const int64_t steps = a.layout.head_dim | a.query_strides.batch | a.query_strides.head;
    const bool fits = steps % 8 == 0 && inputs_aligned(a, 16);
    if (type != FloatType::FLOAT32 && has_instruction && fits) return decode_mma(a, type, launch);
    return decode_simt(a, type, launch);
}

int64_t decode_workspace(const DecodeArguments& arguments, FloatType type) {
    return decode_any(arguments, type, false);
}
void launch_decode(const DecodeArguments& arguments, FloatType type) { decode_any(arguments, type, true); }
