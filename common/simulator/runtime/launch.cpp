// launch.cpp - launches one grid: checks the configuration, assigns blocks to workers, and watches their progress.
//
// The launching thread runs blocks itself, so a tiny grid starts at once; helpers from a pool join when they wake up.
// A watchdog thread checks every worker's progress a few times per second and interrupts those that make none.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#include "apart.h"
#include "hopper.h"
#include "worker.h"
#include "checker.h"

namespace simulator {

// g++ gives an inline variable with default visibility one address in the whole process, so the lock
// serializes the launches of all loaded libraries, which share the process's signal handlers.
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
inline std::recursive_mutex process_lock;

constexpr unsigned MAX_WORKERS = 16;
static Worker* workers[MAX_WORKERS];  // workers[0] belongs to the launching thread

// The pool. A fork does not copy its threads: the child creates a new pool and never touches the old one.
struct Pool {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER,
                   watch = PTHREAD_COND_INITIALIZER;
    Grid* grid = nullptr;   // null: nothing to join
    uint64_t launches = 0;  // number of the current grid
    unsigned helpers = 0;   // existing threads
    unsigned places = 0;    // how many helpers may still join this grid
    unsigned active = 0;    // how many helpers are working on it
    bool watchdog_exists = false, watchdog_sleeps = false;
};
static Pool* pool = nullptr;

LaunchLock::LaunchLock() {
    static const bool once = [] {
        pthread_atfork([] { process_lock.lock(); }, [] { process_lock.unlock(); },
                       [] {
                           new (&process_lock) std::recursive_mutex;
                           pool = nullptr;
                       });
        return true;
    }();
    (void)once;
    process_lock.lock();
}
LaunchLock::~LaunchLock() { process_lock.unlock(); }

static double seconds_from_environment(const char* name, double otherwise) {
    const char* text = getenv(name);
    const double value = text ? atof(text) : 0;
    return value > 0 ? value : otherwise;
}

static unsigned worker_limit() {
    if (is_device_alone()) return 1;  // the device process can't start more threads
    if (CHECKED) return 1;            // one block at a time: see checker.h
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t allowed;  // containers and taskset may allow fewer CPUs
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) cores = CPU_COUNT(&allowed);
    const double value = seconds_from_environment("SIMULATOR_WORKERS", static_cast<double>(cores));
    return value > MAX_WORKERS ? MAX_WORKERS : value < 1 ? 1 : static_cast<unsigned>(value);
}

// ---- the work of one OS thread

static void prepare_worker(Worker& worker, Grid& grid) {
    worker.grid_run = &grid;
    worker.size = grid.block;
    worker.grid = grid.size;
    worker.thread_count = grid.block.x * grid.block.y * grid.block.z;
    worker.warp_count = (worker.thread_count + 31) / 32;
    worker.dynamic_bytes = grid.dynamic_bytes;
    worker.dynamic_end = worker.arena + SHARED_ARENA;
    worker.os_thread = pthread_self();
    worker.interrupts = 0;
    worker.os_thread_id = static_cast<pid_t>(syscall(SYS_gettid));
    worker.failed = false;
    worker.trace_size = 0;
    worker.watched = &worker;
    worker.cluster = nullptr;
    worker.together = worker.cluster_passed = false;
}

static void run_blocks(Worker& worker, Grid& grid) {
    this_worker = &worker;
    prepare_worker(worker, grid);
    stack_t previous;
    use_signal_stack(worker, &previous);
    worker.busy = true;
    const auto next = [&grid] {
        if constexpr (CHECKED)
            return next_block(grid);
        else
            return grid.next_block++;
    };
    for (uint64_t block; !grid.stop && (block = next()) < grid.block_count;) {
        prepare_threads(worker);
        run_block(worker, block);
        if (worker.failed) grid.stop = true;
    }
    worker.busy = false;
    sigaltstack(&previous, nullptr);
    this_worker = nullptr;
}

// ---- a graded grid: one of its blocks waits before a store to global memory while the others run
//
// A GPU runs blocks concurrently: what a block has read may change before it writes. The waiting block and the running
// one take turns, since one may be spinning on the other, as on a lock.

