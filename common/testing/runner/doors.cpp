// doors.cpp - see doors.h. The filters are seccomp BPF programs: they check a system call's number and arguments, and
// the process cannot remove them.
#include "doors.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__linux__) && defined(__x86_64__)
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/syscall.h>

namespace runner {

namespace {

constexpr unsigned KILL = SECCOMP_RET_KILL_PROCESS, ALLOW = SECCOMP_RET_ALLOW, FAIL = SECCOMP_RET_ERRNO | EPERM;
constexpr unsigned NUMBER = offsetof(seccomp_data, nr), ARCH = offsetof(seccomp_data, arch);
constexpr unsigned argument(unsigned i) { return offsetof(seccomp_data, args) + 8 * i; }  // its low 32 bits

class Filter {
public:
    explicit Filter(unsigned otherwise) : otherwise_(otherwise) {
        load(ARCH);
        add(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
        verdict(KILL);
        load(NUMBER);
        add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);  // x32 system calls
        verdict(KILL);
    }
    void rule(std::initializer_list<int> numbers, unsigned what) {
        for (int number : numbers) {
            add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1);
            verdict(what);
        }
    }
    // `what` if (argument i & mask) == value (and argument then_i & then_mask is 0); otherwise kills the process.
    void only_if(int number, unsigned i, unsigned mask, unsigned value, int then_i = -1, unsigned then_mask = 0,
                 unsigned what = ALLOW) {
        const bool twice = then_i >= 0;
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, twice ? 8 : 5);
        load(argument(i));
        add(BPF_ALU | BPF_AND | BPF_K, mask);
        add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, twice ? 4 : 1);
        if (twice) {
            load(argument(static_cast<unsigned>(then_i)));
            add(BPF_ALU | BPF_AND | BPF_K, then_mask);
            add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
        }
        verdict(what);
        verdict(KILL);
    }
    void install() {
        verdict(otherwise_);
        const sock_fprog program = {static_cast<unsigned short>(code_.size()), code_.data()};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
            syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
            throw std::runtime_error(std::string("no seccomp: ") + strerror(errno));
    }

private:
    void add(int code, unsigned k, int if_true = 0, int if_false = 0) {
        code_.push_back({static_cast<unsigned short>(code), static_cast<unsigned char>(if_true),
                         static_cast<unsigned char>(if_false), k});
    }
    void load(unsigned offset) { add(BPF_LD | BPF_W | BPF_ABS, offset); }
    void verdict(unsigned what) { add(BPF_RET | BPF_K, what); }
    unsigned otherwise_;
    std::vector<sock_filter> code_;
};

void limit_memory(size_t more) {  // private writable memory, in bytes beyond the current mappings
    rlimit limit = {more, more};
    setrlimit(RLIMIT_DATA, &limit);
}

// Anonymous memory only, nothing executable, signals only to this process.
void allow_common(Filter& filter) {
    filter.only_if(SYS_mmap, 3, MAP_ANONYMOUS, MAP_ANONYMOUS, 2, PROT_EXEC);
    filter.only_if(SYS_mprotect, 2, PROT_EXEC, 0);
    // private futexes only, so no other process can wake or wait. Joining a thread uses a shared futex, but threads end
    // only with the process, so no thread is joined.
    filter.only_if(SYS_futex, 1, FUTEX_PRIVATE_FLAG, FUTEX_PRIVATE_FLAG);
    filter.only_if(SYS_tgkill, 0, ~0u, static_cast<unsigned>(getpid()));
    filter.rule({SYS_read, SYS_write, SYS_writev, SYS_recvfrom, SYS_sendto, SYS_poll, SYS_munmap, SYS_mremap, SYS_brk,
                 SYS_madvise, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_exit, SYS_exit_group,
                 SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettid, SYS_getpid, SYS_sched_yield, SYS_getrandom,
                 SYS_fstat, SYS_newfstatat, SYS_lseek, SYS_close, SYS_shutdown, SYS_restart_syscall,
                 SYS_rseq, SYS_set_robust_list},
                ALLOW);
    filter.rule({SYS_ioctl, SYS_readlink, SYS_sysinfo, SYS_prctl}, FAIL);
}

}  // namespace

void close_first_doors() {
    prctl(PR_SET_DUMPABLE, 0);
    Filter filter(ALLOW);
    filter.rule({SYS_execve,    SYS_execveat,        SYS_ptrace,         SYS_process_vm_readv, SYS_process_vm_writev, SYS_socket,
                 SYS_connect,   SYS_bind,            SYS_mount,          SYS_unshare,          SYS_setns,             SYS_bpf,
                 SYS_keyctl,    SYS_perf_event_open, SYS_io_uring_setup, SYS_userfaultfd,      SYS_open_by_handle_at, SYS_kcmp,
                 SYS_pidfd_open, SYS_pidfd_getfd,    SYS_kill},
                KILL);
    filter.install();
}

void close_host_doors() {
    limit_memory(size_t{1} << 30);
    Filter filter(KILL);
    allow_common(filter);
    filter.only_if(SYS_openat, 2, O_ACCMODE, O_RDONLY, -1, 0, FAIL);  // std::thread::hardware_concurrency()
    filter.rule({SYS_sched_getaffinity}, FAIL);
    filter.install();
}

void close_device_doors() {
    Filter filter(FAIL);
    allow_common(filter);
    filter.install();
}

}  // namespace runner

#else

namespace runner {
void close_first_doors() { throw std::runtime_error("grading needs Linux on x86-64"); }
void close_host_doors() { close_first_doors(); }
void close_device_doors() { close_first_doors(); }
}  // namespace runner

#endif
