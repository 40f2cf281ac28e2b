// apart.cpp - host code and device code in separate processes, for grading: as on a machine with a GPU, host code can't
// access device memory.
//
//   grader ----- the runner's requests ----> host process: the binding and the launchers, no device memory
//      |                                        |  Message: allocate, copy, fill, launch
//      +------- Question: begin, state -----> relay: forwards both, counts the bytes sent to the host; no student code
//                                               |
//                                            device process: the tensors, the kernels, and counts of the kernels' work
//
// The runner loads the library, calls simulator_prepare_apart(), and forks, so addresses agree in all processes. The
// host process may be entirely under the student's control, so the device process trusts nothing it sends. It runs only
// kernels from nvcc's table (see common/course/grading/build.py), copies only device memory, and does its own counting.
// A malicious kernel may take over the device process, but the relay counts and bounds what it sends to the host.
//
// A launch carries the kernel's address and its arguments in ABI form. Host code calls the kernel, so C++ chooses it and
// converts its arguments; but in the host process every kernel begins with a call of simulator_capture, which saves the
// argument registers and the stack up to the launch's frame. Every CUDA thread enters the kernel with these. C++ passes
// the address of an object with a copy constructor of its own, which is on that stack: every thread gets a copy of the
// stack, and addresses within the copy.
#include "apart.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef __x86_64__

extern "C" const char* simulator_refused();

