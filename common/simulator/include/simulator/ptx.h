// ptx.h - the runtime side of inline PTX: common/simulator/ptx.py turns each instruction into one of these calls.
//
// A register is 64 bits, interpreted by each instruction's type. Addresses of shared memory are offsets, as on a GPU;
// all others are pointers.
#pragma once
#include "async_copy.h"
#include "atomics.h"
#include "float16.h"
#include "hopper.h"
#include "matrix.h"

#define SIMULATOR_PTX __attribute__((always_inline)) inline

namespace simulator::ptx {

using Register = uint64_t;
using f16 = Float16<Fp16Format>;
using bf16 = Float16<Bf16Format>;

template <typename T>
SIMULATOR_PTX Register bits(const T& value) {
    Register result = 0;
    __builtin_memcpy(&result, &value, sizeof value);
    return result;
}
template <typename T>
SIMULATOR_PTX T as(Register bits) {
    T value;
    __builtin_memcpy(static_cast<void*>(&value), &bits, sizeof value);
    return value;
}
template <typename T>
SIMULATOR_PTX void assign(T& variable, Register bits) {
    variable = as<T>(bits);
}

// ---- addresses
SIMULATOR_PTX void* shared(Register address) {
    return address < SHARED_LIMIT ? shared_address(address) : reinterpret_cast<void*>(address);
}
SIMULATOR_PTX void* global(Register address) { return reinterpret_cast<void*>(address); }
SIMULATOR_PTX Register to_shared(Register address) { return shared_offset(reinterpret_cast<const void*>(address)); }

template <typename T>
SIMULATOR_PTX Register load(const void* address) {
    asm volatile("" ::: "memory");  // forces a reload in a spin loop
    return bits(*static_cast<const T*>(address));
}
template <typename T>
SIMULATOR_PTX void store(void* address, Register value) {
    *static_cast<T*>(address) = as<T>(value);
}
// ld.relaxed and st.relaxed: atomic. ld.acquire and st.release: with a fence, too.
template <typename T, bool FENCE>
SIMULATOR_PTX Register load_ordered(void* address) {
    const T value = read_modify_write(static_cast<T*>(address), [](T old) { return old; });
    if (FENCE) __threadfence();
    return bits(value);
}
template <typename T, bool FENCE>
SIMULATOR_PTX void store_ordered(void* address, Register value) {
    if (FENCE) __threadfence();
    read_modify_write(static_cast<T*>(address), [value](T) { return as<T>(value); });
}
// A vector load is one access, like the instruction.
template <typename T, typename... Registers>
SIMULATOR_PTX void load_several(const void* address, Registers&... registers) {
    typedef T Vector __attribute__((vector_size(sizeof(T) * sizeof...(Registers))));
    asm volatile("" ::: "memory");
    const Vector all = *static_cast<const Vector*>(address);
    int i = 0;
    ((registers = bits(static_cast<T>(all[i++]))), ...);
}
template <typename T, typename... Registers>
SIMULATOR_PTX void store_several(void* address, Registers... registers) {
    typedef T Vector __attribute__((vector_size(sizeof(T) * sizeof...(Registers))));
    Vector all;
    int i = 0;
    ((all[i++] = as<T>(registers)), ...);
    *static_cast<Vector*>(address) = all;
}

// ---- arithmetic without a C++ operator
template <typename T>
SIMULATOR_PTX T high_product(T a, T b) {
    __extension__ using Wide = __int128;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b) >> sizeof(T) * 8);
}
// `in` and `out` are the carry flag, 0 or 1: the borrow for subtraction.
template <typename T, bool MINUS>
SIMULATOR_PTX T with_carry(T a, T b, Register in, Register& out, bool sets) {
    const auto combine = [](T x, T y, T* result) { return MINUS ? __builtin_sub_overflow(x, y, result) : __builtin_add_overflow(x, y, result); };
    T result;
    const bool carries = combine(a, b, &result) | combine(result, static_cast<T>(in), &result);
    if (sets) out = carries;
    return result;
}
template <typename T>
SIMULATOR_PTX T minimum(T a, T b) {
    return a != a ? b : b < a ? b : a;
}
template <typename T>
SIMULATOR_PTX T maximum(T a, T b) {
    return a != a ? b : a < b ? b : a;
}
// prmt: selects bytes of {b, a}; bit 3 of a selector replicates the byte's sign bit, which __byte_perm() does not
// support.
SIMULATOR_PTX uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
    const uint32_t bytes = __byte_perm(a, b, selector);
    uint32_t signs = 0;
    for (int i = 0; i < 4; ++i)
        if (selector >> (4 * i + 3) & 1) signs |= 0xffu << 8 * i;
    const uint32_t repeated = (bytes >> 7 & 0x01010101u) * 0xff;
    return (bytes & ~signs) | (repeated & signs);
}
SIMULATOR_PTX uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, unsigned table) {
    uint32_t result = 0;
    for (unsigned i = 0; i < 8; ++i)
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
}
template <typename T>
SIMULATOR_PTX T shifted_left(T a, uint32_t by) {
    return by >= sizeof(T) * 8 ? T(0) : static_cast<T>(a << by);
}
template <typename T>
SIMULATOR_PTX T shifted_right(T a, uint32_t by) {
    if (by >= sizeof(T) * 8) return a < T(0) ? static_cast<T>(-1) : T(0);
    return static_cast<T>(a >> by);
}
template <typename T>
SIMULATOR_PTX T extracted(T a, uint32_t position, uint32_t length) {
    position &= 0xff, length &= 0xff;
    if (length == 0) return 0;
    const unsigned width = sizeof(T) * 8;
    if (position >= width) return a < T(0) ? static_cast<T>(-1) : T(0);
    if (length >= width) return static_cast<T>(a >> position);
    return static_cast<T>(static_cast<T>(a << (width - length - position > width ? 0 : width - length - position)) >> (width - length));
}
template <typename T>
SIMULATOR_PTX T inserted(T a, T into, uint32_t position, uint32_t length) {
    const unsigned width = sizeof(T) * 8;
    if (length == 0 || position >= width) return into;
    const T mask = static_cast<T>((length >= width ? ~T(0) : static_cast<T>((T(1) << length) - 1)) << position);
    return static_cast<T>((into & ~mask) | (static_cast<T>(a << position) & mask));
}
SIMULATOR_PTX uint32_t to_tf32(float value) { return (__builtin_bit_cast(uint32_t, value) + 0x1000) & 0xffffe000u; }
template <typename To>
SIMULATOR_PTX Register pair(float high, float low) {
    return bits(To(low)) | bits(To(high)) << 16;
}

