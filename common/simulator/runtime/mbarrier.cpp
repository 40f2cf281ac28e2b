// mbarrier.cpp - barriers in shared memory: a phase completes when all its arrivals have come and all its bytes have
// been transferred.
//
// The 8 bytes in shared memory hold a tag and the barrier's number in its block; its counts are kept here. So a barrier
// that was never initialized, or was overwritten, is detected.
#include <stdio.h>

#include <algorithm>
#include <utility>

#include "hopper.h"
#include "checker.h"

namespace simulator {

constexpr uint32_t MAX_ARRIVALS = (1u << 20) - 1;
constexpr int64_t MAX_BYTES = (1 << 20) - 1;

static uint64_t mark_of(const Worker& worker, unsigned number) {
    return (0x6d620000ull + (worker.number & 0xffff)) << 32 | number;
}

Hopper& hopper_of(Worker& worker) {
    if (!worker.hopper) worker.hopper = new Hopper;
    return *worker.hopper;
}
Hopper& my_hopper() { return hopper_of(current_worker()); }
AsyncThread& my_async_thread() {
    Worker& worker = current_worker();
    return hopper_of(worker).threads[worker.running - worker.threads];
}

void begin_hopper(Worker& worker) {
    if (!worker.hopper) return;
    delete worker.hopper;
    worker.hopper = nullptr;
}

Mbarrier& barrier_at(void* address, const char* what, Position at) {
    if (reinterpret_cast<uintptr_t>(address) % 8)
        fail("%s at %s:%d: an mbarrier's address is a multiple of 8 bytes", what, at.file, at.line);
    Worker* worker = owner_of_shared(address);
    if (!worker) fail("%s at %s:%d: the address %p is not in shared memory", what, at.file, at.line, address);
    uint64_t word;
    memcpy(&word, address, 8);
    const unsigned number = static_cast<unsigned>(word);
    if (worker->hopper && number < worker->hopper->barriers.size() && word == mark_of(*worker, number)) {
        Mbarrier& barrier = *worker->hopper->barriers[number];
        if (barrier.address == address) return barrier;
        fail("%s at %s:%d: this is a copy of the mbarrier that was initialized at %s:%d; copies are no barriers", what, at.file,
             at.line, barrier.made.file, barrier.made.line);
    }
    if (worker->hopper)
        for (const auto& barrier : worker->hopper->barriers)
            if (barrier->address == address)
                fail("%s at %s:%d: the mbarrier that was initialized at %s:%d has been overwritten or invalidated since", what,
                     at.file, at.line, barrier->made.file, barrier->made.line);
    fail("%s at %s:%d: there is no mbarrier; is mbarrier.init missing, or a __syncthreads() after it?", what, at.file, at.line);
}

void mbarrier_init(void* address, uint32_t arrivals, Position at) {
    Quiet quiet;
    if constexpr (CHECKED) check_mbarrier_memory(address, __builtin_return_address(0));
    if (reinterpret_cast<uintptr_t>(address) % 8)
        fail("mbarrier.init at %s:%d: its address is not a multiple of 8 bytes", at.file, at.line);
    if (!is_shared(address)) fail("mbarrier.init at %s:%d: the address is not in this block's shared memory", at.file, at.line);
    if (arrivals < 1 || arrivals > MAX_ARRIVALS)
        fail("mbarrier.init at %s:%d: a phase of %u arrivals; 1 to %u are allowed", at.file, at.line, arrivals, MAX_ARRIVALS);
    Worker& worker = current_worker();
    Hopper& hopper = hopper_of(worker);
    const auto known = std::find_if(hopper.barriers.begin(), hopper.barriers.end(),
                                    [&](const auto& one) { return one->address == address; });
    const unsigned number = static_cast<unsigned>(known - hopper.barriers.begin());
    auto barrier = std::make_unique<Mbarrier>();
    barrier->address = static_cast<char*>(address);
    barrier->made = at;
    barrier->expected = barrier->missing = arrivals;
    barrier->number = number;
    barrier->maker = static_cast<unsigned>(worker.running - worker.threads);
    if (known == hopper.barriers.end())
        hopper.barriers.push_back(std::move(barrier));
    else
        *known = std::move(barrier);
    const uint64_t word = mark_of(worker, number);
    memcpy(address, &word, 8);
}

void mbarrier_invalidate(void* address, Position at) {
    Quiet quiet;
    barrier_at(address, "mbarrier.inval", at);
    const uint64_t word = ~0ull;
    memcpy(address, &word, 8);
}

static bool is_complete(const Mbarrier& barrier, Phase which, uint64_t phase) {
    // By parity: complete if the phase before the current one has this parity.
    return which == Phase::of_state ? barrier.phase > phase : (barrier.phase & 1) != (phase & 1);
}

static void end_phase_if_complete(Mbarrier& barrier) {
    if (barrier.missing || barrier.bytes) return;
    Worker& worker = *owner_of_shared(barrier.address);
    ++barrier.phase;
    barrier.missing = barrier.expected;
    count_progress(worker);
    worker.hopper->fruitless = 0;
    if constexpr (CHECKED) order_phase_complete(barrier);
    auto& waits = worker.hopper->waits;
    const auto woken = std::partition(waits.begin(), waits.end(), [&](const MbarrierWait& one) {
        return one.barrier != &barrier || !is_complete(barrier, one.which, one.phase);
    });
    for (auto one = woken; one != waits.end(); ++one) make_ready_again(worker, *one->thread);
    waits.erase(woken, waits.end());
}

void complete_bytes(Mbarrier& barrier, int64_t bytes, Position at) {
    barrier.bytes -= bytes;
    barrier.copy = at;
    end_phase_if_complete(barrier);
}

static void expect(Mbarrier& barrier, uint32_t bytes, Position at) {
    if (bytes > MAX_BYTES || barrier.bytes + bytes > MAX_BYTES)
        fail("mbarrier expect_tx at %s:%d: %u bytes; a phase waits for at most %lld", at.file, at.line, bytes,
             static_cast<long long>(MAX_BYTES));
    barrier.bytes += bytes;
}

void mbarrier_expect(void* address, uint32_t bytes, Position at) {
    Quiet quiet;
    expect(barrier_at(address, "mbarrier.expect_tx", at), bytes, at);
}
void mbarrier_complete(void* address, uint32_t bytes, Position at) {
    Quiet quiet;
    complete_bytes(barrier_at(address, "mbarrier.complete_tx", at), bytes, at);
}

uint64_t mbarrier_arrive(void* address, uint32_t count, uint32_t bytes, bool drop, Position at) {
    Quiet quiet;
    Mbarrier& barrier = barrier_at(address, "mbarrier.arrive", at);
    const uint64_t state = barrier.phase;
    if (count > barrier.missing)
        fail("mbarrier.arrive at %s:%d: %u arrival(s), but phase %llu of the mbarrier of %s:%d, which takes %u, misses only %u", at.file,
             at.line, count, static_cast<unsigned long long>(barrier.phase), barrier.made.file, barrier.made.line, barrier.expected,
             barrier.missing);
    if (bytes) expect(barrier, bytes, at);
    if constexpr (CHECKED) order_release(barrier.arriving);
    barrier.missing -= count;
    if (drop) barrier.expected -= std::min(count, barrier.expected - 1);
    my_hopper().fruitless = 0;
    count_progress(current_worker());
    end_phase_if_complete(barrier);
    return state;
}

bool mbarrier_test(void* address, Phase which, uint64_t phase, bool patient, Position at) {
    Quiet quiet;
    Mbarrier* barrier = &barrier_at(address, patient ? "mbarrier.try_wait" : "mbarrier.test_wait", at);
    Worker& worker = current_worker();
    if (owner_of_shared(address) != &worker)
        fail("mbarrier wait at %s:%d: the mbarrier is another block's; a thread waits for those of its own block", at.file, at.line);
    if (which == Phase::of_state && phase + 1 < barrier->phase)
        fail("mbarrier wait at %s:%d: the state is of phase %llu and the mbarrier in phase %llu; only the latest phase can be queried",
             at.file, at.line, static_cast<unsigned long long>(phase), static_cast<unsigned long long>(barrier->phase));
    bool complete = is_complete(*barrier, which, phase);
    if (!complete && patient) {
        worker.hopper->waits.push_back({worker.running, barrier, which, phase, __builtin_return_address(0)});
        wait_for_wakeup(State::at_mbarrier, "mbarrier.try_wait", at);
        barrier = &barrier_at(address, "mbarrier.try_wait", at);
        complete = is_complete(*barrier, which, phase);
    } else if (!complete) {
        if (!run_engine(worker)) yield();
        complete = is_complete(*barrier, which, phase);
    }
    if constexpr (CHECKED)
        if (complete) order_acquire(barrier->complete);
    return complete;
}

// A state token holds only its phase's number, not the pending arrivals.
uint32_t mbarrier_pending(uint64_t) {
    fail("mbarrier.pending_count: the simulator's states hold the phase alone");
}

bool wake_in_vain(Worker& worker) {
    if (!worker.hopper || worker.hopper->waits.empty() || ++worker.hopper->fruitless > 64) return false;
    auto waits = std::move(worker.hopper->waits);
    worker.hopper->waits.clear();
    for (const MbarrierWait& one : waits) make_ready_again(worker, *one.thread);
    return true;
}

void trace_wait(Worker& worker) {
    worker.trace_size = 0;
    worker.signaled = false;
    if (!worker.hopper || worker.hopper->waits.empty()) return;
    worker.trace[1] = worker.hopper->waits.front().return_address;  // as if called by the first waiter
    worker.trace_size = 2;
}

std::string describe_wait(Worker& worker, const Thread& thread) {
    if (!worker.hopper) return "";
    for (const MbarrierWait& one : worker.hopper->waits) {
        if (one.thread != &thread) continue;
        const Mbarrier& b = *one.barrier;
        char text[600];
        int n = snprintf(text, sizeof text, " for the mbarrier of %s:%d to complete ", b.made.file, b.made.line);
        if (one.which == Phase::of_parity)
            n += snprintf(text + n, sizeof text - n, "a phase of parity %u", static_cast<unsigned>(one.phase & 1));
        else
            n += snprintf(text + n, sizeof text - n, "phase %llu", static_cast<unsigned long long>(one.phase));
        n += snprintf(text + n, sizeof text - n, "; it is in phase %llu (parity %u), which misses %u of %u arrival(s)",
                      static_cast<unsigned long long>(b.phase), static_cast<unsigned>(b.phase & 1), b.missing, b.expected);
        if (b.bytes > 0)
            n += snprintf(text + n, sizeof text - n, " and waits for %lld more byte(s)", static_cast<long long>(b.bytes));
        else if (b.bytes < 0)
            n += snprintf(text + n, sizeof text - n, " and has received %lld byte(s) that were not expected", static_cast<long long>(-b.bytes));
        else if (b.missing == b.expected)
            n += snprintf(text + n, sizeof text - n, ": nothing has happened in it; is the parity one off?");
        if (b.bytes && b.copy.file)
            snprintf(text + n, sizeof text - n, " (its latest copy: %s:%d)", b.copy.file, b.copy.line);
        return text;
    }
    return "";
}

}  // namespace simulator