namespace simulator {

namespace {

constexpr size_t MOST_WORDS = 1024;  // on the stack; CUDA allows 4 KB of arguments
constexpr size_t MOST_TEXT = 4096, PIECE = 1 << 16;

struct Captured {
    double floats[8];
    const void* kernel;
    uint64_t start, words;  // of the stack
    uint64_t integers[6], stack[MOST_WORDS];
};

struct Message {
    enum What : uint64_t { ALLOCATE, RELEASE, IN, OUT, COPY, FILL, OUTPUT, LIMIT, ABOUT, LAUNCH } what;
    uint64_t a, b, bytes;
};
struct LaunchOrder {
    dim3 grid, block, cluster;
    uint64_t dynamic_bytes;
    int32_t line, cooperative;
    char name[96], file[160];
    Captured arguments;
};
struct Answer {
    uint64_t error, value, failed;
};
struct Question {
    enum What : uint64_t { BEGIN, STATE } what;
    uint64_t used, fresh;
};
constexpr size_t STATE_NUMBERS = 9, READ_BACK = 2;  // of the reply; READ_BACK: index of the bytes sent to the host

// Limits per call on what answers tell the host: addresses and sizes, and errors. (OUT's bytes are counted instead.)
constexpr unsigned MOST_VALUES = 1000, MOST_ERRORS = 64;
constexpr uint64_t LAST_ERROR = 999;  // cudaErrorUnknown

struct AddressRange {
    uint64_t start, bytes;
};
// Known to all processes.
struct Shared {
    char* tensors = nullptr;
    size_t tensor_bytes = 0;
    std::vector<const void*> kernels;
    std::vector<AddressRange> variables;
    const char* start = nullptr;  // of the library
};
Shared& shared() { return lasting<Shared>(); }
enum class Side { both, host, device };
Side side = Side::both;
int peer = -1;

bool receive(int from, void* into, size_t bytes) {
    for (auto* at = static_cast<char*>(into); bytes;) {
        const ssize_t got = recv(from, at, bytes, 0);
        if (got <= 0) return false;
        at += got, bytes -= static_cast<size_t>(got);
    }
    return true;
}
bool send_all(int to, const void* what, size_t bytes) {
    for (auto* at = static_cast<const char*>(what); bytes;) {
        const ssize_t sent = send(to, at, bytes, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        at += sent, bytes -= static_cast<size_t>(sent);
    }
    return true;
}

bool is_within(const void* address, uint64_t bytes, uint64_t start, uint64_t size) {
    const auto p = reinterpret_cast<uint64_t>(address);
    return p >= start && bytes <= size && p - start <= size - bytes;
}

}  // namespace

bool is_host_alone() { return side == Side::host; }
bool is_device_alone() { return side == Side::device; }
bool is_variable(const void* address, size_t bytes) {
    const auto& all = shared().variables;
    return std::any_of(all.begin(), all.end(), [&](const AddressRange& one) { return is_within(address, bytes, one.start, one.bytes); });
}
extern "C" __attribute__((visibility("hidden"))) const char _end[];  // of the library
bool is_host_variable(const void* address) {  // the end pointer of a device variable is not a host variable
    const auto* at = static_cast<const char*>(address);
    return side == Side::host && at >= shared().start && at < _end && !is_variable(address, 0);
}
bool is_device_address(const void* address) {
    const Shared& s = shared();
    if (is_within(address, 0, reinterpret_cast<uint64_t>(s.tensors), s.tensor_bytes) || is_in_region(address)) return true;
    return is_variable(address, 1);
}

// ---- the host process

static Answer ask(const Message& order, const void* follows = nullptr, size_t bytes = 0) {
    Answer answer;
    if (!send_all(peer, &order, sizeof order) || !send_all(peer, follows, bytes) || !receive(peer, &answer, sizeof answer))
        _exit(70);  // the device process is gone
    if (answer.failed) throw std::runtime_error("a kernel failed");
    return answer;
}
static cudaError_t error_of(const Answer& answer) { return finished(static_cast<cudaError_t>(answer.error)); }
static uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }

cudaError_t send_allocate(void** address, size_t bytes) {
    const Answer answer = ask({Message::ALLOCATE, 0, 0, bytes});
    *address = reinterpret_cast<void*>(answer.value);
    return error_of(answer);
}
cudaError_t send_release(void* address) { return error_of(ask({Message::RELEASE, number(address), 0, 0})); }
cudaError_t send_fill(void* address, int value, size_t bytes) {
    return error_of(ask({Message::FILL, number(address), static_cast<uint64_t>(value), bytes}));
}
cudaError_t send_limit(const void* kernel, size_t bytes) { return error_of(ask({Message::LIMIT, number(kernel), 0, bytes})); }
size_t ask_static_bytes(const void* kernel) { return ask({Message::ABOUT, number(kernel), 0, 0}).value; }

cudaError_t send_copy(void* to, const void* from, size_t bytes) {
    const bool in = is_device_address(to), out = is_device_address(from);
    if (!in && !out) return memmove(to, from, bytes), cudaSuccess;
    if (in && out) return error_of(ask({Message::COPY, number(to), number(from), bytes}));
    if (in) return error_of(ask({Message::IN, number(to), 0, bytes}, from, bytes));
    const Answer answer = ask({Message::OUT, number(from), 0, bytes});
    if (!answer.error && !receive(peer, to, bytes)) _exit(70);
    return error_of(answer);
}

static const char* capture_end;

extern "C" {
__attribute__((visibility("hidden"), used)) Captured simulator_captured;
__attribute__((visibility("hidden"))) void simulator_capture();
__attribute__((visibility("hidden"))) void simulator_enter(void* captured);
__attribute__((visibility("hidden"), used)) void simulator_capture_stack(const char* stack) {
    const size_t bytes = capture_end > stack ? static_cast<size_t>(capture_end - stack) : 0;
    if (bytes > sizeof simulator_captured.stack) throw std::runtime_error("a kernel's parameters take more than 4 KB");
    simulator_captured.start = number(stack), simulator_captured.words = bytes / 8;
    memcpy(simulator_captured.stack, stack, bytes);
}
}
void begin_capture(const void* end) {
    simulator_captured.kernel = nullptr;
    capture_end = static_cast<const char*>(end);
}
constexpr size_t PATCH = 5;  // bytes of a call instruction, and of the space for it in __global__
asm(".text\n.hidden simulator_capture\n.globl simulator_capture\nsimulator_capture:\n"
    "popq %rax\n subq $5, %rax\n leaq simulator_captured(%rip), %r11\n movq %rax, 64(%r11)\n"
    "movsd %xmm0, 0(%r11)\n movsd %xmm1, 8(%r11)\n movsd %xmm2, 16(%r11)\n movsd %xmm3, 24(%r11)\n"
    "movsd %xmm4, 32(%r11)\n movsd %xmm5, 40(%r11)\n movsd %xmm6, 48(%r11)\n movsd %xmm7, 56(%r11)\n"
    "movq %rdi, 88(%r11)\n movq %rsi, 96(%r11)\n movq %rdx, 104(%r11)\n"
    "movq %rcx, 112(%r11)\n movq %r8, 120(%r11)\n movq %r9, 128(%r11)\n"
    "leaq 8(%rsp), %rdi\n jmp simulator_capture_stack\n"
    // the copy's alignment is the original's; rax: the distance between them
    ".hidden simulator_enter\n.globl simulator_enter\nsimulator_enter:\n"
    "pushq %rbp\n movq %rsp, %rbp\n pushq %rbx\n movq %rdi, %rbx\n"
    "movq 72(%rbx), %rsi\n movq 80(%rbx), %rcx\n leaq (,%rcx,8), %rdx\n"
    "subq %rdx, %rsp\n movq %rsp, %rax\n subq %rsi, %rax\n andl $127, %eax\n subq %rax, %rsp\n"
    "movq %rsp, %rax\n subq %rsi, %rax\n subq $48, %rsp\n addq $6, %rcx\n"
    "1: movq 80(%rbx,%rcx,8), %r8\n movq %r8, %r9\n subq %rsi, %r9\n cmpq %rdx, %r9\n jae 2f\n addq %rax, %r8\n"
    "2: movq %r8, -8(%rsp,%rcx,8)\n decq %rcx\n jnz 1b\n"
    "movsd 0(%rbx), %xmm0\n movsd 8(%rbx), %xmm1\n movsd 16(%rbx), %xmm2\n movsd 24(%rbx), %xmm3\n"
    "movsd 32(%rbx), %xmm4\n movsd 40(%rbx), %xmm5\n movsd 48(%rbx), %xmm6\n movsd 56(%rbx), %xmm7\n"
    "popq %rdi\n popq %rsi\n popq %rdx\n popq %rcx\n popq %r8\n popq %r9\n"
    "callq *64(%rbx)\n leaq -8(%rbp), %rsp\n popq %rbx\n popq %rbp\n ret\n");
static_assert(offsetof(Captured, kernel) == 64 && offsetof(Captured, integers) == 88 && offsetof(Captured, stack) == 136);

// Makes a call of simulator_capture the first instruction of every kernel.
static void capture_kernels() {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    for (const void* kernel : shared().kernels) {
        const uint64_t at = number(kernel), first = at / page * page, bytes = at + PATCH - first;
        const auto distance = static_cast<int32_t>(number(reinterpret_cast<const void*>(&simulator_capture)) - at - PATCH);
        auto* code = reinterpret_cast<unsigned char*>(at);
        if (mprotect(reinterpret_cast<void*>(first), bytes, PROT_READ | PROT_WRITE | PROT_EXEC)) _exit(70);
        code[0] = 0xe8;
        memcpy(code + 1, &distance, sizeof distance);
        if (mprotect(reinterpret_cast<void*>(first), bytes, PROT_READ | PROT_EXEC)) _exit(70);
    }
}

void launch_captured(const char* name, Position at, dim3 grid, dim3 block, size_t dynamic_bytes, bool cooperative, dim3 cluster) {
    LaunchOrder order = {grid, block, cluster, dynamic_bytes, at.line, cooperative, {}, {}, simulator_captured};
    strncpy(order.name, name, sizeof order.name - 1);
    strncpy(order.file, at.file, sizeof order.file - 1);
    error_of(ask({Message::LAUNCH, 0, 0, sizeof order}, &order, sizeof order));
}

// ---- the device process

namespace {

struct Device {
    size_t touchable = 0, used = 0;
    std::vector<size_t> guards;
    std::string failed;  // the error of the first kernel that failed
};
Device device;
constexpr size_t GUARD = 4096;  // bytes after an output

void use(size_t bytes) {
    const size_t page = 4096, needed = (bytes + page - 1) / page * page;
    const size_t low = std::min(needed, device.touchable), high = std::max(needed, device.touchable);
    if (high > low)
        mprotect(shared().tensors + low, high - low, needed > device.touchable ? PROT_READ | PROT_WRITE : PROT_NONE);
    device.touchable = needed, device.used = bytes;
}

bool is_touchable(const void* address, uint64_t bytes) {
    return is_within(address, bytes, number(shared().tensors), device.used) || is_allocated(address, bytes) ||
           is_variable(address, bytes);
}
bool is_kernel(const void* address) {
    const auto& all = shared().kernels;
    return std::find(all.begin(), all.end(), address) != all.end();
}

// Makes a new output after the memory in use, filled with the pattern that follows (of `b` bytes) and guarded.
bool new_output(const Message& order) {
    auto* address = reinterpret_cast<char*>(order.a);
    const Shared& s = shared();
    if (!is_within(address, order.bytes, number(s.tensors), s.tensor_bytes - GUARD)) return false;
    const auto offset = static_cast<size_t>(address - s.tensors);
    if (offset < device.used) return false;
    use(offset + order.bytes + GUARD);
    const uint64_t width = order.b;
    uint64_t pattern;
    if (width > sizeof pattern || !receive(peer, &pattern, sizeof pattern)) return false;
    for (uint64_t i = 0; width && i + width <= order.bytes; i += width) memcpy(address + i, &pattern, width);
    memset(address + order.bytes, 0xa5, GUARD);
    device.guards.push_back(offset + order.bytes);
    return true;
}

cudaError_t run_launch() {
    static LaunchOrder order;
    if (!receive(peer, &order, sizeof order)) _exit(0);
    order.name[sizeof order.name - 1] = order.file[sizeof order.file - 1] = 0;
    if (!is_kernel(order.arguments.kernel) || order.arguments.words > MOST_WORDS) return cudaErrorInvalidDeviceFunction;
    cudaGetLastError();
    launch({order.name, {order.file, order.line}, order.arguments.kernel, simulator_enter, &order.arguments,
            order.cooperative != 0, order.cluster},
           order.grid, order.block, order.dynamic_bytes);
    return cudaGetLastError();
}

// Handles one message; false: the host process is gone, or the message is invalid.
bool answer_host() {
    Message order;
    if (!receive(peer, &order, sizeof order)) return false;
    auto *a = reinterpret_cast<char*>(order.a), *b = reinterpret_cast<char*>(order.b);
    Answer answer = {cudaErrorInvalidValue, 0, 0};
    const char* out = nullptr;
    try {
        switch (order.what) {
            case Message::ALLOCATE: {
                void* made = nullptr;
                answer.error = allocate(&made, order.bytes, MemoryKind::device, {"cudaMalloc", 0});
                answer.value = number(made);
                break;
            }
            case Message::RELEASE: answer.error = release(a, {"cudaFree", 0}); break;
            case Message::IN: {
                if (!is_touchable(a, order.bytes)) return false;  // the data that follow would be read as a message
                if (!receive(peer, a, order.bytes)) return false;
                answer.error = cudaSuccess;
                break;
            }
            case Message::OUT:
                if (!is_touchable(a, order.bytes)) break;
                out = a, answer.error = cudaSuccess;
                break;
            case Message::COPY:
                if (!is_touchable(a, order.bytes) || !is_touchable(b, order.bytes)) break;
                memmove(a, b, order.bytes), answer.error = cudaSuccess;
                break;
            case Message::FILL:
                if (!is_touchable(a, order.bytes)) break;
                memset(a, static_cast<int>(order.b), order.bytes), answer.error = cudaSuccess;
                break;
            case Message::OUTPUT: {
                if (!new_output(order)) return false;
                answer.error = cudaSuccess;
                break;
            }
            case Message::LIMIT:
                if (is_kernel(a)) answer.error = set_attribute(a, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(order.bytes));
                break;
            case Message::ABOUT:
                if (is_kernel(a)) answer.error = cudaSuccess, answer.value = static_bytes_of(a);
                break;
            case Message::LAUNCH: answer.error = run_launch(); break;
            default: return false;
        }
    } catch (const std::exception& error) {  // the message is for the grader, not for host code
        if (device.failed.empty()) device.failed = error.what();
    }
    answer.failed = !device.failed.empty();
    if (answer.failed) out = nullptr;
    return send_all(peer, &answer, sizeof answer) && (!out || send_all(peer, out, order.bytes));
}

// Sends what happened since the last question: the number of launches, threads of the largest, bytes sent to the host
// (the relay fills this in) and bytes allocated (in the heap; the relay adds the others), four counts of work, and
// whether a guard was overwritten; then the messages of a refused launch and of a failed kernel.
bool answer_grader(int grader) {
    Question question;
    if (!receive(grader, &question, sizeof question)) return false;
    uint64_t state[STATE_NUMBERS] = {};
    take_launches(&state[0], &state[1]);
    state[READ_BACK + 1] = take_heap_use();
    take_work(&state[READ_BACK + 2]);
    for (size_t guard : device.guards)
        state[STATE_NUMBERS - 1] |= guard + GUARD <= device.touchable &&
                    std::any_of(shared().tensors + guard, shared().tensors + guard + GUARD, [](char c) { return c != '\xa5'; });
    std::string texts[2] = {std::string(simulator_refused()).substr(0, MOST_TEXT), device.failed.substr(0, MOST_TEXT)};
    if (question.what == Question::BEGIN) {
        device.guards.clear(), device.failed.clear();
        if (question.used > shared().tensor_bytes) return false;
        use(question.used);
        fresh_shared = static_cast<int>(question.fresh);
    }
    uint32_t sizes[2] = {static_cast<uint32_t>(texts[0].size()), static_cast<uint32_t>(texts[1].size())};
    return send_all(grader, state, sizeof state) && send_all(grader, sizes, sizeof sizes) &&
           send_all(grader, texts[0].data(), sizes[0]) && send_all(grader, texts[1].data(), sizes[1]);
}

// ---- the relay

struct Relay {
    int host, device, grader, questions;
    uint64_t read_back = 0, allocated = 0, end = 0;  // end: of the tensors in use
    unsigned values = 0, errors = 0;
};

uint64_t sum_of(uint64_t a, uint64_t b) { return a + std::min(b, UINT64_MAX - a); }

bool pass(int from, int to, uint64_t bytes) {
    static char piece[PIECE];
    for (uint64_t size; bytes; bytes -= size) {
        size = std::min(bytes, uint64_t{PIECE});
        if (!receive(from, piece, size) || !send_all(to, piece, size)) return false;
    }
    return true;
}

// false: one of the two is gone, or the device process has told the host more than allowed.
bool pass_order(Relay& relay) {
    Message order;
    if (!receive(relay.host, &order, sizeof order)) return false;
    const uint64_t follows = order.what == Message::IN       ? order.bytes
                             : order.what == Message::OUTPUT ? sizeof(uint64_t)
                             : order.what == Message::LAUNCH ? sizeof(LaunchOrder)
                                                             : 0;
    Answer answer;
    if (!send_all(relay.device, &order, sizeof order) || !pass(relay.host, relay.device, follows) ||
        !receive(relay.device, &answer, sizeof answer))
        return false;
    if (order.what == Message::ALLOCATE) relay.allocated = sum_of(relay.allocated, order.bytes);
    if (const uint64_t end = order.a + order.bytes; order.what == Message::OUTPUT && end > relay.end) {
        relay.allocated = sum_of(relay.allocated, end - relay.end);
        relay.end = sum_of(end, GUARD);
    }
    const bool has_value = order.what == Message::ALLOCATE || order.what == Message::ABOUT;
    answer = {std::min(answer.error, LAST_ERROR), has_value ? answer.value : 0, answer.failed != 0};
    if ((relay.values += has_value) > MOST_VALUES || (relay.errors += answer.error || answer.failed) > MOST_ERRORS) return false;
    if (!send_all(relay.host, &answer, sizeof answer)) return false;
    if (order.what != Message::OUT || answer.error || answer.failed) return true;
    relay.read_back = sum_of(relay.read_back, order.bytes);
    return pass(relay.device, relay.host, order.bytes);
}

bool pass_question(Relay& relay) {
    Question question;
    uint64_t state[STATE_NUMBERS];
    uint32_t sizes[2];
    if (!receive(relay.grader, &question, sizeof question) || !send_all(relay.questions, &question, sizeof question) ||
        !receive(relay.questions, state, sizeof state) || !receive(relay.questions, sizes, sizeof sizes))
        return false;
    state[READ_BACK] = relay.read_back, state[READ_BACK + 1] = sum_of(relay.allocated, state[READ_BACK + 1]);
    relay.read_back = relay.allocated = 0;
    if (question.what == Question::BEGIN) relay.values = relay.errors = 0, relay.end = number(shared().tensors) + question.used;
    return send_all(relay.grader, state, sizeof state) && send_all(relay.grader, sizes, sizeof sizes) &&
           pass(relay.questions, relay.grader, uint64_t{sizes[0]} + sizes[1]);
}

}  // namespace

}  // namespace simulator

