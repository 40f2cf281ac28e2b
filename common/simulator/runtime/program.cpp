// program.cpp - standalone programs: .cu files with their own main() (python -m common.run), as opposed to operators
// loaded into another process.
//
// All device memory is the program's own, so more mistakes can be detected than in a library: host code that
// dereferences device pointers, kernels that are passed host pointers. Uncaught errors are printed and end the program.
//
//   SIMULATOR_COLLECT=check|profile, SIMULATOR_REPORT=FILE     the checked build: what to collect, where to write it
//   SIMULATOR_SAMPLE=N                                         profile N blocks of a grid that represent all
#include <dlfcn.h>
#include <unistd.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "apart.h"
#include "worker.h"
#include "checker.h"
extern "C" void simulator_check_begin(int mode);
extern "C" const char* simulator_check_report();
extern "C" void simulator_sample_begin(int blocks);

namespace simulator {

static bool program = false;
bool is_program() { return program; }

void hint(const char* text) {
    if (program) fprintf(stderr, "simulator: %s\n", text);
}

static void write_report() {
    const char* path = CHECKED ? getenv("SIMULATOR_REPORT") : nullptr;
    FILE* file = path ? fopen(path, "w") : nullptr;
    if (!file) return;
    if constexpr (CHECKED) fputs(simulator_check_report(), file);
    fclose(file);
}

[[noreturn]] void end_program(const std::string& error) {
    fflush(stdout);
    fprintf(stderr, "error: %s\n", error.c_str());
    heap_is_told();  // memory that it had no chance to free is no leak
    if constexpr (CHECKED)
        for (Range* range : all_ranges()) range->told = true;
    write_report();
    _exit(1);
}

[[noreturn]] static void on_terminate() {
    if (const std::exception_ptr current = std::current_exception()) {
        try {
            std::rethrow_exception(current);
        } catch (const std::exception& e) {
            end_program(e.what());
        } catch (...) {
        }
    }
    end_program("the program ended itself (std::terminate)");
}

void run_as_program() {
    if (program) return;
    program = true;
    prepare_reports();
    std::set_terminate(on_terminate);
    install_handlers();
    close_memory_to_host();
    if constexpr (CHECKED) {
        const char* collect = getenv("SIMULATOR_COLLECT");
        if (const char* sample = getenv("SIMULATOR_SAMPLE")) simulator_sample_begin(atoi(sample));
        if (collect) simulator_check_begin(strcmp(collect, "profile") == 0 ? 2 : 1);
        atexit(write_report);
    }
}

// Memory in this program's image: __device__, __constant__ and __managed__ variables.
bool is_own_variable(const void* address) {
    Dl_info there, here;
    return dladdr(address, &there) && dladdr(reinterpret_cast<void*>(&is_own_variable), &here) &&
           there.dli_fbase == here.dli_fbase;
}

void check_kernel_argument(const void* pointer, int number, const char* kernel, Position at) {
    const bool is_host = is_host_variable(pointer);
    if (!is_host && (!program || !pointer || kind_of(pointer) != MemoryKind::unknown || is_own_variable(pointer))) return;
    char text[512];
    snprintf(text, sizeof text,
             "%s:%d: argument %d of %s is a pointer to host memory, which a kernel cannot use: pass memory of cudaMalloc, and "
             "copy to it with cudaMemcpy%s",
             at.file, at.line, number, kernel,
             is_host ? ", or let the kernel use a __constant__ or __device__ variable by its name" : "");
    throw std::runtime_error(text);
}

}  // namespace simulator
