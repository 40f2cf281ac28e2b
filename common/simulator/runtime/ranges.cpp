// ranges.cpp - the memory that a kernel may access: the operator call's tensors, cudaMalloc'd ranges, shared variables,
// and this library's __device__ and __constant__ variables.
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>

#include "checker.h"

namespace simulator {

constexpr size_t SECTOR_BYTES = 32;

// A deque, since cells and findings keep pointers to ranges while others are added and removed at the end.
static std::deque<Range>& ranges() { return lasting<std::deque<Range>>(); }

static void* new_shadow(size_t bytes) {
    void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) throw std::runtime_error("simulator: no address space to watch the tensors");
    return map;
}
static size_t cell_bytes(const Range& range) { return (range.bytes / WORD + 2) * sizeof(Cell); }
static size_t sector_count(const Range& range) { return range.bytes / SECTOR_BYTES + 2; }

static void add_shadow(Range& range) {
    range.cells = static_cast<Cell*>(new_shadow(cell_bytes(range)));
    range.halves = static_cast<Cell*>(new_shadow(2 * cell_bytes(range)));
    range.sectors = static_cast<uint8_t*>(new_shadow(sector_count(range)));
}
static Range& add(Range range) {
    add_shadow(range);
    ranges().push_back(std::move(range));
    return ranges().back();
}
template <typename Predicate>
static void drop(Predicate&& unwanted) {
    std::deque<Range> kept;
    for (Range& range : ranges()) {
        if (!unwanted(range)) {
            kept.push_back(std::move(range));
            continue;
        }
        munmap(range.cells, cell_bytes(range));
        munmap(range.halves, 2 * cell_bytes(range));
        munmap(range.sectors, sector_count(range));
    }
    ranges() = std::move(kept);
}

// ---- lookup

static bool precedes(const Range& range, uintptr_t address) { return address < range.start; }

Range* find_range(uintptr_t address, size_t bytes) {
    static size_t last = 0;  // successive accesses often hit the same range
    std::deque<Range>& all = ranges();
    if (last < all.size() && all[last].contains(address, bytes) && !all[last].freed) return &all[last];
    Range* freed = nullptr;
    for (size_t i = 0; i < all.size(); ++i) {
        if (!all[i].contains(address, bytes)) continue;
        if (!all[i].freed) return last = i, &all[i];
        freed = &all[i];
    }
    return freed;
}

Range* nearest_range(uintptr_t address) {
    if (arena_range().contains(address, 1)) return &arena_range();
    Range* nearest = nullptr;
    uintptr_t least = UINTPTR_MAX;
    for (Range& range : ranges()) {
        if (range.kind == Range::library || range.kind == Range::shared || range.freed) continue;
        const uintptr_t distance = precedes(range, address) ? range.start - address : address - range.start;
        const uintptr_t past = precedes(range, address) || distance < range.bytes ? distance : distance - range.bytes;
        if (past < least) least = past, nearest = &range;
    }
    return nearest;
}

std::vector<Range*> all_ranges() {
    std::vector<Range*> result;
    for (Range& range : ranges()) result.push_back(&range);
    return result;
}

// ---- tensors

// Makes `range` cover the memory of both. Unless they are identical, it becomes one-dimensional.
static void merge(Range& range, const Range& other) {
    const bool same = other.start == range.start && other.bytes == range.bytes;
    const uintptr_t end = std::max(range.start + range.bytes, other.start + other.bytes);
    range.start = std::min(range.start, other.start);
    range.bytes = end - range.start;
    range.element_bytes = std::min(range.element_bytes, other.element_bytes);
    if (other.name != range.name) range.name = other.name + "/" + range.name;
    if (!same) range.shape = {static_cast<int64_t>(range.bytes / range.element_bytes)};
    range.initialized = range.initialized && other.initialized;
}