// ---- for the runner

using namespace simulator;

#pragma GCC visibility push(default)
extern "C" {

// Called before the fork with what all processes know. kernels: (address, most threads per block, registers per thread)
// for each; variables: (address, bytes) for each; start: the library's; blocks: see weigh_blocks.
__attribute__((used)) void simulator_prepare_apart(char* tensors, size_t bytes, const uint64_t* kernels, size_t kernel_count,
                                                   const uint64_t* variables, size_t variable_count, uint64_t start,
                                                   const uint64_t* blocks, size_t block_count) {
    if (side != Side::both) _exit(70);
    Shared& s = shared();
    s.tensors = tensors, s.tensor_bytes = bytes, s.start = reinterpret_cast<const char*>(start);
    for (const uint64_t* one = kernels; one < kernels + 3 * kernel_count; one += 3) {
        s.kernels.push_back(reinterpret_cast<const void*>(one[0]));
        KernelState& state = kernel_state(s.kernels.back());
        state.most_threads = static_cast<unsigned>(one[1]), state.registers = static_cast<unsigned>(one[2]);
    }
    for (size_t i = 0; i < variable_count; ++i) s.variables.push_back({variables[2 * i], variables[2 * i + 1]});
    weigh_blocks(start, blocks, block_count);
    prepare_region();
}

// Called in the host process: unmaps device memory, permanently.
__attribute__((used)) void simulator_become_host(int to_device) {
    side = Side::host, peer = to_device;
    capture_kernels();
    close_for_host(shared().tensors, shared().tensor_bytes);
    prepare_reports();
    install_handlers();
}

// Makes an output in the tensors' memory, guarded, and filled with a pattern of `width` bytes (0: not filled).
__attribute__((used)) void simulator_send_output(char* address, size_t bytes, uint64_t pattern, size_t width) {
    ask({Message::OUTPUT, number(address), width, bytes}, &pattern, sizeof pattern);
}

// Relays between host, device and grader until the device process or the grader is gone.
__attribute__((used)) void simulator_become_relay(int host, int device, int grader, int questions) {
    Relay relay = {host, device, grader, questions};
    for (bool has_host = true;;) {
        pollfd files[2] = {{grader, POLLIN, 0}, {has_host ? host : -1, POLLIN, 0}};
        if (poll(files, 2, -1) < 0) continue;
        if (files[1].revents && !pass_order(relay)) has_host = false, shutdown(host, SHUT_RDWR), shutdown(device, SHUT_RDWR);
        if (files[0].revents && !pass_question(relay)) _exit(0);
    }
}

// Runs the device process until the relay is gone: starts the threads that it needs, then calls `close_doors`.
__attribute__((used)) void simulator_become_device(int to_host, int grader, void (*close_doors)()) {
    side = Side::device, peer = to_host;
    start_launching();
    watch_stores(shared().tensors, shared().tensor_bytes);
    close_doors();
    for (bool has_host = true;;) {
        pollfd files[2] = {{grader, POLLIN, 0}, {has_host ? peer : -1, POLLIN, 0}};
        if (poll(files, 2, -1) < 0) continue;
        if (files[1].revents && !answer_host()) has_host = false, shutdown(peer, SHUT_RDWR);
        if (files[0].revents && !answer_grader(grader)) _exit(0);
    }
}

}  // extern "C"
#pragma GCC visibility pop

#else  // grading needs x86-64

namespace simulator {
bool is_host_alone() { return false; }
bool is_device_alone() { return false; }
bool is_variable(const void*, size_t) { return false; }
bool is_device_address(const void*) { return false; }
bool is_host_variable(const void*) { return false; }
cudaError_t send_allocate(void**, size_t) { return cudaErrorNotSupported; }
cudaError_t send_release(void*) { return cudaErrorNotSupported; }
cudaError_t send_copy(void*, const void*, size_t) { return cudaErrorNotSupported; }
cudaError_t send_fill(void*, int, size_t) { return cudaErrorNotSupported; }
cudaError_t send_limit(const void*, size_t) { return cudaErrorNotSupported; }
size_t ask_static_bytes(const void*) { return 0; }
void begin_capture(const void*) {}
void launch_captured(const char*, Position, dim3, dim3, size_t, bool, dim3) {}
}  // namespace simulator

#endif
