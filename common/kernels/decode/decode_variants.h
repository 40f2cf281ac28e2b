// decode_variants.h - the two families of decode kernels: with tensor cores, and without.
//
// Each function returns the number of workspace floats its kernel needs; with `launch` it also launches it.
#pragma once
#include "common/kernels/decode/decode.h"

// fp16 and bf16; head_dim a multiple of 8, pointers multiples of 16 bytes, and for bf16 compute capability 8.0.
int64_t decode_mma(const DecodeArguments& arguments, FloatType type, bool launch);

// Everything.
int64_t decode_simt(const DecodeArguments& arguments, FloatType type, bool launch);
