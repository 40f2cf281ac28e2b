// heap.cpp - the device heap, from which malloc() and new in kernels allocate. Its size is set with
// cudaDeviceSetLimit(cudaLimitMallocHeapSize); it lives as long as the program.
//
// Allocation proceeds through the heap and wraps around at the end, so freed memory stays unused for a long time and
// the checked build can detect use after free.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "../include/simulator/heap.h"
#include "worker.h"
#include "checker.h"

namespace simulator {

constexpr size_t HEAP_ALIGNMENT = 16;
constexpr size_t HEAP_GAP = CHECKED ? 256 : 0;  // so that an overrun does not land in the next block
constexpr size_t HEAP_HEADER = 16;   // bytes that each block adds to the limit's use, as on a GPU
constexpr size_t HEAP_REGIONS = 4;   // bytes of address space per byte of the limit

static uintptr_t heap_start, heap_end;  // statically initialized: operator delete may run before any constructor

static struct Heap {
    std::mutex lock;
    size_t limit = 8 << 20, used = 0, most_used = 0;
    uintptr_t next = 0;
    std::map<uintptr_t, HeapBlock> blocks;  // by start address; in the checked build, freed ones, too
}& heap = *new Heap;  // never destroyed: the report is written at exit
using HeapLock = std::lock_guard<std::mutex>;

size_t heap_limit() { return heap.limit; }
cudaError_t set_heap_limit(size_t bytes) {
    HeapLock lock(heap.lock);
    if (heap_start) return finished(cudaErrorInvalidValue);  // too late: a kernel has used the heap
    if (bytes > size_t(8) << 30) return finished(cudaErrorMemoryAllocation);
    return heap.limit = bytes, cudaSuccess;
}
size_t take_heap_use() {
    HeapLock lock(heap.lock);
    return std::exchange(heap.most_used, heap.used);
}
static bool in_heap(uintptr_t p) { return p >= heap_start && p < heap_end; }

static void open_heap() {
    const size_t bytes = (heap.limit * HEAP_REGIONS + (1 << 20)) & ~size_t(4095);
    heap_start = heap.next = take_device_memory(bytes);
    if (!heap_start) return;
    heap_end = heap_start + bytes;
    if constexpr (CHECKED) check_heap_opens(heap_start, bytes);
}

// Finds room for `bytes` after the last allocation; 0 if there is none.
static uintptr_t find_room(size_t bytes) {
    for (int turn = 0; turn < 2; ++turn) {
        uintptr_t start = turn ? heap_start : heap.next;
        auto one = heap.blocks.lower_bound(start);
        while (start + bytes <= heap_end) {
            while (one != heap.blocks.end() && one->second.freed && one->first < start + bytes) one = heap.blocks.erase(one);
            if (one == heap.blocks.end() || one->first >= start + bytes) return start;
            start = one->first + one->second.taken;
            ++one;
        }
    }
    return 0;
}

void* heap_new(size_t bytes, Position at) {
    if (!on_device()) return malloc(bytes);
    HeapLock lock(heap.lock);
    const Quiet quiet;
    const size_t needed = (bytes + HEAP_ALIGNMENT - 1) / HEAP_ALIGNMENT * HEAP_ALIGNMENT;
    if (!heap_start) open_heap();
    if (!heap_start || needed < bytes || heap.used + needed + HEAP_HEADER > heap.limit) return nullptr;
    const size_t taken = needed + HEAP_GAP + (needed ? 0 : HEAP_ALIGNMENT);
    const uintptr_t start = find_room(taken);
    if (!start) return nullptr;
    heap.next = start + taken;
    heap.used += needed + HEAP_HEADER;
    heap.most_used = std::max(heap.most_used, heap.used);
    mark_allocated(start, bytes, true);
    heap.blocks[start] = {bytes, taken, needed + HEAP_HEADER, at, {}, false};
    memset(reinterpret_cast<void*>(start), 0xff, bytes);  // NaN, so that reading fresh memory shows
    if constexpr (CHECKED) check_heap_given(start, taken);
    return reinterpret_cast<void*>(start);
}
void* heap_malloc(size_t bytes, Position at) { return on_device() && !bytes ? nullptr : heap_new(bytes, at); }

void heap_free(void* address, Position at) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(address);
    if (!on_device() && !in_heap(start)) return free(address);
    if (!address) return;
    const char* wrong = "which malloc() and new have not given out in a kernel";
    HeapBlock before = {};
    {
        HeapLock lock(heap.lock);
        const Quiet quiet;
        const auto one = heap.blocks.find(start);
        if (!on_device()) {
            wrong = "in host code: a kernel's memory can only be freed by kernels";
        } else if (one != heap.blocks.end() && !one->second.freed) {
            heap.used -= one->second.counted;
            if constexpr (CHECKED)
                one->second.freed = true, one->second.freed_at = at;
            else
                heap.blocks.erase(one);
            return;
        } else if (one != heap.blocks.end()) {
            wrong = "which has been freed before";
            before = one->second;
        }
    }
    if constexpr (CHECKED) check_heap_freed_wrongly(before, at);
    fail("%s:%d: free or delete of an address %s", at.file, at.line, wrong);
}

static thread_local Position deleted_at = {"delete", 0};
void deletes_here(Position at) { deleted_at = at; }

const std::pair<const uintptr_t, HeapBlock>* heap_block_at(uintptr_t p) {
    if (!in_heap(p)) return nullptr;
    auto next = heap.blocks.upper_bound(p);
    return next == heap.blocks.begin() ? nullptr : &*std::prev(next);
}
void for_each_heap_leak(void (*visit)(const HeapBlock& block, void* data), void* data) {
    for (auto& [start, block] : heap.blocks) {
        if (!block.freed && !block.told) visit(block, data);
        block.told = true;
    }
}
void heap_is_told() { for_each_heap_leak([](const HeapBlock&, void*) {}, nullptr); }

}  // namespace simulator

// This library's operators delete and delete[], sized and unsized. Host memory goes to free(), since the standard
// library's operator new takes it from malloc().
static void delete_any(void* address) {
    using namespace simulator;
    if (in_heap(reinterpret_cast<uintptr_t>(address)))
        heap_free(address, deleted_at);
    else
        free(address);
}
#ifdef __GLIBC__
#define SIMULATOR_DELETE(name, symbol) \
    extern "C" __attribute__((visibility("hidden"), used)) void name(void* address) __asm__(symbol); \
    void name(void* address) { delete_any(address); }
SIMULATOR_DELETE(simulator_delete, "_ZdlPv")
SIMULATOR_DELETE(simulator_delete_several, "_ZdaPv")
SIMULATOR_DELETE(simulator_delete_sized, "_ZdlPvm")
SIMULATOR_DELETE(simulator_delete_several_sized, "_ZdaPvm")
#endif
