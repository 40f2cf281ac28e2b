// Memory that is read before anything was written to it.
//
//   partly_loaded     the tail of a shared tile is neither loaded nor set to zero
//   accumulator       a shared sum that starts from nothing
//   add_to_output     out[i] += ... on fresh memory
//   half_a_word       two bytes of four were written
//   one_byte_of_two   one byte of two was written
//   one_block_only    shared memory that only block 0 initializes
//   copy              what cudaMemset(), cudaMemcpy() and earlier kernels write is initialized
//   padded_tile       the padding column of a tile is never touched
//   tagged            a struct with padding bytes is copied whole
//   even_elements     elements that no kernel wrote are copied back to the host
#include <stdint.h>

#include "case.h"

// Sum of n <= 64 values through a tile of 64.
template <bool ZERO>
__global__ void partly_loaded(const float* in, float* out, int n) {
    __shared__ float tile[64];
    const int t = threadIdx.x;
    if (t < n)
        tile[t] = in[t];
    else if (ZERO)
        tile[t] = 0;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += tile[i];  // line: tile tail
    out[t] = sum;
}
RUN(tile_tail_zero, 48, 64, { partly_loaded<true><<<1, 64>>>(in.data, out.data, 48); })
RUN(tile_tail_uninitialized, 48, 64, { partly_loaded<false><<<1, 64>>>(in.data, out.data, 48); })

template <bool ZERO>
__global__ void accumulator(const float* in, float* out) {
    __shared__ float total;
    const int t = threadIdx.x;
    if (ZERO && t == 0) total = 0;
    __syncthreads();
    atomicAdd(&total, in[t]);  // line: fresh accumulator
    __syncthreads();
    out[t] = total;
}
RUN(accumulator_zero, 64, 64, { accumulator<true><<<1, 64>>>(in.data, out.data); })
RUN(accumulator_uninitialized, 64, 64, { accumulator<false><<<1, 64>>>(in.data, out.data); })

__global__ void add_to_output(const float* in, float* out) {
    out[threadIdx.x] += in[threadIdx.x];  // line: add to output
}
CASE(output_set_to_zero) {
    Array<float> in = ramp(64), out(64);
    require(cudaMemset(out.data, 0, 64 * sizeof(float)));
    add_to_output<<<1, 64>>>(in.data, out.data);
    out.download(result);
}
RUN(output_uninitialized, 64, 64, { add_to_output<<<1, 64>>>(in.data, out.data); })

// The lower half of each word is written, all of it is read.
__global__ void half_a_word(const float* in, float* out) {
    __shared__ uint32_t words[32];
    const int t = threadIdx.x;
    reinterpret_cast<uint16_t*>(words)[2 * t] = static_cast<uint16_t>(in[t]);
    __syncthreads();
    out[t] = static_cast<float>(words[31 - t]);  // line: whole word
}
RUN(half_a_word_written, 32, 32, { half_a_word<<<1, 32>>>(in.data, out.data); })

// One byte of two is written, both are read.
__global__ void one_byte_of_two(const float* in, float* out) {
    __shared__ uint16_t words[32];
    const int t = threadIdx.x;
    reinterpret_cast<uint8_t*>(words)[2 * t] = static_cast<uint8_t>(in[t]);
    __syncthreads();
    out[t] = static_cast<float>(words[31 - t]);  // line: both bytes
}
RUN(one_byte_of_two_written, 32, 32, { one_byte_of_two<<<1, 32>>>(in.data, out.data); })

// Shared memory ends with its block: what block 0 wrote is not there for block 1.
template <bool ALL>
__global__ void one_block_only(const float* in, float* out) {
    __shared__ float table[32];
    const int t = threadIdx.x;
    if (ALL || blockIdx.x == 0) table[t] = in[t];
    __syncthreads();
    out[blockIdx.x * 32 + t] = table[31 - t];  // line: table read
}
RUN(table_in_every_block, 32, 64, { one_block_only<true><<<2, 32>>>(in.data, out.data); })
RUN(table_in_one_block, 32, 64, { one_block_only<false><<<2, 32>>>(in.data, out.data); })

__global__ void copy(const float* in, float* out) {
    out[threadIdx.x] = in[threadIdx.x];  // line: copy
}
CASE(initialized_by_memset) {
    Array<float> in(64), out(64);
    require(cudaMemset(in.data, 0, 64 * sizeof(float)));
    copy<<<1, 64>>>(in.data, out.data);
    out.download(result);
}
// 0xff in every byte is what the simulator fills fresh memory with; here it is a value like any other.
CASE(initialized_to_ones) {
    Array<int> in(64), out(64);
    require(cudaMemset(in.data, 0xff, 64 * sizeof(int)));
    copy<<<1, 64>>>(reinterpret_cast<float*>(in.data), reinterpret_cast<float*>(out.data));
    out.download(result);
}
CASE(initialized_by_copies) {
    Array<float> in = ramp(64), between(64), out(64);
    require(cudaMemcpy(between.data, in.data, 64 * sizeof(float), cudaMemcpyDeviceToDevice));
    copy<<<1, 64>>>(between.data, out.data);
    out.download(result);
}
CASE(initialized_by_kernel) {
    Array<float> in = ramp(64), between(64), out(64);
    copy<<<1, 64>>>(in.data, between.data);
    copy<<<1, 64>>>(between.data, out.data);
    out.download(result);
}
CASE(initialized_but_for_one) {
    Array<float> in(64), out(64);
    in.upload(counting(63));
    copy<<<1, 64>>>(in.data, out.data);
    out.download(result);
}

// A transpose through a tile of 8 x 9: column 8 only shifts the rows between the banks.
__global__ void padded_tile(const float* in, float* out) {
    __shared__ float tile[8][9];
    const int row = threadIdx.x / 8, column = threadIdx.x % 8;
    tile[row][column] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[column][row];
}
RUN(padding_column, 64, 64, { padded_tile<<<1, 64>>>(in.data, out.data); })

struct Tagged {
    unsigned char tag;  // three bytes of padding follow
    float value;
};
__global__ void tagged(const float* in, float* out) {
    __shared__ Tagged items[64];
    const int t = threadIdx.x;
    items[t].tag = static_cast<unsigned char>(t);
    items[t].value = in[t];
    __syncthreads();
    const Tagged other = items[63 - t];
    out[t] = other.value + other.tag;
}
RUN(padding_in_struct, 64, 64, { tagged<<<1, 64>>>(in.data, out.data); })

__global__ void even_elements(const float* in, float* out) {
    out[2 * threadIdx.x] = in[threadIdx.x];
}
RUN(copied_back_unwritten, 32, 64, { even_elements<<<1, 32>>>(in.data, out.data); })
