// Compute capability 9.0 through inline PTX: mbarriers, bulk copies and tensor maps with swizzles, wgmma (K-major,
// MN-major, from registers; fp16 and bf16), setmaxnreg, named barriers, elect.sync, stmatrix, programmatic launches.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/cuda/ldmatrix.cuh"
#include "common/cuda/mbarrier.cuh"
#include "common/cuda/tma.cuh"
#include "common/cuda/wgmma.cuh"
#include "feature.h"

using namespace hopper;
using namespace mma;

// What was compiled for, and which device there is.
__global__ void architecture(int* out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    out[0] = __CUDA_ARCH__;
#endif
}

// A [64][64] at a tile with 128-byte swizzle; C = A B^T or A B, out [64][N]
template <typename T, int N, bool MN>
__global__ void __launch_bounds__(128) product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    alignas(1024) __shared__ T a_tile[64 * 64];
    alignas(1024) __shared__ T b_tile[(MN ? 64 : N) * (MN ? N : 64)];
    __shared__ Mbarrier full;
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_done();
        mbarrier_expect(full, sizeof a_tile + sizeof b_tile);
        tma_load(a_tile, a, full, 0, 0, 0, 0);
        for (int box = 0; box < (MN ? N / 64 : 1); ++box) tma_load(b_tile + box * 64 * 64, b, full, 64 * box, 0, 0, 0);
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    float d[N / 8][4];
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    wgmma_begin();
    for (int k = 0; k < 4; ++k) {
        if constexpr (MN) {
            unsigned rows[4];  // A from registers, as ldmatrix gives it
            const int row = warp_row + lane % 16, piece = k * 2 + lane / 16;
            ldmatrix_x4(rows[0], rows[1], rows[2], rows[3], a_tile + row * 64 + (piece ^ row % 8) * 8);
            wgmma<T>(d, rows, MnMajor::at(b_tile, 8192).plus(2048 * k), k > 0);
            wgmma_commit();
            wgmma_wait<0>();
            keep_order(d);
            wgmma_begin();
        } else
            wgmma<T>(d, KMajor::at(a_tile).plus(32 * k), KMajor::at(b_tile).plus(32 * k), k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep_order(d);
    for (int n = 0; n < N / 8; ++n)
        for (int e = 0; e < 4; ++e) out[(warp_row + lane / 4 + e / 2 * 8) * N + 8 * n + lane % 4 * 2 + e % 2] = d[n][e];
#endif
}
template <typename T, int N, bool MN>
static void test_product() {
    const int rows = MN ? 64 : N, columns = MN ? N : 64;
    Buffer<T> a(64 * 64), b(rows * columns);
    for (int i = 0; i < 64 * 64; ++i) a[i] = T(static_cast<float>(i * 7 % 5 - 2));
    for (int i = 0; i < rows * columns; ++i) b[i] = T(static_cast<float>(i * 3 % 7 - 3));
    Buffer<float> out(64 * N);
    CUtensorMap map_a, map_b;
    EXPECT(make_tensor_map<T>(map_a, a.device(), {1, 1, 64, 64}, {4096, 4096, 64}, 64));
    EXPECT(make_tensor_map<T>(map_b, b.device(), {1, 1, rows, columns}, {rows * columns, rows * columns, columns}, rows));
    product<T, N, MN><<<1, 128>>>(map_a, map_b, out.device());
    out.fetch();
    for (int i = 0; i < 64; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = 0;
            for (int k = 0; k < 64; ++k) sum += static_cast<float>(a[i * 64 + k]) * static_cast<float>(b[MN ? k * N + j : j * 64 + k]);
            EXPECT(out[i * N + j] == sum);
        }
}

// Boxes [4][ROW bytes] of a matrix of bytes [16][ROW], in three dimensions [2][8][ROW], with each swizzle.
__global__ void box(const __grid_constant__ CUtensorMap map, unsigned char* out, int bytes, int row, int plane) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    alignas(1024) __shared__ unsigned char tile[4 * 128];
    __shared__ Mbarrier full;
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_done();
        mbarrier_expect(full, bytes);
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                shared_offset(tile)),
            "l"(&map), "r"(shared_offset(&full)), "r"(0), "r"(row), "r"(plane)
            : "memory");
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = tile[i];
#endif
}
static void test_swizzles() {
    for (int mode = 1; mode <= 3; ++mode) {
        const int width = 16 << mode;
        Buffer<unsigned char> matrix(16 * width), out(4 * width);
        for (int i = 0; i < 16 * width; ++i) matrix[i] = static_cast<unsigned char>(i * 37 + i / 251);
        CUtensorMap map;
        const cuuint64_t sizes[] = {static_cast<cuuint64_t>(width), 8, 2}, strides[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(8 * width)};
        const cuuint32_t extent[] = {static_cast<cuuint32_t>(width), 4, 1}, steps[] = {1, 1, 1};
        EXPECT(tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, matrix.device(), sizes, strides, extent, steps,
                                    CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(mode), CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
        box<<<1, 32>>>(map, out.device(), 4 * width, 6, 1);  // rows 6 and 7 of plane 1, and two that are not there
        out.fetch();
        for (int i = 0; i < 4 * width; ++i) {
            const int address = i, plain = address ^ ((address >> 7 & ((1 << mode) - 1)) << 4), row = plain / width;
            EXPECT(out[i] == (row < 2 ? matrix[(8 + 6 + row) * width + plain % width] : 0));
        }
    }
}

// Warps 0-3 hand 128 numbers to warps 4-7 by a named barrier; registers change owners; one lane of each warp is elected.
__global__ void __launch_bounds__(256, 1) roles(int* out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ int numbers[128];
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        numbers[threadIdx.x] = 3 * threadIdx.x;
        asm volatile("barrier.arrive 3, 256;" ::: "memory");
    } else {
        more_registers<240>();
        asm volatile("barrier.sync 3, 256;" ::: "memory");
        out[threadIdx.x - 128] = numbers[255 - threadIdx.x];
        unsigned leader = 0;
        asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(leader));
        if (leader) out[128 + threadIdx.x / 32 - 4] = threadIdx.x % 32;
    }
