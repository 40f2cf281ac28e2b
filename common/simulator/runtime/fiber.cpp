// fiber.cpp - stacks, and switching between them.
//
// A switch saves the callee-saved registers, exchanges the stack pointer and returns on the other stack. That takes 10
// ns; swapcontext(), which other architectures use, takes 180 because it also saves the signal mask.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <exception>
#include <new>
#include <stdexcept>

#include "worker.h"

// void simulator_switch(void** save, void* to): saves the stack pointer in *save and sets it to `to`
#define SWITCH_BEGIN ".text\n.hidden simulator_switch\n.globl simulator_switch\n.p2align 4\nsimulator_switch:\n"
#if defined(__x86_64__) && !defined(SIMULATOR_UCONTEXT)
asm(SWITCH_BEGIN
    "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
    "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
constexpr int FRAME_WORDS = 8,
              ENTRY_WORD = 6;  // six registers, the entry, and its return address, null to end backtraces
#elif defined(__aarch64__) && !defined(SIMULATOR_UCONTEXT)
asm(SWITCH_BEGIN
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp, #0]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp, #0]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n ret\n");
constexpr int FRAME_WORDS = 20, ENTRY_WORD = 11;
#else
#undef SIMULATOR_UCONTEXT
#define SIMULATOR_UCONTEXT
#include <ucontext.h>
#endif

namespace simulator {

// Runs one CUDA thread after the other: when the next block starts, switch_thread() returns here.
static void thread_main() {
    Worker& worker = current_worker();
    for (;;) {
        try {
            const Kernel* kernel = worker.grid_run->kernel;
            kernel->run(kernel->data);
        } catch (const std::exception& e) {
            fail("exception in device code: %s", e.what());
        }
        thread_returned(worker);
    }
}

static const size_t PAGE_BYTES = static_cast<size_t>(sysconf(_SC_PAGESIZE));
static char* stack_bottom(Worker& worker, unsigned thread) {
    return reinterpret_cast<char*>(&worker) + (thread + 1) * STACK_BYTES;
}

#ifndef SIMULATOR_UCONTEXT
static void prepare_stack(Worker& worker, unsigned i) {
    void** frame = reinterpret_cast<void**>(stack_top(reinterpret_cast<uintptr_t>(stack_bottom(worker, i)))) - FRAME_WORDS;
    for (int k = 0; k < FRAME_WORDS; ++k) frame[k] = nullptr;
    frame[ENTRY_WORD] = reinterpret_cast<void*>(&thread_main);
    worker.threads[i].stack_pointer = frame;
}
#else
static void prepare_stack(Worker& worker, unsigned i) {
    Thread& thread = worker.threads[i];
    if (!thread.stack_pointer) thread.stack_pointer = new ucontext_t;
    ucontext_t* context = static_cast<ucontext_t*>(thread.stack_pointer);
    getcontext(context);
    context->uc_stack.ss_sp = stack_bottom(worker, i) + PAGE_BYTES;
    context->uc_stack.ss_size = stack_top(reinterpret_cast<uintptr_t>(stack_bottom(worker, i))) - reinterpret_cast<uintptr_t>(stack_bottom(worker, i)) - PAGE_BYTES;
    context->uc_link = nullptr;
    makecontext(context, thread_main, 0);
}
void simulator_switch(void** save, void* to) {
    swapcontext(static_cast<ucontext_t*>(*save), static_cast<ucontext_t*>(to));
}
#endif

Worker* new_worker() {
    // Reserves twice the size and keeps the aligned part. Pages are allocated on first touch.
    void* map = mmap(nullptr, 2 * REGION_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    char* arena = static_cast<char*>(
        mmap(nullptr, SHARED_ARENA + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0));
    if (map == MAP_FAILED || arena == MAP_FAILED)
        throw std::runtime_error("simulator: no address space for the stacks of the CUDA threads");
    const uintptr_t start = reinterpret_cast<uintptr_t>(map);
    const uintptr_t aligned = (start + REGION_BYTES - 1) & ~(REGION_BYTES - 1);
    if (aligned > start) munmap(map, aligned - start);
    if (aligned < start + REGION_BYTES)
        munmap(reinterpret_cast<void*>(aligned + REGION_BYTES), start + REGION_BYTES - aligned);
    madvise(reinterpret_cast<void*>(aligned), REGION_BYTES, MADV_NOHUGEPAGE);
    mprotect(arena + SHARED_ARENA, STACK_BYTES, PROT_NONE);
    Worker* worker = new (reinterpret_cast<void*>(aligned)) Worker();
    worker->fill_absent = fill_absent, worker->fail = fail;
    worker->new_shared_slot = new_shared_slot, worker->place_shared_variable = place_shared_variable;
    worker->arena = arena;
#ifdef SIMULATOR_UCONTEXT
    worker->scheduler_stack = new ucontext_t;
#endif
    return worker;
}

void prepare_threads(Worker& worker) {
    for (; worker.prepared < worker.thread_count; ++worker.prepared) prepare_stack(worker, worker.prepared);
    // One guard page per warp, which stops infinite recursion at the latest. (One per thread would exceed the limit of
    // mappings per process.)
    for (; worker.guarded < worker.warp_count; ++worker.guarded)
        mprotect(stack_bottom(worker, worker.guarded * 32), PAGE_BYTES, PROT_NONE);
    const dim3 size = worker.size, known = worker.indexed;
    if (size.x == known.x && size.y == known.y && size.z == known.z) return;
    for (unsigned i = 0; i < worker.thread_count; ++i) {
        Thread& thread = worker.threads[i];
        thread.index = place_in(size, i);
        thread.lane = i % 32;
        thread.warp = i / 32;
    }
    worker.indexed = size;
}

void enter_threads(Worker& worker, Thread* first) {
    worker.running = first;
    simulator_switch(&worker.scheduler_stack, first->stack_pointer);
    worker.running = nullptr;
}

void leave_threads(Worker& worker) {
    worker.prepared = 0;  // all stacks are set up anew
    switch_thread(worker, nullptr);
    __builtin_unreachable();
}

}  // namespace simulator