void check_tensor_begin(const char* name, const void* address, unsigned element_bytes, const int64_t* shape, int rank,
                        bool initialized) {
    Range range = {.start = reinterpret_cast<uintptr_t>(address), .bytes = element_bytes, .name = name,
                   .element_bytes = element_bytes, .shape = {shape, shape + rank}, .initialized = initialized};
    for (const int64_t size : range.shape) range.bytes *= static_cast<size_t>(size);
    // Tensors that share memory (views of one packed tensor, the same tensor passed twice) become one range.
    const auto shares_memory = [&](const Range& other) {
        return other.kind == Range::tensor && other.start < range.start + range.bytes &&
               range.start < other.start + other.bytes;
    };
    for (const Range& other : ranges())
        if (shares_memory(other)) merge(range, other);
    drop(shares_memory);
    add(std::move(range));
}

void check_tensors_end() {
    drop([](const Range& range) { return range.kind == Range::tensor; });
}

// ---- cudaMalloc() and cudaFree()

std::string text_of(Position at) { return std::string(at.file) + ":" + std::to_string(at.line); }

void check_allocated(const void* address, size_t bytes, bool initialized, Position at) {
    add({.start = reinterpret_cast<uintptr_t>(address), .bytes = bytes,
         .name = "the " + std::to_string(bytes) + " bytes of cudaMalloc at " + text_of(at), .kind = Range::allocated,
         .initialized = initialized, .host_may_use = initialized, .allocated_at = text_of(at)});
}

bool check_freed(const void* address, Position at) {
    for (Range& range : ranges()) {
        if (range.kind != Range::allocated || range.start != reinterpret_cast<uintptr_t>(address)) continue;
        if (!range.freed) {
            range.freed = true;
            range.freed_at = text_of(at);
            return true;
        }
        add_host_finding("double_free", range.name, text_of(at), "freed before at " + range.freed_at);
        return false;
    }
    add_host_finding("double_free", "", text_of(at), "this address was never allocated by cudaMalloc");
    return false;
}

void check_written_by_host(const void* address, size_t bytes) {
    if (sample_size) return;  // nothing is checked then, and marking every word of a large array is slow
    const uintptr_t start = reinterpret_cast<uintptr_t>(address);
    Range* range = bytes ? find_range(start, bytes) : nullptr;
    if (!range || range->initialized) return;
    if (start == range->start && bytes == range->bytes) range->initialized = true;
    for (uintptr_t p = start & ~(WORD - 1); p < start + bytes; p += WORD) {
        Cell& cell = range->cell_of(p);
        cell.write.interval = 1;  // before any launch
        if (cell.split) range->halves_of(p)[0].write.interval = range->halves_of(p)[1].write.interval = 1;
    }
}

void forget_freed_ranges() {
    for (Range& range : ranges())
        if (range.freed) give_back(reinterpret_cast<void*>(range.start));
    drop([](const Range& range) { return range.freed; });
}

// ---- the device heap: one range; heap.cpp keeps its blocks

std::string name_of(const HeapBlock& block) {
    return "the " + std::to_string(block.bytes) + " bytes of malloc or new at " + text_of(block.at);
}
void check_heap_opens(uintptr_t start, size_t bytes) {
    add({.start = start, .bytes = bytes, .name = "the device heap", .kind = Range::heap});
}
void check_heap_given(uintptr_t start, size_t bytes) {
    Range* range = find_range(start, bytes);  // resets the access history
    memset(static_cast<void*>(&range->cell_of(start)), 0, bytes / WORD * sizeof(Cell));
    memset(static_cast<void*>(range->halves_of(start)), 0, bytes / WORD * 2 * sizeof(Cell));
}
void check_heap_freed_wrongly(const HeapBlock& before, Position at) {
    if (checker.mode != Mode::check) return;
    if (before.freed)
        add_host_finding("double_free", name_of(before), text_of(at), "freed before at " + text_of(before.freed_at));
    else
        add_host_finding("double_free", "", text_of(at), "malloc and new have not given out this address in a kernel");
}

// ---- this library's variables

static int add_library_range(dl_phdr_info* info, size_t, void*) {
    if (info->dlpi_addr != library_start) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD) continue;
        add({.start = info->dlpi_addr + segment.p_vaddr, .bytes = segment.p_memsz, .name = "a __device__ variable",
             .kind = Range::library, .initialized = true, .host_may_use = true});
    }
    return 1;
}

void start_ranges() {
    static const int once = dl_iterate_phdr(add_library_range, nullptr);
    (void)once;
}

