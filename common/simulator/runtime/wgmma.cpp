// wgmma.cpp - warpgroup matrix multiply: D [64][N] (+)= A [64][K] B [K][N], 16 rows per warp.
//
// A descriptor specifies an operand in shared memory. In a K-major operand the elements of a row of A, or a column of
// B, are contiguous; in an MN-major one those of a column of A, or a row of B. Offsets in 16-byte pieces, with W the
// width of the swizzle in pieces, 1 without one (CUTLASS has the same as layouts, include/cute/arch/mma_sm90_desc.hpp):
//
//   K-major     row r, piece c of k     (r % 8) W + (r / 8) stride + c
//   MN-major    k, piece c of the rows  (k % 8) W + (k / 8) stride + c % W + c / W leading
//
// Without a swizzle, K-major has c leading in place of c, and MN-major swaps leading and stride.
// Then the swizzle permutes the pieces by address bits. In the plain build wgmma is computed at once; in the checked
// build its accumulators hold NaN until the wait.
#include <algorithm>
#include <cmath>

#include "../include/simulator/float16.h"
#include "../include/simulator/matrix.h"
#include "hopper.h"
#include "tensor_map.h"
#include "checker.h"

namespace simulator {

// ---- elements

static unsigned bytes_of(Element element) {
    return element == Element::tf32 ? 4 : element == Element::e4m3 || element == Element::e5m2 ? 1 : 2;
}
static float value_of(uint8_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    float value;
    if (has_infinity && exponent == top)
        value = mantissa ? NAN : INFINITY;
    else if (!has_infinity && exponent == top && mantissa == (1 << mantissa_bits) - 1)
        value = NAN;
    else
        value = exponent ? std::ldexp(1.0f + static_cast<float>(mantissa) / (1 << mantissa_bits), exponent - bias)
                         : std::ldexp(static_cast<float>(mantissa) / (1 << mantissa_bits), 1 - bias);
    return bits & 0x80 ? -value : value;
}
static float read_element(Element element, const char* from) {
    switch (element) {
        case Element::f16: {
            Float16<Fp16Format> h;
            memcpy(static_cast<void*>(&h), from, 2);
            return static_cast<float>(h);
        }
        case Element::bf16: {
            uint16_t bits;
            memcpy(&bits, from, 2);
            return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
        }
        case Element::tf32: {
            uint32_t bits;
            memcpy(&bits, from, 4);
            return __builtin_bit_cast(float, bits & 0xffffe000u);
        }
        case Element::e4m3: return value_of(static_cast<uint8_t>(*from), 4, 3, false);
        default: return value_of(static_cast<uint8_t>(*from), 5, 2, true);
    }
}

// ---- operands in shared memory

struct Descriptor {
    uint32_t start, leading, stride;  // bytes
    unsigned mode;                    // CU_TENSOR_MAP_SWIZZLE_...
    explicit Descriptor(uint64_t bits)
        : start((bits & 0x3fff) * 16),
          leading((bits >> 16 & 0x3fff) * 16),
          stride((bits >> 32 & 0x3fff) * 16),
          mode(bits >> 62 == 0 ? 0 : 4 - static_cast<unsigned>(bits >> 62)) {}
    // The offset of piece c of a line. A line is a row of A or column of B; in MN-major operands, one index of k.
    uint32_t at(unsigned line, unsigned c, bool mn_major) const {
        const uint32_t width = mode == 0 ? 1 : 1u << mode;
        uint32_t offset = line % 8 * width * 16;
        if (mn_major && mode == 0)
            offset += line / 8 * leading + c * stride;
        else if (mn_major)
            offset += line / 8 * stride + c % width * 16 + c / width * leading;
        else
            offset += line / 8 * stride + (mode == 0 ? c * leading : c * 16);
        return swizzled((start + offset) & 0x3ffff, mode);
    }
};

struct Operand {
    Descriptor matrix;
    Element element;
    bool mn_major;
    unsigned rows, first_row, k;  // rows of A or columns of B
    const char* name;
};

// out [k][rows], starting at first_row
static void read_operand(Worker& worker, const Operand& o, float* out, Position at, const void* return_address) {
    OperandPieces pieces = {o.name, o.matrix.mode, {}};
    const unsigned bytes = bytes_of(o.element), per_piece = 16 / bytes;
    const unsigned lines = o.mn_major ? o.k : o.rows, along = o.mn_major ? o.rows : o.k;
    const unsigned first_line = o.mn_major ? 0 : o.first_row, first_piece = o.mn_major ? o.first_row / per_piece : 0;
    for (unsigned line = 0; line < lines; ++line)
        for (unsigned c = 0; c < (along + per_piece - 1) / per_piece; ++c) {
            const uint32_t offset = o.matrix.at(first_line + line, first_piece + c, o.mn_major);
            const char* piece = shared_address_in(worker, offset);
            if (!piece)
                fail("wgmma at %s:%d: the descriptor of %s leads out of this block's shared memory, to 0x%x", at.file, at.line, o.name,
                     offset);
            if constexpr (CHECKED)
                pieces.pieces.push_back({piece, static_cast<int>(first_line + line), static_cast<int>(first_piece + c)});
            for (unsigned e = 0; e < per_piece && c * per_piece + e < along; ++e) {
                const unsigned i = c * per_piece + e;
                out[o.mn_major ? line * o.rows + i : i * o.rows + line] = read_element(o.element, piece + e * bytes);
            }
        }
    if constexpr (CHECKED) check_operand_pieces(pieces, return_address);
}

// ---- one wgmma

struct WarpgroupOperation : MatrixOperation {
    const WarpgroupProduct* product;
    void* const* d;
    const uint32_t* a;
    uint64_t a_matrix, b_matrix;
    bool accumulate;
    const void* return_address;
};

// Reads A from registers: out [k][the warp's 16 rows].
static void read_registers(void** lanes, const WarpgroupProduct& p, unsigned k, float* out) {
    const unsigned bytes = bytes_of(p.a), per_register = 4 / bytes, columns = k / 2;
    for (unsigned lane = 0; lane < 32; ++lane) {
        const auto& from = *static_cast<const WarpgroupOperation*>(lanes[lane]);
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned row = lane / 4 + i % 2 * 8, first = i / 2 * columns + lane % 4 * per_register;
            for (unsigned e = 0; e < per_register; ++e)
                out[(first + e) * 16 + row] = read_element(p.a, reinterpret_cast<const char*>(&from.a[i]) + e * bytes);
        }
    }
}

