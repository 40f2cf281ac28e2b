// decode_mma.cu - tuned decoding of fp16 and bf16 caches on tensor cores, and the choice between the two kernels.
//
// `python -m task6.benchmark --rounds 10`, bfloat16, NVIDIA H200, torch 2.11, CUDA 13.0. Microseconds; in brackets the
// share of the bandwidth of a copy, 4.25 TB/s (a copy also writes: only reading can be faster). "SDPA": the faster of
// the flash and cuDNN backends, which was cuDNN throughout.
//
//     batch  heads  head_dim   tokens     cache     SDPA     tuned             in pages
//         1  32/32      128    1,024     17 MB     14.5      11.7  ( 34%)      12.0  ( 33%)
//         1  32/32      128    8,192    134 MB     38.5      37.6  ( 84%)      38.2  ( 83%)
//         1  32/32      128   65,536   1074 MB    239.7     244.6  (103%)     245.3  (103%)
//         1  32/8       128    1,024      4 MB     10.8       8.7  ( 11%)       8.9  ( 11%)
//         1  32/8       128    8,192     34 MB     18.4      14.9  ( 53%)      16.5  ( 48%)
//         1  32/8       128   65,536    268 MB     67.8      67.5  ( 93%)      69.7  ( 91%)
//         1  12/12       64    1,024      3 MB      9.8       8.0  (  9%)       8.0  (  9%)
//         1  12/12       64    8,192     25 MB     15.2      13.2  ( 45%)      14.6  ( 40%)
//         1  12/12       64   65,536    201 MB     54.5      55.2  ( 86%)      54.4  ( 87%)
//        16  32/32      128    1,024    268 MB     67.1      65.3  ( 97%)      66.5  ( 95%)
//        16  32/32      128    8,192   2147 MB    475.5     480.1  (105%)     497.2  (102%)
//        16  32/32      128   65,536  17180 MB   3697.7    3737.8  (108%)    3837.9  (105%)
//        16  32/8       128    1,024     67 MB     24.2      23.2  ( 68%)      24.0  ( 66%)
//        16  32/8       128    8,192    537 MB    122.9     127.1  ( 99%)     127.6  ( 99%)
//        16  32/8       128   65,536   4295 MB    923.0     944.3  (107%)     952.7  (106%)
//        16  12/12       64    1,024     50 MB     18.1      18.4  ( 64%)      18.2  ( 65%)
//        16  12/12       64    8,192    403 MB     95.3      97.8  ( 97%)     100.0  ( 95%)
//        16  12/12       64   65,536   3221 MB    711.0     699.4  (108%)     720.9  (105%)
//
//     geometric mean of SDPA / tuned 1.053, in pages 1.027; least 0.97 and 0.95
//
// Of these, the caches of 1,024 tokens and those of a single sequence with 8,192 are the clusters'
// (decode_cluster.cuh), the others the list's (decode_list.cuh).
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
