// Inline PTX: loads and stores with cache hints, arithmetic, conversions, special registers, shuffles, atomics, barriers,
// cp.async, ldmatrix and mma.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "feature.h"

__device__ __forceinline__ unsigned lane_id() {
    unsigned lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__global__ void scalars(const int* in, float* out, long long* wide) {
    int a, b;
    asm volatile("ld.global.nc.L1::no_allocate.s32 %0, [%1];" : "=r"(a) : "l"(in + threadIdx.x));
    asm("add.s32 %0, %1, %2;\n\t"
        "mul.lo.s32 %0, %0, 3;"
        : "=&r"(b)
        : "r"(a), "r"(-2));
    asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(out + threadIdx.x), "f"(exp2_fast(float(b) * 0.25f)) : "memory");
    long long product;
    asm("{\n\t.reg .s64 t;\n\tmul.wide.s32 t, %1, %2;\n\tadd.s64 %0, t, 5;\n\t}" : "=l"(product) : "r"(a), "r"(1 << 30));
    wide[threadIdx.x] = product;
}

__global__ void bits(unsigned* out) {
    unsigned a = 0xdeadbeefu, b = 0x12345678u, c = threadIdx.x, d;
    asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(d) : "r"(a), "r"(b));
    out[0] = d;
    asm("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(d) : "r"(a), "r"(b), "r"(0x0f0f0f0fu));  // majority
    out[1] = d;
    asm("bfe.u32 %0, %1, 8, 12;" : "=r"(d) : "r"(a));
    out[2] = d;
    asm("bfi.b32 %0, %1, %2, 4, 8;" : "=r"(d) : "r"(0xffu), "r"(b));
    out[3] = d;
    asm("shf.l.wrap.b32 %0, %1, %2, 8;" : "=r"(d) : "r"(a), "r"(b));
    out[4] = d;
    asm("{.reg .pred p; setp.gt.u32 p, %1, 0x20000000; selp.u32 %0, 7, 9, p;}" : "=r"(d) : "r"(a));
    out[5] = d;
    asm("{ .reg .pred p;\n setp.eq.u32 p, %1, %2;\n mov.u32 %0, 1;\n @!p mov.u32 %0, 2;\n }" : "=r"(d) : "r"(a), "r"(b));
    out[6] = d;
    asm("popc.b32 %0, %1;" : "=r"(d) : "r"(b));
    out[7] = d;
    asm("mov.b32 %0, {%1, %2};" : "=r"(d) : "h"((unsigned short)0x1111), "h"((unsigned short)0x2222));
    out[8] = d;
    asm("mad.lo.u32 %0, %1, 3, %2;" : "=r"(d) : "r"(c + 5), "r"(1u));
    out[9] = d;
    asm("prmt.b32 %0, %1, %2, 0x8f9b;" : "=r"(d) : "r"(a), "r"(b));  // each byte eight times the sign of one
    out[10] = d;
}

__global__ void conversions(const float* in, unsigned* out) {
    unsigned d;
    unsigned short h;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(in[0]), "f"(in[1]));
    out[0] = d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(in[0]), "f"(in[1]));
    out[1] = d;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(in[0]));
    out[2] = h;
    float back;
    asm("cvt.f32.f16 %0, %1;" : "=f"(back) : "h"(h));
    out[3] = __float_as_uint(back);
    int i;
    asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(i) : "f"(-2.75f));
    out[4] = i;
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(i) : "f"(2.5f));
    out[5] = i;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(1.0f + 0x1p-11f));
    out[6] = d;
    asm("cvt.rn.f32.u32 %0, %1;" : "=f"(back) : "r"(3000000000u));
    out[7] = __float_as_uint(back);
}