// ---- shared memory

struct Placed {
    Variable variable;
    uintptr_t start;
};
static std::vector<Placed>& placed() { return lasting<std::vector<Placed>>(); }
static Placed dynamic_variable = {};

Range arena;
static Range& opened(Range& range, const Worker& worker) {
    if (range.cells || !worker.arena) return range;
    range.start = reinterpret_cast<uintptr_t>(worker.arena);
    range.bytes = SHARED_ARENA;
    range.kind = Range::shared;
    add_shadow(range);
    return range;
}
Range& arena_range() { return checker.worker ? opened(arena, *checker.worker) : arena; }

struct Known {
    Range arena;
    std::vector<Placed> variables;
    Placed dynamic = {};
};
static std::map<const Worker*, Known>& known_arenas() { return lasting<std::map<const Worker*, Known>>(); }
Range& arena_range_of(Worker& worker) {
    return checker.worker == &worker ? arena_range() : opened(known_arenas()[&worker].arena, worker);
}

void use_shared_memory_of(Worker& worker) {
    auto* const all = &known_arenas();
    static const Worker* present = nullptr;
    if (arena.cells && arena.start == reinterpret_cast<uintptr_t>(worker.arena)) return;
    if (present) (*all)[present] = {arena, placed(), dynamic_variable};
    present = &worker;
    Known& known = (*all)[present];
    arena = known.arena;
    placed() = known.variables;
    dynamic_variable = known.dynamic;
    arena_range();
}

void forget_shared_variables() {
    placed().clear();
    dynamic_variable = {};
}

void check_shared_placed(const Declaration& declaration, const char* address) {
    Quiet quiet;
    for (int i = 0; i < declaration.count; ++i)
        placed().push_back({declaration.variables[i],
                            reinterpret_cast<uintptr_t>(address) + declaration.variables[i].offset});
}

void check_dynamic_shared(const void* start, const char* name, unsigned element_bytes) {
    dynamic_variable.start = reinterpret_cast<uintptr_t>(start);
    dynamic_variable.variable.name = name;
    dynamic_variable.variable.bytes = checker.worker ? checker.worker->dynamic_bytes : 0;
    dynamic_variable.variable.element_bytes = element_bytes;
}

static bool holds(const Placed& one, uintptr_t address, size_t bytes) {
    return address >= one.start && address + bytes <= one.start + one.variable.bytes;
}

bool inside_shared_variable(uintptr_t address, size_t bytes) {
    if (holds(dynamic_variable, address, bytes)) return true;
    for (const Placed& one : placed())
        if (holds(one, address, bytes)) return true;
    return false;
}

// The variable at the address, or else the last one before it.
static const Placed* shared_variable_near(uintptr_t address) {
    const Placed* best = dynamic_variable.variable.bytes ? &dynamic_variable : nullptr;
    if (best && holds(*best, address, 1)) return best;
    for (const Placed& one : placed()) {
        if (holds(one, address, 1)) return &one;
        if (one.start <= address && (!best || best->start > address || one.start > best->start)) best = &one;
    }
    return best ? best : placed().empty() ? nullptr : &placed().front();
}

Place describe_place(Range& range, uintptr_t address) {
    if (const auto* block = range.kind == Range::heap ? heap_block_at(address) : nullptr)
        return {&range, name_of(block->second), 1, {}, static_cast<int64_t>(address - block->first)};
    if (&range != &arena_range())
        return {&range, range.name, range.element_bytes, range.shape,
                static_cast<int64_t>(address) - static_cast<int64_t>(range.start)};
    const Placed* near = shared_variable_near(address);
    if (!near) return {&range, "", 1, {}, static_cast<int64_t>(address - range.start)};
    std::vector<int64_t> shape(near->variable.shape, near->variable.shape + near->variable.rank);
    if (near == &dynamic_variable)
        shape = {static_cast<int64_t>(near->variable.bytes / near->variable.element_bytes)};
    return {&range, near->variable.name, near->variable.element_bytes, shape,
            static_cast<int64_t>(address) - static_cast<int64_t>(near->start), near == &dynamic_variable};
}

}  // namespace simulator
