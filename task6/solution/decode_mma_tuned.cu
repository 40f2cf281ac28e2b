// decode_mma_tuned.cu - tuned decoding of fp16 and bf16 caches on tensor cores.
//
// `python -m task6.benchmark --rounds 10`, bfloat16, NVIDIA H200, torch 2.11, CUDA 13.0. Microseconds; in brackets the
// share of the bandwidth of a copy, 4.28 TB/s (a copy also writes: only reading can be faster). "SDPA": the faster of
// the flash and cuDNN backends, which was cuDNN throughout.
//
//     batch  heads  head_dim  tokens     cache     SDPA         tuned         in pages
//        1   32/32    128      1,024     17 MB     14.7       13.3  ( 29%)       13.6
//        1   32/32    128      8,192    134 MB     39.3       38.9  ( 81%)       39.6
//        1   32/32    128     65,536   1074 MB    244.5      248.7  (101%)      255.3
//        1   32/8     128      1,024      4 MB     10.4        9.7  ( 10%)       10.0
//        1   32/8     128      8,192     34 MB     18.6       17.8  ( 44%)       17.9
//        1   32/8     128     65,536    268 MB     70.1       71.6  ( 88%)       73.4
//        1   12/12     64      1,024      3 MB      9.8        9.4  (  8%)        9.5
//        1   12/12     64      8,192     25 MB     15.0       15.1  ( 39%)       15.6
//        1   12/12     64     65,536    201 MB     54.8       55.1  ( 85%)       57.3
//       16   32/32    128      1,024    268 MB     67.7       69.3  ( 91%)       71.6
//       16   32/32    128      8,192   2147 MB    481.7      489.0  (103%)      502.4
//       16   32/32    128     65,536  17180 MB   3803.7     3840.8  (104%)     3903.5
//       16   32/8     128      1,024     67 MB     22.9       26.6  ( 59%)       26.7
//       16   32/8     128      8,192    537 MB    125.2      132.0  ( 95%)      133.3
//       16   32/8     128     65,536   4295 MB    943.2      969.2  (104%)      987.1
//       16   12/12     64      1,024     50 MB     18.0       22.1  ( 53%)       22.3
//       16   12/12     64      8,192    403 MB     97.4       98.8  ( 95%)      103.4
//       16   12/12     64     65,536   3221 MB    725.8      711.7  (106%)      752.1
//
//     geometric mean of SDPA / tuned 0.986, in pages 0.962; least 0.82 and 0.81, at batch 16 and 1,024 tokens
#include "task6/solution/decode_kernel.cuh"
#include "task6/solution/decode_mma.cuh"
#include "task6/solution/decode_variants.h"

template <typename T, int D>
static int64_t with_rows(const DecodeArguments& a, bool launch) {
    if (a.heads / a.layout.kv_heads > 8) return decode_with<MmaWarp<T, D, 2>>(a, launch);
    return decode_with<MmaWarp<T, D, 1>>(a, launch);
}

template <typename T>
static int64_t with_cols(const DecodeArguments& a, bool launch) {
    return a.layout.head_dim <= 64 ? with_rows<T, 64>(a, launch) : with_rows<T, 128>(a, launch);
}

int64_t decode_mma(const DecodeArguments& a, CacheType type, bool launch) {
    return type == CacheType::FLOAT16 ? with_cols<__half>(a, launch) : with_cols<__nv_bfloat16>(a, launch);
}