__global__ void together(int* out, int* counter, double* sums) {
    __shared__ int values[64];
    const unsigned lane = lane_id();
    int v = threadIdx.x, other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 0x1f, 0xffffffff;" : "=r"(other) : "r"(v));
    out[4 * v] = other;
    asm volatile("{.reg .pred p; shfl.sync.down.b32 %0|p, %1, 4, 0x1f, -1; @!p mov.b32 %0, -1;}" : "=r"(other) : "r"(v));
    out[4 * v + 1] = other;
    unsigned ballot;
    asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff;}" : "=r"(ballot) : "r"(v % 3));
    out[4 * v + 2] = __popc(ballot);
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(&values[v]));
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(place), "r"(v * 10));
    asm volatile("bar.sync 0;" ::: "memory");
    asm volatile("ld.shared.b32 %0, [%1+4];" : "=r"(other) : "r"(v == 63 ? place - 4 : place));
    out[4 * v + 3] = other;
    asm volatile("red.global.add.s32 [%0], %1;" ::"l"(counter), "r"(v));
    double before;
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(sums), "f"(0.5f));
    asm volatile("atom.global.add.f64 %0, [%1], %2;" : "=d"(before) : "l"(sums + 1), "d"(0.25));
    if (lane == 0) asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(other) : "l"(counter + 1), "r"(1));
}

__global__ void vectors(const float4* in, float4* out) {
    float x, y, z, w;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "l"(in + threadIdx.x));
    asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(x) : "f"(y), "f"(2.0f));
    asm volatile("st.global.wt.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(out + threadIdx.x), "f"(w), "f"(z), "f"(y), "f"(x));
}

template <typename T>
__global__ void matrices(const T* a, const T* b, float* c) {
    __shared__ __align__(16) T as[16][16], bs[8][16];  // b by columns
    const int lane = threadIdx.x;
    const unsigned to_a = static_cast<unsigned>(__cvta_generic_to_shared(&as[lane / 2][lane % 2 * 8]));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_a), "l"(a + lane * 8));
    if (lane < 16) {
        const unsigned to_b = static_cast<unsigned>(__cvta_generic_to_shared(&bs[lane / 2][lane % 2 * 8]));
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to_b), "l"(b + lane * 8), "n"(16));
    }
    asm volatile("cp.async.commit_group;\n" ::);
    asm volatile("cp.async.wait_group %0;\n" ::"n"(0));
    __syncthreads();
    unsigned fa[4], fb[2];
    const unsigned row_a = static_cast<unsigned>(__cvta_generic_to_shared(&as[lane % 16][lane / 16 * 8]));
    const unsigned row_b = static_cast<unsigned>(__cvta_generic_to_shared(&bs[lane % 8][lane / 8 % 2 * 8]));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
                 : "r"(row_a));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "r"(row_b));
    float d[4];
    if constexpr (sizeof(T) == 2 && std::is_same<T, __half>::value)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                     : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]), "f"(1.f), "f"(1.f), "f"(1.f), "f"(1.f));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                     : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]), "f"(1.f), "f"(1.f), "f"(1.f), "f"(1.f));
    for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

// The carry flag, within one asm statement; rounding up.
__global__ void carry(unsigned* out) {
    const unsigned most = 0xffffffffu, factor = 0xfffffff0u;
    float up;
    asm("add.cc.u32 %0, %3, 1;\n\taddc.cc.u32 %1, %3, 0;\n\taddc.u32 %2, 0, 0;" : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]) : "r"(most));
    asm("mad.lo.cc.u32 %0, %2, %2, %2;\n\tmadc.hi.u32 %1, %2, %2, %3;" : "=r"(out[3]), "=r"(out[4]) : "r"(factor), "r"(7));
    asm("sub.cc.u32 %0, %2, %3;\n\tsubc.u32 %1, %4, %2;" : "=r"(out[5]), "=r"(out[6]) : "r"(1), "r"(2), "r"(5));
    asm("cvt.rp.f32.s32 %0, %1;" : "=f"(up) : "r"(16777217));
    out[7] = static_cast<unsigned>(up);
}

