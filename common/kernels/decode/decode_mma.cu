// decode_mma.cu - decoding of fp16 and bf16 caches on tensor cores, and the choice between the two kernels.
//
//   decode_mma     picks the instance for dtype, head_dim and the number of queries that share a K/V head; short caches
//                  use the cluster kernel (decode_cluster.cuh), others the list kernel (decode_list.cuh)
//
// Measurements: README.md.
#include "common/kernels/decode/decode_cluster.cuh"
#include "common/kernels/decode/decode_list.cuh"
#include "common/kernels/decode/decode_mma.cuh"
#include "common/kernels/decode/decode_variants.h"

template <typename Warp>
static int64_t with_warp(const DecodeArguments& a, bool launch) {
    if (!fits_clusters<Warp>(a)) return decode_list<Warp>(a, launch);
    if (launch) decode_clusters<Warp>(a);
    return 0;
}

template <typename T, int D>
static int64_t with_rows(const DecodeArguments& a, bool launch) {
    if (a.heads / a.layout.kv_heads > 8) return with_warp<MmaWarp<T, D, 2>>(a, launch);
    return with_warp<MmaWarp<T, D, 1>>(a, launch);
}

template <typename T>
static int64_t with_cols(const DecodeArguments& a, bool launch) {
    return a.layout.head_dim <= 64 ? with_rows<T, 64>(a, launch) : with_rows<T, 128>(a, launch);
}

int64_t decode_mma(const DecodeArguments& a, FloatType type, bool launch) {
    return type == FloatType::FLOAT16 ? with_cols<__half>(a, launch) : with_cols<__nv_bfloat16>(a, launch);
}