static void multiply_warpgroup(void** lanes, unsigned mask) {
    Quiet quiet;
    require_whole_warp(lanes, mask);
    const auto& first = *static_cast<const WarpgroupOperation*>(lanes[0]);
    const WarpgroupProduct& p = *first.product;
    Worker& worker = current_worker();
    const unsigned warp = worker.running->warp, k = 32 / bytes_of(p.a), n = p.n;
    for (unsigned lane = 1; lane < 32; ++lane) {
        const auto& other = *static_cast<const WarpgroupOperation*>(lanes[lane]);
        if (other.b_matrix != first.b_matrix || other.a_matrix != first.a_matrix || other.accumulate != first.accumulate)
            fail("wgmma at %s:%d: lanes 0 and %u of the warp name different matrices; all lanes must name the same", first.at.file,
                 first.at.line, lane);
    }
    if constexpr (CHECKED) check_tensor_work(2 * 16 * n * k);
    float a[32 * 16];
    static thread_local float b[32 * 256];
    const Operand right = {Descriptor(first.b_matrix), p.b, p.b_mn_major, n, 0, k, "B"};
    read_operand(worker, right, b, first.at, first.return_address);
    if (p.a_in_registers)
        read_registers(lanes, p, k, a);
    else {
        const Operand left = {Descriptor(first.a_matrix), p.a, p.a_mn_major, 16, warp % 4 * 16, k, "A"};
        read_operand(worker, left, a, first.at, first.return_address);
    }
    const float sign = p.negate_a != p.negate_b ? -1.0f : 1.0f;
    static thread_local float sums[16 * 256];
    std::fill(sums, sums + 16 * n, 0.0f);
    for (unsigned row = 0; row < 16; ++row)
        for (unsigned i = 0; i < k; ++i) {
            const float left = sign * a[i * 16 + row];
            const float* right_row = b + i * n;
            float* sum = sums + row * n;
            for (unsigned column = 0; column < n; ++column) sum[column] += left * right_row[column];
        }
    for (unsigned lane = 0; lane < 32; ++lane) {
        const auto& of = *static_cast<const WarpgroupOperation*>(lanes[lane]);
        for (unsigned i = 0; i < n / 2; ++i) {
            const unsigned row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const float sum = sums[row * n + column];
            if (!p.half_sums) {
                float* d = static_cast<float*>(of.d[i]);
                *d = (of.accumulate ? *d : 0.0f) + sum;
            } else {
                auto* d = static_cast<Float16<Fp16Format>*>(of.d[i / 2]) + i % 2;
                *d = Float16<Fp16Format>((of.accumulate ? static_cast<float>(*d) : 0.0f) + sum);
            }
        }
    }
}