template <typename T>
void check_matrices() {
    Buffer<T> a(256), b(128);
    Buffer<float> c(128);
    for (int i = 0; i < 256; ++i) a[i] = T(float(i % 13 - 6));
    for (int i = 0; i < 128; ++i) b[i] = T(float(i % 7 - 3));
    matrices<T><<<1, 32>>>(a.device(), b.device(), c.device());
    c.fetch();
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 8; ++j) {
            float sum = 1;
            for (int k = 0; k < 16; ++k) sum += float((i * 16 + k) % 13 - 6) * float((j * 16 + k) % 7 - 3);
            EXPECT(c[i * 8 + j] == sum);
        }
}

int main() {
    Buffer<int> in(32), out(256), counter(2);
    Buffer<double> added(2);
    Buffer<float> results(32), some(2);
    Buffer<long long> wide(32);
    Buffer<unsigned> words(11), converted(8);
    Buffer<float4> quads(4), turned(4);
    for (int i = 0; i < 32; ++i) in[i] = i;
    scalars<<<1, 32>>>(in.device(), results.device(), wide.device());
    results.fetch(), wide.fetch();
    for (int i = 0; i < 32; ++i) {
        EXPECT(std::fabs(results[i] / std::exp2(0.75f * (i - 2)) - 1) < 1e-5f);
        EXPECT(wide[i] == (static_cast<long long>(i) << 30) + 5);
    }
    bits<<<1, 1>>>(words.device());
    words.fetch();
    const unsigned expected[11] = {0x5678beefu,   0x0e2d0e6fu & 0u, 0xdbe, 0x12345ff8u, 0x345678deu, 7, 2, 13,
                                   0x22221111u, 16,               0xff00ffffu};
    for (int i = 0; i < 11; ++i)
        if (i != 1) EXPECT(words[i] == expected[i]);
    const unsigned a = 0xdeadbeefu, b = 0x12345678u, m = 0x0f0f0f0fu;
    EXPECT(words[1] == ((a & b) | (a & m) | (b & m)));
    some[0] = 1.5f, some[1] = -2;
    conversions<<<1, 1>>>(some.device(), converted.device());
    converted.fetch();
    const unsigned bits_of[8] = {0x3e00c000u, 0x3fc0c000u, 0x3e00, 0x3fc00000u, static_cast<unsigned>(-2), 2, 0x3f802000u, 0x4f32d05eu};
    for (int i = 0; i < 8; ++i) EXPECT(converted[i] == bits_of[i]);
    together<<<1, 64>>>(out.device(), counter.device(), added.device());
    out.fetch(), counter.fetch(), added.fetch();
    for (int t = 0; t < 64; ++t) {
        int votes = 0;
        for (int lane = 0; lane < 32; ++lane) votes += (t / 32 * 32 + lane) % 3 != 0;
        EXPECT(out[4 * t] == (t ^ 1) && out[4 * t + 1] == (t % 32 < 28 ? t + 4 : -1) && out[4 * t + 2] == votes);
        EXPECT(out[4 * t + 3] == 10 * (t == 63 ? 63 : t + 1));
    }
    EXPECT(counter[0] == 2016 && counter[1] == 2);
    float first;
    memcpy(&first, &added[0], sizeof first);
    EXPECT(first == 32 && added[1] == 16);
    for (int i = 0; i < 4; ++i) quads[i] = make_float4(i, 10 + i, 20 + i, 30 + i);
    vectors<<<1, 4>>>(quads.device(), turned.device());
    turned.fetch();
    for (int i = 0; i < 4; ++i) EXPECT(turned[i].x == 30 + i && turned[i].w == 3 * i + 20 && turned[i].z == 10 + i);
    Buffer<unsigned> carried(8);
    carry<<<1, 1>>>(carried.device());
    carried.fetch();
    const unsigned sums[8] = {0, 0, 1, 240, 0xffffffe8u, 0xffffffffu, 3, 16777218};
    for (int i = 0; i < 8; ++i) EXPECT(carried[i] == sums[i]);
    check_matrices<__half>();
    check_matrices<__nv_bfloat16>();
    return done();
}