// Runs the block until it ends, fails or has spun for a while: it may be waiting for its own threads or another block.
static void resume_for_a_while(Worker& worker) {
    constexpr unsigned MOST_ROUNDS = 1000;
    for (unsigned round = 0; round == 0 || (round < MOST_ROUNDS && worker.ready_warps && !worker.failed); ++round)
        resume_block(worker);
}

// Runs both in turn until `worker`'s block ends or either fails.
static void take_turns(Worker& worker, Worker& late) {
    for (;;) {
        this_worker = &worker;
        worker.together = late.live > 0;
        resume_for_a_while(worker);
        if (worker.failed || !worker.live) return;
        this_worker = &late;
        late.together = worker.ready_warps != 0;  // otherwise no other block could wake it
        stop_awaiting_blocks(late);
        resume_for_a_while(late);
        if (late.failed) return;
    }
}

// Returns the worker that failed, or null.
static const Worker* run_with_a_late_block(Worker& worker, Grid& grid) {
    static Worker* const late = new_worker();
    static uint32_t random = 0;
    random = next_random(random);
    const uint64_t chosen = (random >> 8) % grid.block_count;
    stack_t previous;
    use_signal_stack(worker, &previous);
    for (Worker* one : {&worker, late}) {
        prepare_worker(*one, grid);
        one->watched = &worker;
    }
    worker.busy = true;
    const auto begin = [&](Worker& one, uint64_t i) {
        this_worker = &one;
        prepare_threads(one);
        begin_block(one, block_in_order(grid, i));
    };
    begin(*late, chosen);
    late->together = grid.block_count > 1;
    late->global_stores_left = random >> 31 ? 1 : 1 + (random >> 16) % MOST_STORES;  // a block may store only once
    resume_for_a_while(*late);
    for (uint64_t i = 0; i < grid.block_count && !late->failed && !worker.failed && !grid.stop; ++i) {
        if (i == chosen) continue;
        begin(worker, i);
        take_turns(worker, *late);
        if (!worker.failed && !late->failed) end_block(worker);
    }
    this_worker = late;
    late->together = false;
    const bool goes_on = !late->failed && !worker.failed && !grid.stop;
    if (goes_on) {
        stop_awaiting_blocks(*late);
        resume_block(*late);
    }
    if (goes_on && !late->failed)
        end_block(*late);
    else
        late->prepared = worker.prepared = 0;  // their threads will not resume
    worker.together = worker.busy = false;
    sigaltstack(&previous, nullptr);
    this_worker = nullptr;
    return late->failed ? late : nullptr;
}

// ---- a cooperative grid: one OS thread runs all its blocks in turn, each to its end or to the grid barrier

// One worker per block of such a grid.
static std::vector<Worker*>& together() { return lasting<std::vector<Worker*>>(); }

// The blocks of a cooperative launch, or of one cluster.
struct TakingTurns {
    Grid& grid;
    Worker& first;  // for the watchdog
    std::vector<uint64_t> numbers;
    std::vector<Worker*> blocks;
    std::vector<bool> ended;