static void require_warpgroup(const char* what, Position at) {
    const Worker& worker = current_worker();
    const unsigned first = worker.running->warp / 4 * 4;
    if (first * 32 + 128 > worker.thread_count)
        fail("%s at %s:%d: warp %u has no whole warpgroup: four warps from a multiple of 4 on", what, at.file, at.line,
             worker.running->warp);
}

// Converges all lanes of a warp at a warpgroup operation.
static void together(const char* what, Position at) {
    require_warpgroup(what, at);
    MatrixOperation mine{what, at};
    const WhileOthersRun others;
    collective(~0u, &mine, require_whole_warp, what, at);
}

void warpgroup_multiply(const WarpgroupProduct& product, void* const* d, const uint32_t* a, uint64_t a_matrix, uint64_t b_matrix,
                        bool accumulate, Position at) {
    Quiet quiet;
    require_warpgroup("wgmma", at);
    Worker& worker = current_worker();
    Hopper& hopper = my_hopper();
    if (!my_async_thread().fenced)
        fail("wgmma at %s:%d: no wgmma.fence comes before it; registers and shared memory may not be ready", at.file, at.line);
    for (const uint64_t matrix : {b_matrix, product.a_in_registers ? 0 : a_matrix})
        if (matrix >> 49 & 7)
            fail("wgmma at %s:%d: a matrix descriptor with a base offset; the simulator takes tiles that begin at a multiple of the "
                 "swizzle's pattern", at.file, at.line);
    void* places[128];
    const unsigned count = product.n / (product.half_sums ? 4 : 2);
    std::copy(d, d + count, places);
    if constexpr (CHECKED) check_product(places, count, accumulate, __builtin_return_address(0));
    WarpgroupOperation mine{{"wgmma", at}, &product, places, a, a_matrix, b_matrix, accumulate, __builtin_return_address(0)};
    const WhileOthersRun others;
    collective(~0u, &mine, multiply_warpgroup, "wgmma", at);
    if (worker.running->lane == 0) ++hopper.products[worker.running->warp], hopper.last_product[worker.running->warp] = at;
}

void warpgroup_fence(Position at) {
    Quiet quiet;
    if constexpr (CHECKED) check_product_fence();
    together("wgmma.fence", at);
    my_async_thread().fenced = true;
}
void warpgroup_commit(Position at) {
    Quiet quiet;
    together("wgmma.commit_group", at);
    ++my_async_thread().product_groups;
}
void warpgroup_wait(uint32_t left, Position at) {
    Quiet quiet;
    together("wgmma.wait_group", at);
    if constexpr (CHECKED) check_product_wait(left);
}

void check_warpgroups(const Worker& worker) {
    const Hopper& hopper = *worker.hopper;
    for (unsigned warp = 0; warp < worker.warp_count; ++warp) {
        const unsigned first = warp / 4 * 4;
        if (hopper.products[warp] == hopper.products[first]) continue;
        const Position at = hopper.last_product[hopper.products[warp] > hopper.products[first] ? warp : first];
        fail("wgmma at %s:%d: warp %u of a warpgroup came to %u products, warp %u to %u; all four must come to each", at.file, at.line,
             first, hopper.products[first], warp, hopper.products[warp]);
    }
}

void set_registers(bool more, uint32_t count, Position at) {
    const char* what = more ? "setmaxnreg.inc" : "setmaxnreg.dec";
    if (count < 24 || count > 256 || count % 8)
        fail("%s at %s:%d: %u registers; a multiple of 8 from 24 to 256 is allowed", what, at.file, at.line, count);
    together(what, at);
}

}  // namespace simulator
