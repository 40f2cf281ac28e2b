// runner.cpp - loads a built library and calls its operators, without Python or PyTorch. See __init__.py.
//
//     runner PARENT                       PARENT: the process that must outlive it; it has opened SOCKET and MEMORY
//     runner LIBRARY SOCKET MEMORY DEVICE CPU    for grading: host code and device code in two processes, behind
//                                         system-call filters (doors.h); DEVICE: the socket to the device process, see
//                                         common/simulator/runtime/apart.cpp. CPU: seconds for each
//
// A message is its length, 4 bytes in network byte order, followed by its contents. Requests and their answers:
//     'L' path                                            -> the schemas that the library registers
//     'F' library used name argument                      -> the result of that simulator function, in the memory;
//                                                            choose_edit exists only in libraries of single edits
//     'C' operator poison used outputs arguments          -> the outputs, in the memory
// or an error: its kind and message. Numbers are in native byte order; texts are length-prefixed.
// used: the number of bytes of the memory in use.
#include <arpa/inet.h>
#include <fcntl.h>
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "doors.h"
#include "shim.h"

namespace runner {

namespace {

constexpr int SOCKET = 3, MEMORY = 4;  // file descriptors
constexpr size_t AROUND = size_t{1} << 32;  // bytes of address space reserved before and after the memory
constexpr size_t MOST_BYTES = 1 << 16;  // per request
constexpr size_t MOST_WORDS = 1 << 14;  // bytes sent of an error message
enum Tag : uint8_t { NOTHING, TENSOR, INTEGER, NUMBER, TRUTH, OPTIONAL = 0x80 };

bool received(void* into, size_t size) { return recv(SOCKET, into, size, MSG_WAITALL) == static_cast<ssize_t>(size); }

class Request {
public:
    bool receive() {
        uint32_t size = 0;
        if (!received(&size, sizeof size)) return false;  // the test has exited
        end_ = ntohl(size);
        at_ = 0;
        return end_ <= sizeof bytes_ && received(bytes_, end_);
    }
    template <typename T>
    T take() {
        T value;
        memcpy(&value, bytes(sizeof value), sizeof value);
        return value;
    }
    std::string text() {
        const auto size = take<uint32_t>();
        return std::string(bytes(size), size);
    }
    std::vector<int64_t> numbers(uint32_t count) {
        if (count > MOST_BYTES) throw std::runtime_error("a request ends too early");
        std::vector<int64_t> values(count);
        if (count) memcpy(values.data(), bytes(count * sizeof(int64_t)), count * sizeof(int64_t));
        return values;
    }

private:
    const char* bytes(size_t size) {
        if (size > end_ - at_) throw std::runtime_error("a request ends too early");
        at_ += size;
        return bytes_ + at_ - size;
    }
    char bytes_[MOST_BYTES];
    size_t at_ = 0, end_ = 0;
};

class Reply {
public:
    template <typename T>
    void put(T value) {
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void text(const std::string& value) {
        put(static_cast<uint32_t>(value.size()));
        bytes_ += value;
    }
    void send() const {
        const uint32_t size = htonl(static_cast<uint32_t>(bytes_.size()));
        std::string message(reinterpret_cast<const char*>(&size), sizeof size);
        message += bytes_;
        for (size_t at = 0; at < message.size();) {
            const ssize_t sent = ::send(SOCKET, message.data() + at, message.size() - at, MSG_NOSIGNAL);
            if (sent <= 0) _exit(1);  // the test has exited
            at += static_cast<size_t>(sent);
        }
    }

private:
    std::string bytes_;
};

std::vector<void*> libraries;
std::vector<void (*)()> forget_error;
bool is_apart = false;

uint64_t offset_of(const void* data, size_t bytes) {
    const auto offset = static_cast<uint64_t>(static_cast<const char*>(data) - memory.start);
    memory.check(offset, bytes);
    return offset;
}

Tensor* take_tensor(Request& request) {
    auto* x = new Tensor();
    x->dtype = request.take<int32_t>();
    const auto rank = request.take<uint32_t>();
    const auto offset = request.take<uint64_t>();
    x->sizes = request.numbers(rank);
    x->strides = request.numbers(rank);
    memory.check(offset, x->bytes());
    x->data = memory.start + offset;
    return x;
}

StableIValue take_value(Request& request, uint8_t tag) {
    if (tag == TENSOR) return reinterpret_cast<StableIValue>(take_tensor(request));
    if (tag == TRUTH) return request.take<uint8_t>();
    if (tag == INTEGER || tag == NUMBER) return request.take<uint64_t>();
    throw std::runtime_error("a request has an argument of no known kind");
}

void put_tensor(Reply& reply, const Tensor& x) {
    reply.put(x.dtype);
    reply.put(static_cast<uint32_t>(x.sizes.size()));
    reply.put(x.bytes() ? offset_of(x.data, x.bytes()) : 0);
    for (int64_t size : x.sizes) reply.put(size);
    for (int64_t stride : x.strides) reply.put(stride);
}

void load(Request& request, Reply& reply) {
    const std::string path = request.text();
    const std::map<std::string, Operator> before = is_apart ? std::map<std::string, Operator>() : std::move(operators);
    if (!is_apart) operators.clear();
    void* library = is_apart ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // apart: already loaded
    if (!library && !is_apart) throw std::runtime_error(dlerror());
    if (library) libraries.push_back(library);
    if (void* forget = dlsym(library, "simulator_forget_error"); forget && library)
        forget_error.push_back(reinterpret_cast<void (*)()>(forget));
    if (void* tell = dlsym(library, "simulator_tell_crashes"); tell && library) reinterpret_cast<void (*)()>(tell)();
    reply.put(static_cast<uint32_t>(operators.size()));
    for (const auto& [name, one] : operators) reply.text(name.substr(0, name.find(':')) + "::" + one.schema);
    operators.insert(before.begin(), before.end());
}

// A simulator function's result is placed in the memory; the reply has its offset and size, 0, 0 for nothing.
void function(Request& request, Reply& reply) {
    void* library = libraries.at(request.take<uint32_t>());
    memory.use(request.take<uint64_t>());
    const std::string name = request.text();
    const auto argument = request.take<uint64_t>();
    void* found = dlsym(library, name.c_str());
    if (!found) throw std::runtime_error("the library has no function " + name);
    const char* bytes = nullptr;
    uint64_t size = 0;
    if (name == "simulator_refused" || name == "simulator_check_report") {
        bytes = reinterpret_cast<const char* (*)()>(found)();
        size = strlen(bytes);
    } else if (name == "simulator_replay_report") {
        bytes = reinterpret_cast<const char* (*)(uint64_t*)>(found)(&size);
    } else if (name == "simulator_replay_begin") {
        reinterpret_cast<void (*)(uint64_t)>(found)(argument);
    } else if (name == "simulator_fill_shared" || name == "simulator_check_begin" || name == "choose_edit") {
        reinterpret_cast<void (*)(int)>(found)(static_cast<int>(argument));
    } else {
        throw std::runtime_error(name + " cannot be called from outside");
    }
    void* place = size ? memcpy(memory.allocate(size), bytes, size) : memory.start;
    reply.put(offset_of(place, size));
    reply.put(size);
}

void call(Request& request, Reply& reply) {
    const std::string name = request.text();
    memory.poison = request.take<uint8_t>();
    memory.use(request.take<uint64_t>());
    const auto outputs = request.take<uint32_t>(), arguments = request.take<uint32_t>();
    if (outputs > MOST_BYTES || arguments > MOST_BYTES) throw std::runtime_error("a request ends too early");
    std::vector<StableIValue> stack(std::max(outputs, arguments) + 1);
    for (uint32_t i = 0; i < arguments; ++i) {
        const auto tag = request.take<uint8_t>();
        if (tag == (NOTHING | OPTIONAL)) continue;  // a null pointer
        stack[i] = take_value(request, tag & ~OPTIONAL);
        if (tag & OPTIONAL) stack[i] = reinterpret_cast<StableIValue>(new StableIValue(stack[i]));
    }
    memory.guards.clear();
    const auto found = operators.find(name);
    if (found == operators.end() || !found->second.kernel) throw std::runtime_error("there is no operator " + name);
    for (const auto forget : forget_error) forget();
    found->second.kernel(stack.data(), arguments, outputs);
    memory.check_guards();
    reply.put(outputs);
    for (uint32_t i = 0; i < outputs; ++i) {
        auto* x = reinterpret_cast<Tensor*>(stack[i]);
        put_tensor(reply, *x);
        aoti_torch_delete_tensor_object(reinterpret_cast<AtenTensorHandle>(x));
    }
}

void failed(Reply& reply, const char* kind, const std::string& words) {
    reply = {};
    reply.put(uint8_t{1});
    reply.text(kind);
    reply.text(words.substr(0, MOST_WORDS));
}

template <typename... Kinds>
bool is_any(const std::exception& error) {
    return (dynamic_cast<const Kinds*>(&error) || ...);
}

// Error kinds are Python exception names, mapped as in pybind11.
Reply answered(Request& request) {
    Reply reply;
    reply.put(uint8_t{0});
    try {
        switch (request.take<char>()) {
            case 'L': load(request, reply); break;
            case 'F': function(request, reply); break;
            case 'C': call(request, reply); break;
            default: throw std::runtime_error("a request of no known kind");
        }
    } catch (const std::exception& error) {
        const bool value = is_any<std::invalid_argument, std::domain_error, std::length_error>(error);
        const char* kind = value                              ? "ValueError"
                           : is_any<std::out_of_range>(error) ? "IndexError"
                           : is_any<std::bad_alloc>(error)    ? "MemoryError"
                                                              : "RuntimeError";
        failed(reply, kind, error.what());
    } catch (...) {
        failed(reply, "RuntimeError", "Caught an unknown exception!");
    }
    return reply;
}

bool map_memory() {
    struct stat file;
    if (fstat(MEMORY, &file)) return false;
    memory.size = static_cast<size_t>(file.st_size);
    // with nothing mapped around it: a wild index faults there, as on a GPU, and does not reach a library
    void* around = mmap(nullptr, memory.size + 2 * AROUND, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (around == MAP_FAILED) return false;
    memory.start = static_cast<char*>(around) + AROUND;
    if (mmap(memory.start, memory.size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, MEMORY, 0) == MAP_FAILED) return false;
    return !close(MEMORY);
}

[[noreturn]] void serve() {
    static Request request;
    while (request.receive()) {
        const Reply reply = answered(request);
        fflush(nullptr);
        reply.send();
    }
    _exit(0);  // skips the library's exit handlers
}

// The grader's first message describes the library: the number of kernels, variables and basic blocks, their locations,
// and the kernels' limits, see simulator_prepare_apart().
std::vector<uint64_t> table_from(int device, uint64_t (&counts)[3], uint64_t base) {
    if (recv(device, counts, sizeof counts, MSG_WAITALL) != sizeof counts) _exit(1);
    for (uint64_t count : counts)
        if (count > MOST_BYTES) _exit(1);
    const size_t of_kernels = 3 * counts[0], addresses = of_kernels + 2 * counts[1];
    std::vector<uint64_t> table(addresses + counts[2]);
    const size_t bytes = table.size() * sizeof(uint64_t);
    if (bytes && recv(device, table.data(), bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) _exit(1);
    for (size_t i = 0; i < addresses; ++i)
        if (i < of_kernels ? i % 3 == 0 : (i - of_kernels) % 2 == 0) table[i] += base;
    return table;
}

template <typename Function>
Function* function_of(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (!found) throw std::runtime_error(std::string("the library has no ") + name);
    return reinterpret_cast<Function*>(found);
}

// Closes all files except these, which are renumbered from `first`.
void keep(int first, std::vector<int> files) {
    constexpr int FREE = 20;
    for (int& file : files) file = fcntl(file, F_DUPFD, FREE);
    for (int file : files) dup2(file, first++);
    close_range(static_cast<unsigned>(first), ~0u, 0);
}

// No student code has run when the process forks: the objects have no constructors (the build checks that).
int serve_apart(char** arguments) try {
    enum { LIBRARY = 1, REQUESTS, TENSORS, DEVICE, CPU };
    constexpr int GRADER = 5;
    keep(SOCKET, {atoi(arguments[REQUESTS]), atoi(arguments[TENSORS]), atoi(arguments[DEVICE])});
    static_assert(SOCKET + 1 == MEMORY && SOCKET + 2 == GRADER);
    const auto seconds = static_cast<rlim_t>(atoi(arguments[CPU]));
    const std::pair<int, rlim_t> limits[] = {{RLIMIT_CPU, seconds}, {RLIMIT_FSIZE, 1 << 20}, {RLIMIT_CORE, 0}, {RLIMIT_NOFILE, 32}};
    for (const auto& [what, most] : limits) {
        const rlimit limit = {most, most};
        setrlimit(what, &limit);
    }
    if (!map_memory()) return 1;
    close_first_doors();
    void* library = dlopen(arguments[LIBRARY], RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    link_map* map = nullptr;
    dlinfo(library, RTLD_DI_LINKMAP, &map);
    uint64_t counts[3] = {};
    const std::vector<uint64_t> table = table_from(GRADER, counts, map->l_addr);
    const uint64_t *variables = table.data() + 3 * counts[0], *blocks = variables + 2 * counts[1];
    using Numbers = const uint64_t*;
    function_of<void(char*, size_t, Numbers, size_t, Numbers, size_t, uint64_t, Numbers, size_t)>(library, "simulator_prepare_apart")(
        memory.start, memory.size, table.data(), counts[0], variables, counts[1], map->l_addr, blocks, counts[2]);
    const auto become_device = function_of<void(int, int, void (*)())>(library, "simulator_become_device");
    const auto become_relay = function_of<void(int, int, int, int)>(library, "simulator_become_relay");
    const auto become_host = function_of<void(int)>(library, "simulator_become_host");
    memory.elsewhere = function_of<void(char*, size_t, uint64_t, size_t)>(library, "simulator_send_output");
    forget_error.push_back(function_of<void()>(library, "simulator_forget_error"));
    is_apart = true;
    int host[2], orders[2], questions[2];  // relay's end first
    for (int* pair : {host, orders, questions})
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 1;
    for (const bool is_device : {true, false}) {
        const pid_t process = fork();
        if (process < 0) return 1;
        if (process) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (is_device) {
            keep(SOCKET, {orders[1], questions[1]});
            for (int file : {0, 1, 2}) close(file);  // nothing shared with the host, which could read from it
            become_device(SOCKET, SOCKET + 1, close_device_doors);
        }
        keep(SOCKET, {host[0], orders[0], GRADER, questions[0]});
        close_host_doors();
        become_relay(SOCKET, SOCKET + 1, SOCKET + 2, SOCKET + 3);
    }
    keep(MEMORY, {host[1]});
    become_host(MEMORY);
    close_host_doors();
    serve();
} catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
}

}  // namespace

}  // namespace runner

// The order lets a grader install filters in between: all files are open before the first library is loaded, whose
// constructors run in dlopen(); inputs arrive after all libraries are loaded.
int main(int count, char** arguments) {
    using namespace runner;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (count == 6) return serve_apart(arguments);
    if (count != 2 || getppid() != atoi(arguments[1])) return 1;  // the parent had already exited
    if (!map_memory()) return 1;
    serve();
}