    // Runs a block until it returns or waits for other blocks. Returns whether it did anything.
    bool run(size_t i, bool begins) {
        Worker& worker = *blocks[i];
        this_worker = &worker;
        if (begins) {
            Cluster* const cluster = worker.cluster;
            prepare_worker(worker, grid);
            worker.cluster = cluster;
            worker.together = true;
            worker.watched = &first;
            prepare_threads(worker);
        }
        if constexpr (CHECKED) check_block_resumes(worker, begins);
        if (begins) begin_block(worker, numbers[i]);
        const uint64_t before = first.progress;
        const bool ready = worker.ready_warps != 0;
        __atomic_store_n(&first.number, worker.number, __ATOMIC_RELAXED);
        resume_block(worker);
        return ready || first.progress != before;
    }
    void end(size_t i) {
        if (ended[i] || blocks[i]->failed) return;
        this_worker = blocks[i];
        if constexpr (CHECKED) check_block_resumes(*blocks[i], false);
        end_block(*blocks[i]);
        ended[i] = true;
    }
    // Returns the worker that failed, or null.
    const Worker* run_all() {
        ended.assign(blocks.size(), false);
        for (bool begins = true;; begins = false) {
            bool active = false;
            for (size_t i = 0; i < blocks.size(); ++i) {
                if (!begins && ended[i]) continue;
                active |= run(i, begins);
                if (blocks[i]->failed) return blocks[i];
            }
            unsigned live = 0, at_grid_barrier = 0;
            for (const Worker* block : blocks) live += block->live, at_grid_barrier += block->at_grid_barrier;
            if (!live && !active) break;
            if (live && live == at_grid_barrier && !active) {
                for (Worker* block : blocks) pass_grid_barrier(*block);
                if constexpr (CHECKED) check_grid_barrier_passed();
                continue;
            }
            if (active || begins) continue;
            bool woken = false;
            for (Worker* block : blocks) woken |= block->live && wake_in_vain(*block);
            if (woken) continue;
            for (Worker* block : blocks)
                if (block->live > block->at_grid_barrier) return report_deadlock(*block), block;
        }
        for (size_t i = 0; i < blocks.size(); ++i) end(i);
        return nullptr;
    }
};

// Runs all blocks at once (cooperative launch) or one cluster after another.
static const Worker* run_together(Grid& grid) {
    const dim3 shape = grid.cluster, clusters = {grid.size.x / shape.x, grid.size.y / shape.y, grid.size.z / shape.z};
    const uint64_t per_cluster = uint64_t{shape.x} * shape.y * shape.z, cluster_count = grid.block_count / per_cluster;
    const uint64_t at_a_time = grid.kernel->cooperative ? cluster_count : 1;
    std::vector<Worker*>& blocks = together();
    while (blocks.size() < at_a_time * per_cluster) {
        blocks.push_back(new_worker());
        blocks.back()->guarded = 32;  // no guard pages: a process can't have that many mappings
    }
    Worker& first = *workers[0];
    prepare_worker(first, grid);
    stack_t previous;
    use_signal_stack(first, &previous);
    first.busy = true;
    const Worker* failed = nullptr;
    for (uint64_t from = 0; from < cluster_count && !failed; from += at_a_time) {
        TakingTurns turns{grid, first, {}, {}, {}};
        std::vector<Cluster> of(at_a_time);
        for (uint64_t c = 0; c < at_a_time; ++c) {
            const uint3 cluster = place_in(clusters, from + c);
            of[c].shape = shape;
            for (uint64_t rank = 0; rank < per_cluster; ++rank) {
                const uint3 block = place_in(shape, rank);
                const uint64_t x = cluster.x * shape.x + block.x, y = cluster.y * shape.y + block.y, z = cluster.z * shape.z + block.z;
                Worker* worker = blocks[turns.blocks.size()];
                worker->live = 0;
                turns.numbers.push_back((z * grid.size.y + y) * grid.size.x + x);
                turns.blocks.push_back(worker);
                of[c].blocks.push_back(worker);
                worker->cluster = per_cluster > 1 || grid.has_clusters ? &of[c] : nullptr;
                // Blocks that access this one before its first turn must find its threads and this launch's memory.
                worker->thread_count = worker->live = grid.block.x * grid.block.y * grid.block.z;
                worker->dynamic_bytes = grid.dynamic_bytes, worker->dynamic_end = worker->arena + SHARED_ARENA;
                begin_hopper(*worker);
            }
        }
        failed = turns.run_all();
        for (Worker* block : turns.blocks) {
            block->cluster = nullptr, block->together = false;
            if (failed) block->prepared = 0;  // its threads will not resume
        }
    }
    first.busy = false;
    sigaltstack(&previous, nullptr);
    this_worker = nullptr;
    return failed;
}

static void* helper_main(void* data) {
    Worker& worker = *static_cast<Worker*>(data);
    Pool& mine = *pool;
    pthread_mutex_lock(&mine.lock);
    for (uint64_t last = 0;;) {
        while (!mine.places || mine.launches == last) pthread_cond_wait(&mine.work, &mine.lock);
        last = mine.launches;
        Grid& grid = *mine.grid;
        --mine.places;
        ++mine.active;
        pthread_mutex_unlock(&mine.lock);
        run_blocks(worker, grid);
        pthread_mutex_lock(&mine.lock);
        if (--mine.active == 0) pthread_cond_signal(&mine.done);
    }
}

