// report.cpp - errors: failures detected by the runtime, signals raised in kernels, source lines.
//
// An error in a kernel is recorded with block, thread and call stack. Then the worker abandons all threads of the block
// and returns to the scheduler (without a C++ exception, since other threads of the block are suspended midway).
// launch() throws when all workers are done.
#include <algorithm>
#include <atomic>
#include <dlfcn.h>
#include <execinfo.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <stdexcept>

#include "apart.h"
#include "worker.h"
#include "checker.h"

namespace simulator {

thread_local Worker* this_worker = nullptr;

std::string whereabouts(const Worker& worker, const Thread& thread) {
    char text[160];
    snprintf(text, sizeof text, ", block (%u,%u,%u) thread (%u,%u,%u)", worker.index.x, worker.index.y,
             worker.index.z, thread.index.x, thread.index.y, thread.index.z);
    return std::string("in kernel ") + worker.grid_run->kernel->name + text;
}

// For debuggers, which cannot see macros: `print simulator::thread_index()`. The debugger calls it on the thread's
// stack.
__attribute__((used, noinline)) uint3 thread_index() { return current_thread()->index; }
__attribute__((used, noinline)) uint3 block_index() { return current_block()->index; }

bool on_device() { return this_worker && this_worker->running; }

[[noreturn]] static void give_up(Worker& worker, const std::string& what) {
    worker.error = what + "\n  " + whereabouts(worker, *worker.running);
    worker.failed = true;
    leave_threads(worker);
}

void fail(const char* format, ...) {
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (!on_device()) throw std::runtime_error(text);
    if constexpr (CHECKED) checker.quiet = true;  // until the next launch
    this_worker->trace_size = backtrace(this_worker->trace, 32);
    this_worker->signaled = false;
    give_up(*this_worker, text);
}

void not_implemented(const char* file, int line) { fail("%s:%d: not implemented", file, line); }

// ---- signals

static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, INTERRUPT};
constexpr int SIGNAL_COUNT = sizeof SIGNALS / sizeof *SIGNALS;
static struct sigaction previous_actions[SIGNAL_COUNT];

// Whether the interrupted code is this library's rather than another library's.
static bool in_this_library(void* address) {
    Dl_info there, here;
    if (!dladdr(reinterpret_cast<void*>(&in_this_library), &here)) return true;  // a static program
    return dladdr(address, &there) && there.dli_fbase == here.dli_fbase;
}

static void describe_address(const Worker& worker, const char* address, char* text, size_t size) {
    const char* region = reinterpret_cast<const char*>(&worker);
    if (address >= worker.dynamic_end && address < worker.dynamic_end + STACK_BYTES)
        snprintf(text, size,
                 "out of bounds: %zu byte(s) past the end of the %zu bytes of dynamic shared memory",
                 static_cast<size_t>(address - worker.dynamic_end), worker.dynamic_bytes);
    else if (address >= region && address < region + REGION_BYTES)
        snprintf(text, size, "stack overflow: recursion without end, or more than %zu KB of local variables",
                 static_cast<size_t>(STACK_BYTES >> 10));
    else if (reinterpret_cast<uintptr_t>(address) < 65536)
        snprintf(text, size, "illegal memory access through a null pointer (address %p)",
                 static_cast<const void*>(address));
    else
        snprintf(text, size, "illegal memory access at address %p", static_cast<const void*>(address));
}

// Host code failed, in a standalone program or in a process that reports its crashes.
__attribute__((noinline)) static std::string host_failure(int signal, const void* address) {
    alarm(30);  // a lock held by the failing code must not hang the program
    static Worker nobody;  // for its call stack as in on_signal: without this function's frame
    nobody.trace_size = backtrace(nobody.trace, 32) - 1;
    std::copy(nobody.trace + 1, nobody.trace + 1 + nobody.trace_size, nobody.trace);
    nobody.signaled = true;
    char place[256];
    std::string what;
    if ((signal == SIGSEGV || signal == SIGBUS) && describe_device_address(address, place, sizeof place))
        what = std::string("host code uses device memory, ") + place + ": copy it with cudaMemcpy first";
    else
        what = std::string("host code failed: ") + strsignal(signal);
    return what + source_lines(nobody);
}

[[noreturn]] static void end_host(int signal, const void* address) {
    const char* what = (signal == SIGSEGV || signal == SIGBUS) && is_device_address(address)
                           ? "host code uses device memory, which a machine with a GPU does not allow\n"
                           : "host code failed\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, what, strlen(what));
    ::signal(signal, SIG_DFL);
    raise(signal);
    _exit(128 + signal);
}

static bool tells_crashes = false;