// ---- warps
template <typename T>
SIMULATOR_PTX Register shuffle(char mode, T value, uint32_t by, uint32_t control, uint32_t mask, Register& inside, Position at) {
    const int lane = static_cast<int>(current_thread()->lane), clamp = control & 31, segment = control >> 8 & 31;
    const int lowest = lane & segment, highest = lowest | (clamp & ~segment);
    int from = lane;
    bool good = false;
    if (mode == 'u') from = lane - static_cast<int>(by), good = from >= highest;
    if (mode == 'd') from = lane + static_cast<int>(by), good = from <= highest;
    if (mode == 'b') from = lane ^ static_cast<int>(by), good = from <= highest;
    if (mode == 'i') from = lowest | (static_cast<int>(by) & ~segment & 31), good = from <= highest;
    inside = good;
    return bits(exchange(mask, value, good ? from : lane, "shfl.sync", at));
}

SIMULATOR_PTX void load_matrices(int count, bool transposed, const void* row, Register* registers, Position at) {
    // Lanes whose address the instruction ignores read lane 0's.
    const unsigned lane = current_thread()->lane;
    const void* mine = row;
    if (static_cast<int>(lane) >= 8 * count)
        mine = reinterpret_cast<const void*>(exchange(~0u, bits(row), 0, "ldmatrix", at));
    else
        exchange(~0u, bits(row), 0, "ldmatrix", at);
    unsigned r[4];
    if (transposed)
        simulator::load_matrices<true>("ldmatrix", at, mine, r[0], r[1], r[2], r[3]);
    else
        simulator::load_matrices<false>("ldmatrix", at, mine, r[0], r[1], r[2], r[3]);
    for (int i = 0; i < count; ++i) registers[i] = r[i];
}

// d = a b + c for K = 16, or for K = 8 padded with zeros.
template <typename Element, int K>
SIMULATOR_PTX void multiply_add(Register* d, const Register* a, const Register* b, const Register* c, Position at) {
    float sums[4];
    unsigned left[4] = {}, right[2] = {};
    for (int i = 0; i < 4; ++i) sums[i] = as<float>(c[i]);
    for (int i = 0; i < K / 4; ++i) left[i] = static_cast<unsigned>(a[i]);
    for (int i = 0; i < K / 8; ++i) right[i] = static_cast<unsigned>(b[i]);
    mma_m16n8k16<Element>(sums, left, right, at);
    for (int i = 0; i < 4; ++i) d[i] = bits(sums[i]);
}

SIMULATOR_PTX void copy_async(void* to, const void* from, unsigned bytes, unsigned inside, Position at) {
    if (inside && inside != bytes)
        fail("%s:%d: cp.async with a source size of %u: the simulator copies all %u bytes or fills them with zeros", at.file,
             at.line, inside, bytes);
    issue_async_copy(to, from, bytes, inside != 0, at);
}

SIMULATOR_PTX Register lane_mask(char which) {
    const unsigned lane = current_thread()->lane, mine = 1u << lane;
    switch (which) {
        case '=': return mine;
        case '<': return mine - 1;
        case 'l': return mine | (mine - 1);
        case '>': return ~(mine | (mine - 1));
        default: return ~(mine - 1);
    }
}
SIMULATOR_PTX unsigned threads_in_block() { return blockDim.x * blockDim.y * blockDim.z; }

}  // namespace simulator::ptx