static void start_thread(void* (*main)(void*), void* data) {
    // Signals sent to the process, such as Ctrl-C, go to Python's threads.
    sigset_t all, previous;
    sigfillset(&all);
    for (int ours : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, INTERRUPT}) sigdelset(&all, ours);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    pthread_t thread;
    const int error = pthread_create(&thread, nullptr, main, data);
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
    if (error) throw std::runtime_error("simulator: cannot start a thread");
    pthread_detach(thread);
}

// ---- the watchdog

static double seconds_of(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Whether the thread is blocked in a system call other than a write, which waits for the reader of a kernel's output.
static bool is_asleep(pid_t thread) {
    const auto first_word = [thread](const char* name, const char* format, auto* value) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/task/%d/%s", thread, name);
        FILE* file = fopen(path, "r");
        if (!file) return false;
        const bool found = fscanf(file, format, value) == 1;
        fclose(file);
        return found;
    };
    char state = 'R';
    long call = -1;
    if (!first_word("stat", "%*d (%*[^)]) %c", &state) || state != 'S') return false;
    return !first_word("syscall", "%ld", &call) || (call != SYS_write && call != SYS_writev);
}

// The worker's CPU time, so that neither a debugger nor a busy machine counts as lack of progress, plus the time it was
// blocked in system calls.
static double time_of(const Worker& worker, double since_last_look, double& asleep) {
    clockid_t clock;
    if (pthread_getcpuclockid(worker.os_thread, &clock) != 0) return seconds_of(CLOCK_MONOTONIC);
    if (is_asleep(worker.os_thread_id)) asleep += since_last_look;
    return seconds_of(clock) + asleep;
}

static void* watchdog_main(void*) {
    Pool& mine = *pool;
    struct Seen {
        uint64_t block, progress;
        double block_time, progress_time, asleep;
    } seen[MAX_WORKERS] = {};
    double last_look = seconds_of(CLOCK_MONOTONIC);
    pthread_mutex_lock(&mine.lock);
    for (int idle = 0;;) {
        mine.watchdog_sleeps = idle > 40;  // nothing to watch for two seconds: sleep until signaled
        if (mine.watchdog_sleeps) {
            pthread_cond_wait(&mine.watch, &mine.lock);
        } else {  // not pthread_cond_timedwait(), whose clock may be set meanwhile
            pthread_mutex_unlock(&mine.lock);
            const timespec pause = {0, 50000000};
            nanosleep(&pause, nullptr);
            pthread_mutex_lock(&mine.lock);
        }
        idle = mine.grid || mine.active ? 0 : idle + 1;
        const double look = seconds_of(CLOCK_MONOTONIC), since = look - last_look;
        last_look = look;
        if (idle) continue;
        const double limit = seconds_from_environment("SIMULATOR_TIMEOUT", 10);
        for (unsigned i = 0; i < MAX_WORKERS; ++i) {
            Worker* worker = workers[i];
            if (!worker || !worker->busy) continue;
            const double now = time_of(*worker, since, seen[i].asleep);
            const uint64_t block = __atomic_load_n(&worker->number, __ATOMIC_RELAXED),
                           progress = worker->progress;
            if (block != seen[i].block) seen[i] = {block, progress, now, now, seen[i].asleep};
            if (progress != seen[i].progress) seen[i].progress = progress, seen[i].progress_time = now;
            if (now - seen[i].progress_time > limit || now - seen[i].block_time > 3 * limit)
                pthread_kill(worker->os_thread, INTERRUPT);
        }
    }
}

// ---- the launch

// Why the last refused launch was refused, in words: the error code only says "invalid argument".
static char refused[320];

