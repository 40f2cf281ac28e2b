// undefined.cpp - handlers for undefined behavior: the checks of -fsanitize=bounds,alignment call these if they fail.
// The sanitizer's own library is not linked.
//
// Each call passes data, in UBSan's layout (gcc and clang), that give the source position and the types.
#include "worker.h"

namespace simulator {

struct UndefinedPlace {
    const char* file;
    uint32_t line, column;
};
struct UndefinedType {
    uint16_t kind, info;
    char name[1];  // quoted and null-terminated
};
struct OutOfBounds {
    UndefinedPlace at;
    const UndefinedType *array, *index;
};
struct Mismatch {
    UndefinedPlace at;
    const UndefinedType* type;
    unsigned char log2_alignment, check;
};
struct Overflow {
    UndefinedPlace at;
    const UndefinedType* type;
};

// Indices of up to 64 bits are passed by value.
static long long index_value(const UndefinedType& type, uintptr_t value) {
    const bool is_signed = type.info & 1;
    const unsigned bits = 1u << (type.info >> 1);
    if (bits >= 64 || !is_signed) return static_cast<long long>(value);
    const unsigned unused = 64 - bits;
    return static_cast<long long>(static_cast<uint64_t>(value) << unused) >> unused;
}

// The quoted type, without the "struct" that gcc puts before class names.
static std::string quoted_name(const UndefinedType& type) {
    std::string name = type.name;
    for (const char* word : {"'struct ", "'class ", "'union "})
        if (name.compare(0, strlen(word), word) == 0) name.erase(1, strlen(word) - 1);
    return name;
}

}  // namespace simulator

#define SIMULATOR_UNDEFINED extern "C" [[noreturn]] __attribute__((visibility("hidden"), used)) void
SIMULATOR_UNDEFINED __ubsan_handle_out_of_bounds_abort(simulator::OutOfBounds* data, uintptr_t index) {
    simulator::fail("%s:%u: index %lld is outside its array, of type %s", data->at.file, data->at.line,
                    simulator::index_value(*data->index, index), simulator::quoted_name(*data->array).c_str());
}
SIMULATOR_UNDEFINED __ubsan_handle_type_mismatch_v1_abort(simulator::Mismatch* data, uintptr_t address) {
    if (!address)
        simulator::fail("%s:%u: illegal memory access through a null pointer of type %s", data->at.file, data->at.line,
                        simulator::quoted_name(*data->type).c_str());
    const unsigned long alignment = 1ul << data->log2_alignment;
    simulator::fail("%s:%u: misaligned access: %s needs an address that is a multiple of %lu, this one is %lu past it",
                    data->at.file, data->at.line, simulator::quoted_name(*data->type).c_str(), alignment, static_cast<unsigned long>(address) % alignment);
}
SIMULATOR_UNDEFINED __ubsan_handle_divrem_overflow_abort(simulator::Overflow* data, uintptr_t, uintptr_t) {
    simulator::fail("%s:%u: division by zero, or of the lowest %s by -1", data->at.file, data->at.line,
                    simulator::quoted_name(*data->type).c_str());
}