static void on_signal(int signal, siginfo_t* info, void*) {
    if (!on_device()) {
        if (signal == INTERRUPT) return;
        if (is_host_alone()) end_host(signal, info->si_addr);
        if (is_program()) end_program(host_failure(signal, info->si_addr));
        if (tells_crashes) {
            // A wild write may have corrupted what the report needs: a second failure ends the process at once.
            static std::atomic<bool> telling = false;
            if (!telling.exchange(true)) fprintf(stderr, "%s\n", host_failure(signal, info->si_addr).c_str());
            for (int each : SIGNALS) ::signal(each, SIG_DFL);  // it recurs and ends the process
            return;
        }
        for (int i = 0; i < SIGNAL_COUNT; ++i)  // not from a kernel: it recurs, and the previous handler gets it
            if (SIGNALS[i] == signal) sigaction(signal, &previous_actions[i], nullptr);
        return;
    }
    Worker& worker = *this_worker;
    worker.trace_size = backtrace(worker.trace, 32);
    worker.signaled = true;
    char text[256];
    if (signal == INTERRUPT) {
        // Another library may hold a lock, such as malloc's, so wait for the watchdog's next try. A kernel that sleeps
        // there never leaves it, hence the limit.
        constexpr unsigned PATIENCE = 20;
        if (worker.trace_size > 2 && !in_this_library(worker.trace[2]) && ++worker.interrupts < PATIENCE) return;
        snprintf(text, sizeof text,
                 "no progress for a long time: an endless loop, or waiting for something? (SIMULATOR_TIMEOUT sets the limit)");
    } else if (signal == SIGFPE)
        snprintf(text, sizeof text, "integer division by zero");
    else if (signal == SIGILL || signal == SIGTRAP)
        snprintf(text, sizeof text, "the program stopped itself by a trap instruction: code that cannot be reached was");
    else
        describe_address(worker, static_cast<const char*>(info->si_addr), text, sizeof text);
    give_up(worker, text);
}

void prepare_reports() {
    static const bool once = [] {
        void* addresses[4];
        return backtrace(addresses, 4) > 0;  // loads the unwinder now rather than in a signal handler
    }();
    (void)once;
}

void install_handlers() {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler is left by switching stacks
    for (int i = 0; i < SIGNAL_COUNT; ++i) sigaction(SIGNALS[i], &action, &previous_actions[i]);
}
void restore_handlers() {
    for (int i = 0; i < SIGNAL_COUNT; ++i) sigaction(SIGNALS[i], &previous_actions[i], nullptr);
}

// For Python (common/testing/worker): from now on crashes of this process's host code are reported with their line,
// too.
extern "C" __attribute__((visibility("default"), used)) void simulator_tell_crashes() {
    prepare_reports();
    tells_crashes = true;
    install_handlers();
}

// Signal handlers get their own stack: the thread's may have overflowed.
void use_signal_stack(Worker& worker, stack_t* previous) {
    constexpr size_t SIZE = 128 << 10;
    if (!worker.signal_stack) worker.signal_stack = new char[SIZE];
    stack_t stack = {};
    stack.ss_sp = worker.signal_stack;
    stack.ss_size = SIZE;
    sigaltstack(&stack, previous);
}

// ---- source lines

// Uses addr2line, which comes with the compiler; without it messages have no source lines, nor with SIMULATOR_LINES=0,
// for processes that often crash.
std::string source_lines(const Worker& worker) {
    std::string addresses, result;
    const char* wanted = getenv("SIMULATOR_LINES");
    if (is_host_alone() || (wanted && !strcmp(wanted, "0"))) return result;
    Dl_info library = {}, here;
    dladdr(reinterpret_cast<void*>(&in_this_library), &here);
    for (int i = 1; i < worker.trace_size; ++i) {
        if (!dladdr(worker.trace[i], &library) || library.dli_fbase != here.dli_fbase) continue;
        char text[32];  // a return address points past its call, a faulting address (i == 2) at the instruction itself
        const char* at = static_cast<const char*>(worker.trace[i]) - (worker.signaled && i == 2 ? 0 : 1);
        snprintf(text, sizeof text, " 0x%zx",
                 static_cast<size_t>(at - static_cast<const char*>(library.dli_fbase)));
        addresses += text;
    }
    if (addresses.empty()) return result;
    if (is_device_alone()) return "\n  at" + addresses;  // it can start no processes: the grader finds the lines
    const std::string command =
        std::string("addr2line -Cfpie '") + here.dli_fname + "'" + addresses + " 2>/dev/null";
    FILE* lines = popen(command.c_str(), "r");
    if (!lines) return result;
    char line[1024];
    for (int count = 0; count < 6 && fgets(line, sizeof line, lines);) {
        std::string text = line;
        if (text.find("simulator/include/") != std::string::npos ||
            text.find("simulator/runtime/") != std::string::npos)
            continue;
        const size_t at = text.rfind(" at "), inlined = text.find("(inlined by) ");
        if (at == std::string::npos || text.find("??") != std::string::npos) continue;
        std::string function = text.substr(0, at);
        if (function.find("::_FUN(") != std::string::npos || function.find("lambda(auto:1...)") != std::string::npos)
            continue;  // part of the launch, which is reported anyway
        if (inlined != std::string::npos) function = function.substr(inlined + 13);
        const size_t end = std::min(text.find(" (discriminator"), text.find_last_not_of('\n') + 1);
        result += "\n  at " + text.substr(at + 4, end - at - 4) + " in " + function;
        ++count;
    }
    pclose(lines);
    return result;
}

}  // namespace simulator

// The C library's assert() ends here; hidden visibility makes this library's calls, and only those, find it.
#ifdef __GLIBC__
void __assert_fail(const char* expression, const char* file, unsigned line, const char* function) noexcept {
    if (simulator::on_device())
        simulator::fail("%s:%u: assertion `%s' failed in %s", file, line, expression, function);
    fprintf(stderr, "%s:%u: %s: assertion `%s' failed.\n", file, line, function, expression);
    abort();
}
#endif