// The error of a launch that a GPU would refuse, after noting the reason; cudaSuccess for any other. Error codes as in
// CUDA 13; earlier versions return cudaErrorInvalidConfiguration for impossible shapes.
static cudaError_t refusal(const Kernel& kernel, dim3 grid, dim3 block, size_t dynamic_bytes, const KernelState& state) {
    const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
    const size_t shared = dynamic_bytes + state.static_bytes;
    const bool shared_fits = dynamic_bytes <= state.dynamic_limit && shared <= state.shared_limit();
    cudaError_t error = cudaErrorInvalidValue;
    char why[160];
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        snprintf(why, sizeof why, "a grid of 0 blocks");
    else if (threads == 0)
        snprintf(why, sizeof why, "a block of 0 threads");
    else if (threads > MAX_THREADS || block.x > 1024 || block.y > 1024)
        snprintf(why, sizeof why, "a block has at most %u threads", MAX_THREADS);
    else if (block.z > 64)
        snprintf(why, sizeof why, "a block has at most 64 threads along z");
    else if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
        snprintf(why, sizeof why, "a grid has at most 2^31 - 1 blocks along x, 65,535 along y and z");
    else if (threads > state.most_threads)
        snprintf(why, sizeof why, "its __launch_bounds__ allow %u threads in a block", state.most_threads);
    else if (state.registers_of_block(threads) > MOST_REGISTERS) {
        snprintf(why, sizeof why, "each thread needs %u registers, and a block has %u: launch fewer threads, or declare "
                 "__launch_bounds__(%u)",
                 state.registers, MOST_REGISTERS, static_cast<unsigned>(threads));
        if (shared_fits) error = cudaErrorLaunchOutOfResources;
    } else if (!shared_fits)
        snprintf(why, sizeof why, "static and dynamic shared memory are %zu bytes; without cudaFuncSetAttribute %zu are allowed, with it %zu",
                 shared, DEFAULT_SHARED_LIMIT, OPTIN_SHARED_LIMIT);
    else
        return cudaSuccess;
    snprintf(refused, sizeof refused, "%.60s was to be launched with grid (%u, %u, %u), block (%u, %u, %u): %s", kernel.name, grid.x,
             grid.y, grid.z, block.x, block.y, block.z, why);
    hint(refused);  // programs often don't check for errors
    return error;
}

// How many blocks can be co-resident on the device.
static uint64_t most_together(const Kernel& kernel, dim3 block, size_t dynamic_bytes) {
    int blocks = 0, processors = 0;
    occupancy(&blocks, kernel.address, static_cast<int>(block.x * block.y * block.z), dynamic_bytes);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
    return static_cast<uint64_t>(blocks) * processors;
}

void start_launching() {
    prepare_reports();
    if (!pool) pool = new Pool;
    if (!workers[0]) workers[0] = new_worker();
    if (!pool->watchdog_exists) start_thread(watchdog_main, nullptr), pool->watchdog_exists = true;
}

static uint64_t launches_counted = 0, most_threads = 0;  // since take_launches(); most_threads: of the largest launch