#endif
}

// stmatrix undoes ldmatrix.
__global__ void there_and_back(const uint4* in, uint4* out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    alignas(16) __shared__ uint4 from[32], to[32];
    from[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    unsigned r[4];
    ldmatrix_x4(r[0], r[1], r[2], r[3], &from[threadIdx.x]);
    stmatrix_x4(&to[threadIdx.x], r[0], r[1], r[2], r[3]);
    __syncwarp();
    out[threadIdx.x] = to[threadIdx.x];
#endif
}

__global__ void first(int* out) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    out[0] = 5;
}
__global__ void second(int* out) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    out[1] = out[0] + 1;
}

int main() {
    Buffer<int> which(1);
    architecture<<<1, 1>>>(which.device());
    which.fetch();
    EXPECT(which[0] == 900);

    test_product<__half, 64, false>();
    test_product<__nv_bfloat16, 128, false>();
    test_product<__nv_bfloat16, 64, true>();
    test_product<__half, 128, true>();
    test_swizzles();

    Buffer<int> out(132);
    roles<<<1, 256>>>(out.device());
    out.fetch();
    for (int i = 0; i < 128; ++i) EXPECT(out[i] == 3 * (127 - i));
    for (int i = 128; i < 132; ++i) EXPECT(out[i] >= 0 && out[i] < 32);

    Buffer<uint4> matrices(32), back(32);
    for (unsigned i = 0; i < 32; ++i) matrices[i] = {i, i + 100, i + 200, i + 300};
    there_and_back<<<1, 32>>>(matrices.device(), back.device());
    back.fetch();
    for (int i = 0; i < 32; ++i) EXPECT(back[i].x == matrices[i].x && back[i].w == matrices[i].w);

    Buffer<int> order(2);
    int* memory = order.device();
    first<<<1, 1>>>(memory);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1), config.blockDim = dim3(1), config.attrs = &attribute, config.numAttrs = 1;
    EXPECT(cudaLaunchKernelEx(&config, second, memory) == cudaSuccess);
    order.fetch();
    EXPECT(order[1] == 6);
    return done();
}
