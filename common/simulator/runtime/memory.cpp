// memory.cpp - the allocations of cudaMalloc() and similar functions, and bounds-checked copies.
//
// Device memory is one region of the address space. In a standalone program (program.cpp) the region is inaccessible
// while host code runs, so host code that dereferences a device pointer fails at once, as with a GPU. Memory that both
// sides may use (managed, pinned) comes from the C library.
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <mutex>

#include "apart.h"
#include "checker.h"
#include "worker.h"

namespace simulator {

constexpr size_t DEVICE_BYTES = size_t(16) << 30;     // as reported by cudaMemGetInfo()
constexpr size_t ALIGNMENT = 256, PAGE = 4096;
constexpr size_t WORTH_GIVING_BACK = 1 << 20;
constexpr size_t GAP = CHECKED ? 4096 : 0;  // so that an overrun does not land in the next allocation

struct Allocation {
    size_t bytes;
    MemoryKind kind;
    Position at;
    bool registered = false;  // by cudaHostRegister(): not the simulator's to free
};

struct Memory {
    std::recursive_mutex lock;
    std::map<uintptr_t, Allocation> allocations;
    std::map<uintptr_t, size_t> pieces;  // free pieces of the region
    uintptr_t region = 0, top = 0;       // start of the region; nothing above `top` has been allocated yet
    size_t device_bytes = 0;             // allocated
    unsigned open = 0;                   // number of launches and copies in progress
    bool closes = false;                 // the region is inaccessible while there are none
};
static Memory& memory() { return lasting<Memory>(); }
using Lock = std::lock_guard<std::recursive_mutex>;

static void protect(Memory& m, int how) {
    const size_t bytes = (m.top - m.region + PAGE - 1) & ~(PAGE - 1);
    if (bytes && m.closes) mprotect(reinterpret_cast<void*>(m.region), bytes, how);
}

OpenMemory::OpenMemory() {
    Memory& m = memory();
    Lock lock(m.lock);
    if (m.open++ == 0) protect(m, PROT_READ | PROT_WRITE);
}
OpenMemory::~OpenMemory() {
    Memory& m = memory();
    Lock lock(m.lock);
    if (--m.open == 0) protect(m, PROT_NONE);
}

void close_memory_to_host() {
    Memory& m = memory();
    Lock lock(m.lock);
    m.closes = true;
    if (m.open == 0) protect(m, PROT_NONE);
}

// ---- the region

void prepare_region() {
    Memory& m = memory();
    if (m.region) return;
    void* map = mmap(nullptr, REGION_OF_DEVICE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (map != MAP_FAILED) m.region = m.top = reinterpret_cast<uintptr_t>(map);
}

static uintptr_t take_piece(Memory& m, size_t bytes) {
    prepare_region();
    if (!m.region) return 0;
    for (auto piece = m.pieces.begin(); piece != m.pieces.end(); ++piece) {
        if (piece->second < bytes) continue;
        const auto [start, size] = *piece;
        m.pieces.erase(piece);
        if (size > bytes) m.pieces[start + bytes] = size - bytes;
        return start;
    }
    if (m.top + bytes > m.region + REGION_OF_DEVICE) return 0;
    m.top += bytes;
    return m.top - bytes;
}

uintptr_t take_device_memory(size_t bytes) {
    Memory& m = memory();
    Lock lock(m.lock);
    const uintptr_t start = take_piece(m, bytes);
    if (start && m.closes) protect(m, PROT_READ | PROT_WRITE);  // the region has grown; a kernel is running
    return start;
}

static void give_back_piece(Memory& m, uintptr_t start, size_t bytes) {
    const uintptr_t first = (start + PAGE - 1) & ~(PAGE - 1), last = (start + bytes) & ~(PAGE - 1);
    if (bytes >= WORTH_GIVING_BACK) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    const auto piece = m.pieces.emplace(start, bytes).first, next = std::next(piece);
    if (next != m.pieces.end() && start + bytes == next->first) {
        piece->second += next->second;
        m.pieces.erase(next);
    }
    if (piece == m.pieces.begin()) return;
    const auto before = std::prev(piece);
    if (before->first + before->second != start) return;
    before->second += piece->second;
    m.pieces.erase(piece);
}

static size_t rounded(size_t bytes) { return (bytes + GAP + ALIGNMENT - 1) & ~(ALIGNMENT - 1); }

// ---- allocating and freeing

cudaError_t allocate(void** address, size_t bytes, MemoryKind kind, Position at) {
    *address = nullptr;
    if (!bytes) return cudaSuccess;
    if (is_host_alone() && kind == MemoryKind::device) return send_allocate(address, bytes);
    if (is_host_alone() && kind == MemoryKind::managed) return finished(cudaErrorNotSupported);
    Memory& m = memory();
    Lock lock(m.lock);
    const OpenMemory open;
    const bool on_device = kind == MemoryKind::device;
    if (on_device && m.device_bytes + bytes > DEVICE_BYTES) return finished(cudaErrorMemoryAllocation);
    if (on_device)
        *address = reinterpret_cast<void*>(take_piece(m, rounded(bytes)));
    else if (posix_memalign(address, ALIGNMENT, bytes) != 0)
        *address = nullptr;
    if (!*address) return finished(cudaErrorMemoryAllocation);
    if (on_device) m.device_bytes += bytes, mark_allocated(reinterpret_cast<uintptr_t>(*address), bytes, true);
    if (on_device && m.closes) protect(m, PROT_READ | PROT_WRITE);  // the region may have grown
    m.allocations[reinterpret_cast<uintptr_t>(*address)] = {bytes, kind, at};
    memset(*address, 0xff, bytes);  // NaN, so that reading fresh memory shows
    if constexpr (CHECKED)
        check_allocated(*address, bytes, !on_device, at);  // the host may write managed and pinned memory unseen
    return cudaSuccess;
}

void give_back(void* address) {
    Memory& m = memory();
    Lock lock(m.lock);
    const auto one = m.allocations.find(reinterpret_cast<uintptr_t>(address));
    if (one == m.allocations.end() || one->second.registered) return;
    if (one->second.kind == MemoryKind::device) {
        m.device_bytes -= one->second.bytes;
        mark_allocated(one->first, one->second.bytes, false);
        give_back_piece(m, one->first, rounded(one->second.bytes));
    } else {
        free(address);
    }
    m.allocations.erase(one);
}

cudaError_t release(void* address, Position at) {
    if (!address) return cudaSuccess;
    if (is_host_alone() && is_device_address(address)) return send_release(address);
    if constexpr (CHECKED) return check_freed(address, at) ? cudaSuccess : finished(cudaErrorInvalidValue);
    Memory& m = memory();
    Lock lock(m.lock);
    if (!m.allocations.count(reinterpret_cast<uintptr_t>(address))) return finished(cudaErrorInvalidValue);
    give_back(address);
    return cudaSuccess;
}

cudaError_t register_host(void* address, size_t bytes) {
    Memory& m = memory();
    Lock lock(m.lock);
    if (!address || !bytes) return finished(cudaErrorInvalidValue);
    const bool is_new = m.allocations.try_emplace(reinterpret_cast<uintptr_t>(address), Allocation{bytes, MemoryKind::host, {"cudaHostRegister", 0}, true}).second;
    if constexpr (CHECKED)
        if (is_new) check_allocated(address, bytes, true, {"cudaHostRegister", 0});
    return is_new ? cudaSuccess : finished(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t unregister_host(void* address) {
    Memory& m = memory();
    Lock lock(m.lock);
    const auto one = m.allocations.find(reinterpret_cast<uintptr_t>(address));
    if (one == m.allocations.end() || !one->second.registered) return finished(cudaErrorHostMemoryNotRegistered);
    m.allocations.erase(one);
    if constexpr (CHECKED) check_freed(address, {"cudaHostUnregister", 0});
    return cudaSuccess;
}

cudaError_t memory_info(size_t* available, size_t* total) {
    Memory& m = memory();
    Lock lock(m.lock);
    *total = DEVICE_BYTES;
    *available = DEVICE_BYTES - m.device_bytes;
    return cudaSuccess;
}

// ---- looking up an address

// The allocation that contains the address; one past its end counts, too. Null: none.
static const std::pair<const uintptr_t, Allocation>* allocation_at(Memory& m, const void* address) {
    const uintptr_t p = reinterpret_cast<uintptr_t>(address);
    auto next = m.allocations.upper_bound(p);
    if (next == m.allocations.begin()) return nullptr;
    const auto& one = *std::prev(next);
    return p <= one.first + one.second.bytes ? &one : nullptr;
}

MemoryKind kind_of(const void* address) {
    Memory& m = memory();
    Lock lock(m.lock);
    const auto* one = allocation_at(m, address);
    if (one) return one->second.kind;
    return is_in_region(address) ? MemoryKind::device : MemoryKind::unknown;
}

// ---- for separate host and device processes, see apart.cpp

uintptr_t region_start() { return memory().region; }
bool is_in_region(const void* address) {
    const Memory& m = memory();
    const uintptr_t p = reinterpret_cast<uintptr_t>(address);
    return m.region && p >= m.region && p < m.region + REGION_OF_DEVICE;
}
bool is_allocated(const void* address, size_t bytes) {
    Memory& m = memory();
    Lock lock(m.lock);
    const auto* one = allocation_at(m, address);
    if (!one || one->second.kind != MemoryKind::device) return false;
    const size_t offset = reinterpret_cast<uintptr_t>(address) - one->first;
    return offset <= one->second.bytes && bytes <= one->second.bytes - offset;
}
// Unmaps all device memory, so that no mprotect() brings it back.
void close_for_host(void* tensors, size_t bytes) {
    for (const auto& [start, size] : {std::pair{tensors, bytes}, {reinterpret_cast<void*>(memory().region), REGION_OF_DEVICE}})
        mmap(start, size, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

// Takes no lock: called in the failing thread's signal handler.
bool describe_device_address(const void* address, char* text, size_t size) {
    if (!is_in_region(address)) return false;
    const uintptr_t p = reinterpret_cast<uintptr_t>(address);
    const auto* one = allocation_at(memory(), address);
    if (heap_block_at(p))
        snprintf(text, size, "which a kernel's malloc() or new has given out");
    else if (!one)
        snprintf(text, size, "an address in device memory that is not allocated");
    else
        snprintf(text, size, "byte %zu of the %zu bytes of cudaMalloc at %s:%d", static_cast<size_t>(p - one->first),
                 one->second.bytes, one->second.at.file, one->second.at.line);
    return true;
}

// ---- copies

static bool fits(Memory& m, const void* address, size_t bytes, const char* what, Position at) {
    if (heap_block_at(reinterpret_cast<uintptr_t>(address))) {
        char text[256];
        snprintf(text, sizeof text,
                 "%s:%d: %zu bytes %s memory of a kernel's malloc() or new, which the runtime API cannot reach: let a kernel copy "
                 "them to memory of cudaMalloc",
                 at.file, at.line, bytes, what);
        return hint(text), false;
    }
    const auto* one = allocation_at(m, address);
    if (!one) return true;
    const size_t offset = reinterpret_cast<uintptr_t>(address) - one->first;
    if (offset + bytes <= one->second.bytes) return true;
    char text[512];
    snprintf(text, sizeof text, "%s:%d: %zu bytes %s byte %zu of the %zu bytes that were allocated at %s:%d", at.file,
             at.line, bytes, what, offset, one->second.bytes, one->second.at.file, one->second.at.line);
    hint(text);
    return false;
}

// Whether the memory is on the side that the copy's kind names. Always true in libraries, where not all device memory
// is known.
static bool is_on(const void* address, bool device) {
    if (!is_program()) return true;
    const MemoryKind kind = kind_of(address);
    if (kind == MemoryKind::managed || kind == MemoryKind::host) return true;
    return (kind == MemoryKind::device || is_own_variable(address)) == device ||
           (!device && kind == MemoryKind::unknown);
}

cudaError_t may_touch(const void* address, size_t bytes, const char* what, Position at) {
    Memory& m = memory();
    Lock lock(m.lock);
    if (bytes && !address) return finished(cudaErrorInvalidValue);
    return fits(m, address, bytes, what, at) ? cudaSuccess : finished(cudaErrorInvalidValue);
}

cudaError_t may_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Position at) {
    if (may_touch(to, bytes, "go to", at) != cudaSuccess || may_touch(from, bytes, "come from", at) != cudaSuccess)
        return cudaErrorInvalidValue;
    if (kind == cudaMemcpyDefault || !bytes) return cudaSuccess;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return finished(cudaErrorInvalidMemcpyDirection);
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    const bool to_is_right = is_on(to, to_device), from_is_right = is_on(from, from_device);
    if (to_is_right && from_is_right) return cudaSuccess;
    char text[256];
    snprintf(text, sizeof text, "%s:%d: the copy goes %s %s memory, says its kind, but the address is that of %s memory", at.file,
             at.line, to_is_right ? "from" : "to", (to_is_right ? from_device : to_device) ? "device" : "host",
             (to_is_right ? from_device : to_device) ? "host" : "device");
    hint(text);
    return finished(cudaErrorInvalidValue);
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Position at) {
    const cudaError_t error = may_copy(to, from, bytes, kind, at);
    return error ? error : copy_symbol(to, from, bytes);
}

// Copies to or from a device variable.
cudaError_t copy_symbol(void* to, const void* from, size_t bytes) {
    if (is_host_alone()) return send_copy(to, from, bytes);
    const OpenMemory open;
    if (bytes) memmove(to, from, bytes);
    written_by_host(to, bytes);
    return cudaSuccess;
}

cudaError_t fill(void* address, int value, size_t bytes, Position at) {
    if (const cudaError_t error = may_touch(address, bytes, "are set from", at)) return error;
    if (is_host_alone() && is_device_address(address)) return send_fill(address, value, bytes);
    const OpenMemory open;
    if (bytes) memset(address, value, bytes);
    written_by_host(address, bytes);
    return cudaSuccess;
}

#ifndef SIMULATOR_CHECKED
void check_tensor_begin(const char*, const void*, unsigned, const int64_t*, int, bool) {}
void check_tensors_end() {}
#endif

}  // namespace simulator