void launch(const Kernel& kernel, dim3 size, dim3 block, size_t dynamic_bytes) {
    if (this_worker)  // before the lock: a worker's thread would wait for its own launch
        fail("%s:%d: a kernel launches %s; the simulator does not model that", kernel.position.file,
             kernel.position.line, kernel.name);
    LaunchLock lock;
    KernelState& state = kernel_state(kernel.address);
    refused[0] = 0;
    if (finished(refusal(kernel, size, block, dynamic_bytes, state)) != cudaSuccess) return;
    if (kernel.cooperative && static_cast<uint64_t>(size.x) * size.y * size.z > most_together(kernel, block, dynamic_bytes)) {
        finished(cudaErrorCooperativeLaunchTooLarge);
        return;
    }

    const dim3 declared = cluster_shape_of(kernel.name);
    const dim3 cluster = kernel.cluster.x ? kernel.cluster : declared;
    const unsigned cluster_size = cluster.x * cluster.y * cluster.z;
    if (size.x % cluster.x || size.y % cluster.y || size.z % cluster.z || cluster_size < 1 || cluster_size > 16) {
        snprintf(refused, sizeof refused, "%.60s was to be launched with grid (%u, %u, %u) in clusters of (%u, %u, %u): the grid must be "
                 "whole clusters of at most 16 blocks", kernel.name, size.x, size.y, size.z, cluster.x, cluster.y, cluster.z);
        finished(cudaErrorInvalidClusterSize);
        return;
    }

    Grid grid;
    grid.kernel = &kernel;
    grid.cluster = cluster;
    grid.has_clusters = kernel.cluster.x > 0 || cluster_size > 1;
    grid.size = size;
    grid.block = block;
    grid.dynamic_bytes = dynamic_bytes;
    grid.shared_limit = state.shared_limit();
    grid.block_count = static_cast<uint64_t>(size.x) * size.y * size.z;
    const bool together = kernel.cooperative || grid.has_clusters;
    const uint64_t limit = together ? 1 : worker_limit();
    const unsigned count = static_cast<unsigned>(grid.block_count < limit ? grid.block_count : limit);

    start_launching();
    for (unsigned i = 1; i < count; ++i)
        if (!workers[i]) workers[i] = new_worker();
    for (; pool->helpers + 1 < count; ++pool->helpers) start_thread(helper_main, workers[pool->helpers + 1]);
    for (Worker* worker : workers)
        if (worker) worker->failed = false;

    ++launches_counted;
    most_threads = std::max(most_threads, grid.block_count * block.x * block.y * block.z);

    const OpenMemory open;
    install_handlers();
    pthread_mutex_lock(&pool->lock);
    pool->grid = &grid;
    ++pool->launches;
    pool->places = count - 1;
    if (count > 1) pthread_cond_broadcast(&pool->work);
    if (pool->watchdog_sleeps) pthread_cond_signal(&pool->watch);
    pthread_mutex_unlock(&pool->lock);

    bool left_out = false;
    if constexpr (CHECKED) {
        workers[0]->grid_run = &grid;
        check_launch_begins(*workers[0]);
        choose_blocks(size);
        left_out = together && sample_size && checker.mode == Mode::profile && grid.block_count > sample_size;
        if (together) sample_not_modeled(kernel.cooperative ? "a cooperative grid" : "clusters of blocks");
    }
    const Worker* failed = nullptr;
    if (left_out)
        ;  // its blocks wait for each other: a sample of them would wait forever
    else if (together)
        failed = run_together(grid);
    else if (is_device_alone())
        failed = run_with_a_late_block(*workers[0], grid);
    else
        run_blocks(*workers[0], grid);
    if constexpr (CHECKED) check_launch_ends();

    pthread_mutex_lock(&pool->lock);
    pool->places = 0;  // no more helpers need to join
    while (pool->active) pthread_cond_wait(&pool->done, &pool->lock);
    pool->grid = nullptr;
    pthread_mutex_unlock(&pool->lock);
    restore_handlers();
    fflush(stdout);  // the kernel's output

    add_work(grid);
    if (grid.static_bytes > state.static_bytes) state.static_bytes = grid.static_bytes;
    if (grid.launch_bounds) {
        KernelState its = state;
        its.most_threads = grid.launch_bounds;
        if (kernel.address) state = its;
        refusal(kernel, size, block, dynamic_bytes, its);
    }
    if (grid.launch_bounds || grid.out_of_shared) {
        finished(cudaErrorInvalidValue);
        return;
    }
    if (grid.cut_short) return;
    for (const Worker* worker : workers)
        if (worker && worker->failed) failed = worker;
    if (failed) heap_is_told();  // memory that an aborted kernel didn't free is not a leak
    if (failed)
        throw std::runtime_error(failed->error + source_lines(*failed) + "\n  launched at " + kernel.position.file + ":" +
                                 std::to_string(kernel.position.line));
}

}  // namespace simulator

// For Python (common/testing/calling.py): why the last launch was refused; "" if it was not.
extern "C" __attribute__((visibility("default"), used)) const char* simulator_refused() { return simulator::refused; }

// The number of this library's launches, and the threads of the largest, since the last call.
void simulator::take_launches(uint64_t* launches, uint64_t* threads) {
    LaunchLock lock;
    *launches = launches_counted;
    *threads = most_threads;
    launches_counted = most_threads = 0;
}
