"""The process that runs a submission's code: what it can access, its limits, and its watcher.

    with Sandbox(tree, modules, runtime, kind=choose_kind()) as box:
        Nursery(None, elsewhere=box.socket)     # see inside.py
        box.ended_because                       # "" unless the watcher killed it

Three kinds:

bubblewrap  separate namespaces: no network, no other processes, and only bind-mounted files: the interpreter, the
            compilers, the tree (all read-only); build/ and /tmp in memory, with a size limit. Needs user namespaces.
user        processes of another user, for a grader that is root where namespaces are forbidden (a container). Files are
            protected by permissions alone; the network is not blocked.
trusted     neither; the code can read and write whatever the grader can. Must be requested by name.

All kinds have limits on CPU seconds, file sizes, open files and processes (prlimit), a control group where one can be
created (cgroup.py), and a watcher thread in the grader that checks total memory, process count and wall-clock time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from common.console.words import error_words
from common.course.grading.cgroup import ControlGroup
from common.testing.worker.nursery import stat_of

KINDS = ("bubblewrap", "user", "trusted")
# User IDs for sandboxes. No two share one: closing a sandbox kills all processes of its user.
FIRST_USER, USERS, AT_A_TIME = 61_000, 2_000, 8
LOCKS = Path("/run/grading-users")  # only root writes to /run
_number = itertools.count()
MOST_PATIENCE = 8.0
LOOK_EVERY = 0.1  # seconds
THREADS = 16  # per allowed process
# Paths of the tree and the build folder in bubblewrap: no source may contain these words, or prebuilt objects would be
# rebuilt
COURSE, BUILD = "/the-course", "/the-build"


@dataclass(frozen=True)
class Limits:
    """Resource limits of a submission.

    Attributes:
        memory: bytes, all its processes together.
        build: bytes for its builds; temporary: bytes in /tmp.
        processes: maximum at a time; THREADS times as many threads.
        seconds: wall-clock seconds in total, over all its sandboxes.
        cpu: CPU seconds per process.
        file: bytes in a file that it writes.
        call, load: wall-clock seconds for one call, and for building and loading a task.

    All wall-clock limits are multiplied by patience() when the machine is overloaded.
    """

    memory: int = 4 << 30
    build: int = 1 << 30
    temporary: int = 256 << 20
    processes: int = 64
    seconds: float = 1800
    cpu: int = 600
    file: int = 256 << 20
    call: float = 120
    load: float = 300


def patience() -> float:
    """The slowdown of a program due to other load on the cores: 1 to MOST_PATIENCE."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(1.0, os.getloadavg()[0] / cores), MOST_PATIENCE)


class FairClock:
    """Wall-clock seconds since creation, each divided by the patience() at that time, so that an allowance earned under
    load is kept when the load ends. Must be read regularly."""

    def __init__(self) -> None:
        self._read, self._seconds = time.monotonic(), 0.0

    def seconds(self) -> float:
        now = time.monotonic()
        self._seconds += (now - self._read) / patience()
        self._read = now
        return self._seconds


class NoSandbox(RuntimeError):
    """No kind of sandbox works on this machine; the message says why and what to do."""


def why_no_bubblewrap(user: int | None = None) -> str:
    """Why bubblewrap cannot be used, by the current user or by `user`; "" if it can."""
    if not shutil.which("bwrap"):
        return "bwrap is not installed (Debian, Ubuntu: apt-get install bubblewrap)"
    command = [
        "bwrap",
        "--unshare-all",
        "--ro-bind",
        "/usr",
        "/usr",
        *_links(),
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "true",
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, user=user, group=user)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not start: {error_words(error)}"
    said = done.stderr.decode(errors="replace").strip()
    return (said or f"bwrap ends with {done.returncode}") if done.returncode else ""


def choose_kind(trusted: bool = False, wanted: str | None = None) -> str:
    """The strongest kind that works on this machine.

    Args:
        trusted: allow "trusted" if nothing else works.
        wanted: require this kind.

    Raises:
        NoSandbox: none works.
    """
    if wanted == "trusted" and not trusted:
        raise NoSandbox("--sandbox trusted runs the code with your own rights: say --trusted as well")
    reasons = []
    for kind, why_not in (("bubblewrap", why_no_bubblewrap), ("user", why_no_user)):
        if wanted in (None, kind):
            if not (why := why_not()):
                return kind
            reasons.append(why)
    if trusted and wanted in (None, "trusted"):
        return "trusted"
    raise NoSandbox(
        f"no sandbox works here: {'; '.join(reasons)}. --trusted grades without one: the submissions' code then runs "
        "with your own rights, and can read and change all that you can"
    )


def why_no_user() -> str:
    """Why code cannot run as another user; "" if it can."""
    if os.geteuid() != 0:
        return "the grader is not root, so it cannot become another user"
    for path in _interpreter():
        if closed := closed_to_others(Path(path)):
            return f"Python lies in {path}, and other users may not enter {closed}"
    return ""


@functools.cache
def may_be_another_user() -> bool:
    """Whether root can start bubblewrap as another user. It should: prlimit's process limit does not apply to root, not
    even in a namespace.
    """
    return os.geteuid() == 0 and not why_no_user() and not why_no_bubblewrap(FIRST_USER)


def closed_to_others(path: Path) -> Path | None:
    """The innermost folder of the path that other users cannot enter; None if there is none."""
    return next((one for one in (path.resolve(), *path.resolve().parents) if not one.stat().st_mode & 0o001), None)


def why_readable(folder: Path) -> str:
    """Why code in bubblewrap could read this folder; "" if it cannot."""
    inside = next(
        (one for one in ("/usr", *_interpreter()) if folder.resolve().is_relative_to(Path(one).resolve())), ""
    )
    return f"{folder} is below {inside}, which every submission can read: move it elsewhere" if inside else ""


def _links() -> list[str]:
    """bwrap arguments for /bin, /lib, ...: symbolic links into /usr or real folders, as on the host."""
    found = []
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        path = Path(name)
        if path.is_symlink():
            found += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            found += ["--ro-bind", name, name]
    return found


def _interpreter() -> list[str]:
    """The folders that contain Python and its packages."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    paths |= {str(Path(sys.executable).parent), str(Path(os.path.realpath(sys.executable)).parent.parent)}
    import torch

    paths.add(str(Path(torch.__file__).parents[1]))
    kept = sorted({path for path in paths if Path(path).is_dir() and not f"{path}/".startswith("/usr/")})
    return [path for path in kept if not any(path.startswith(f"{other}/") for other in kept)]


@dataclass(frozen=True)
class Program:
    """A program that runs in place of the nursery; it sees only its own folder and a library.

    Attributes:
        path: the program; its folder is bind-mounted.
        library: its first argument.
        files: open file descriptors, the next arguments; Limits.cpu is the last.
        printed: file descriptor for its stderr.
    """

    path: Path
    library: Path
    files: tuple[int, ...]
    printed: int


class Sandbox:
    """A nursery (inside.py) in a sandbox, or another program.

    Args:
        tree: the course with the submission's files, see clean_tree.py; on disk.
        modules: the course's further Python modules, see modules.py.
        tasks: the tasks that will be requested.
        runtime: the simulator's object files, which every build links; copied into the build folder if something is
            built there.
        kind: one of KINDS.
        limits: see Limits.
        gpu: whether it may use NVIDIA GPUs.
        serve: the function to run in it, a "module.function" of common.course.grading.
        program: runs instead of `serve`.
        closed: called at the end of close().

    Attributes:
        socket: connection to the nursery.
        process: PID of the first process, the ancestor of all others.
        ended_because: why the watcher killed it; "" if it did not.
        peak_bytes: peak memory of its processes together.
        cpu_seconds: used by them and their children, up to the last 0.1 s.
        mark: identifies its processes; the value of GRADING_BOX in their initial environment.
    """

    def __init__(
        self,
        tree: Path,
        modules: Path,
        runtime: Path,
        kind: str,
        tasks: Sequence[str],
        limits: Limits | None = None,
        gpu: bool = False,
        serve: str = "inside.main",
        program: Program | None = None,
        closed: Callable[[Sandbox], None] = lambda box: None,
    ) -> None:
        self.kind, self.limits, self._gpu = kind, limits or Limits(), gpu
        self.ended_because, self.peak_bytes, self.cpu_seconds = "", 0, 0.0
        self._closed = closed
        self.mark = secrets.token_hex(8)
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        self._own: Path | None = None
        other = kind == "user" or (kind == "bubblewrap" and may_be_another_user() and not closed_to_others(tree))
        self._user, self._lock = _own_user() if other else (None, None)
        self._over = threading.Event()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        with theirs, modules.open() as opened:
            files = program.files if program else (opened.fileno(), theirs.fileno())
            command = self._alone(program) if program else self._command(tree, runtime, files, tasks, serve)
            self._process = subprocess.Popen(
                command,
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=program.printed if program else self._said,
                env=self._environment(tree, runtime, program),
                cwd="/" if kind == "bubblewrap" else tree,  # error messages name files relative to it
                start_new_session=True,
                **({"user": self._user, "group": self._user, "extra_groups": []} if self._user else {}),
            )
        self.process = self._process.pid
        self._group = self._grouped()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends all its processes and deletes its files."""
        self.socket.close()  # a healthy nursery then exits, and its workers with it
        if not self.ended_because:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._over.set()
        self._kill()
        self._watcher.join()
        self._said.close()
        if self._group:
            self._group.close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)
        if self._lock:
            self._lock.release()
        self._closed(self)

    def status(self) -> int:
        """The wait status, as from os.waitpid, of its first process; valid after close()."""
        code = self._process.returncode or 0
        number = -code if code < 0 else code - 128 if code > 128 else 0  # bubblewrap reports a signal as 128 + n
        return number or code << 8

    def alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None and not self.ended_because

    @property
    def said(self) -> str:
        """The end of the nursery's stderr: why it did not start."""
        end = os.fstat(self._said.fileno()).st_size
        return os.pread(self._said.fileno(), 2000, max(0, end - 2000)).decode(errors="replace")

    # ---- starting

    def _environment(self, tree: Path, runtime: Path, program: Program | None) -> dict[str, str]:
        if program:  # its libraries are next to it; without /proc it cannot find its own folder
            beside = "/runner" if self.kind == "bubblewrap" else str(program.path.parent)
            return {"GRADING_BOX": self.mark, "LANG": "C.UTF-8", "LD_LIBRARY_PATH": beside}
        build = BUILD if self.kind == "bubblewrap" else str(self._own / "build")
        home = "/tmp" if self.kind == "bubblewrap" else str(self._own / "tmp")
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
            "ATTENTION_BUILD_DIR": build,
            "ATTENTION_CACHE_DIR": f"{build}/cache",
            "HOME": home,
            "TMPDIR": home,
            "USER": "student",
            "GRADING_BOX": self.mark,
            "GRADING_KERNELS": "/runtime" if self.kind == "bubblewrap" else str(runtime),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "SIMULATOR_WORKERS": "1",
            **({} if self._gpu else {"CUDA_VISIBLE_DEVICES": ""}),
            "TOKENIZERS_PARALLELISM": "false",
            "TORCHDYNAMO_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _alone(self, program: Program) -> list[str]:
        arguments = [*map(str, program.files), str(self.limits.cpu)]
        if self.kind != "bubblewrap":
            return [str(program.path), str(program.library), *arguments]
        return [
            *self._namespaces(),
            *("--ro-bind", str(program.path.parent), "/runner", "--ro-bind", str(program.library), "/library.so"),
            *("--remount-ro", "/", "--chdir", "/", "--", f"/runner/{program.path.name}", "/library.so", *arguments),
        ]

    @staticmethod
    def _namespaces() -> list[str]:
        bound = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
        bound += ["--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
        bound += ["--ro-bind", "/usr", "/usr", *_links()]
        for path in ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"):
            bound += ["--ro-bind-try", path, path]
        return bound

    def _command(
        self, tree: Path, runtime: Path, files: tuple[int, int], tasks: Sequence[str], serve: str
    ) -> list[str]:
        limits = self.limits
        module, function = serve.split(".")
        where = COURSE if self.kind == "bubblewrap" else str(tree)
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); "
            "from common.course.grading.modules import install; install(sys.argv[1], sys.argv.pop(2)); "
            f"from common.course.grading.{module} import {function}; {function}(*sys.argv[1:])"
        )
        numbers = (*files, limits.cpu, limits.file, THREADS * limits.processes, self._gpu)
        numbers = [str(int(one)) for one in numbers]
        inner = [sys.executable, "-I", "-c", code, where, *numbers, *tasks]
        if self.kind != "bubblewrap":
            self._own = Path(tempfile.mkdtemp(prefix="box-", dir=tree.parent))  # deleted with the workshop
            for name in ("build", "tmp"):
                (self._own / name).mkdir()
            if serve == "build.serve":
                shutil.copytree(runtime, self._own / "build", dirs_exist_ok=True)
            if self.kind == "user":
                for path in (self._own, *self._own.rglob("*")):
                    os.chown(path, self._user, self._user)
            return inner
        bound = [part for path in _interpreter() for part in ("--ro-bind", path, path)]
        devices = [*map(str, Path("/dev").glob("nvidia*")), "/dev/dxg"] if self._gpu else []
        bound += [part for path in devices for part in ("--dev-bind-try", path, path)]
        bound += ["--ro-bind-try", "/sys", "/sys"] if self._gpu else []
        return [
            *self._namespaces(),
            *("--size", str(limits.temporary), "--tmpfs", "/tmp", "--dev", "/dev"),
            # full /proc would tell a source which compiler reads it, and Python what else runs on the machine
            *(("--proc", "/proc") if self._gpu else ("--ro-bind", "/proc/cpuinfo", "/proc/cpuinfo")),  # for PyTorch
            *("--size", str(limits.temporary), "--tmpfs", "/dev/shm"),
            *bound,
            *("--ro-bind", str(tree), COURSE),
            *(("--size", str(limits.build), "--tmpfs", BUILD) if serve == "build.serve" or self._gpu else ()),
            *("--ro-bind", str(runtime), "/runtime"),
            *("--remount-ro", "/", "--chdir", COURSE, "--"),
            *inner,
        ]

    def _grouped(self) -> ControlGroup | None:
        """Moves all its processes into a control group before any of them runs a submission's code."""
        limits = self.limits
        memory = limits.memory + limits.memory // 2 + limits.build + 2 * limits.temporary  # the watcher acts first
        group = ControlGroup.made(f"grading-{self.mark}", THREADS * limits.processes, memory)
        inside: set[int] = set()
        while group and (new := set(self._processes()) - inside):
            for process in new:
                group.enter(process)
            inside |= new
        return group

    # ---- watching

    def _watch(self) -> None:
        clock, limits = FairClock(), self.limits
        while not self._over.wait(LOOK_EVERY):
            seconds = clock.seconds()
            processes = self._processes()
            memory = sum(map(_own_bytes, processes)) + _memfd_bytes(processes)
            self.peak_bytes = max(self.peak_bytes, memory)
            self.cpu_seconds = max(self.cpu_seconds, sum(map(_cpu_seconds, processes)))
            if memory > limits.memory:
                self._end(f"Its processes took more than {limits.memory >> 20:,} MiB of memory together.")
            elif len(processes) > limits.processes:
                self._end(f"It started more than {limits.processes} processes.")
            elif sum(map(_threads, processes)) > THREADS * limits.processes:
                self._end(f"It started more than {THREADS * limits.processes:,} threads.")
            elif seconds > limits.seconds:
                self._end(f"It took longer than {limits.seconds:g} seconds.")

    def _end(self, why: str) -> None:
        self.ended_because = self.ended_because or why
        self._kill()

    def _processes(self) -> list[int]:
        """PIDs of all its processes: descendants and, for kind "user", orphans of its user."""
        found = _below(self._process.pid)
        if self.kind == "user":
            found += [one for one in _of_user(self._user) if one not in found]
        return found

    def _kill(self) -> None:
        for _ in range(100):
            processes = self._processes() if self._process.poll() is None or self.kind != "bubblewrap" else []
            alive = [one for one in processes if one != self._process.pid or self._process.poll() is None]
            if not alive:
                return
            for one in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(one, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)


def _own_user() -> tuple[int, FileLock]:
    """A user ID that no other sandbox has, of any grader, and no process; the lock keeps it."""
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    first = os.getpid() * AT_A_TIME + next(_number)
    for user in (FIRST_USER + number % USERS for number in range(first, first + USERS)):
        lock = FileLock(LOCKS / str(user), timeout=0)
        with contextlib.suppress(Timeout):
            lock.acquire()
            if not _of_user(user):
                return user, lock
            lock.release()
    raise NoSandbox(f"all users from {FIRST_USER} to {FIRST_USER + USERS - 1} have processes: end them")


def memory_below(process: int) -> int:
    """Bytes of memory used by a process and its descendants, file-backed pages excluded."""
    return sum(map(_own_bytes, _below(process)))


def _below(process: int) -> list[int]:
    """A process and its descendants."""
    found, new = [], [process]
    while new:
        found += new
        new = [child for one in new for child in _children(one)]
    return found


def _children(process: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    return found


def _of_user(user: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user and stat_of(int(name))[0] != "Z":
                found.append(int(name))
    return found


def _cpu_seconds(process: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    try:
        return sum(map(int, stat_of(process)[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def _threads(process: int) -> int:
    try:
        return int(stat_of(process)[17])
    except (OSError, ValueError):
        return 0


def _own_bytes(process: int) -> int:
    """Memory not backed by files, shared memory included: all workers share the pages of their libraries."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{process}/status").read_bytes()
        return 1024 * sum(map(int, re.findall(rb"^Rss(?:Anon|Shmem):\s*(\d+) kB", status, re.MULTILINE)))
    return 0


def _memfd_bytes(processes: Sequence[int]) -> int:
    """Bytes in open in-memory files (memfd_create): unless mapped, they are counted nowhere else."""
    found = {}
    for process in processes:
        with contextlib.suppress(OSError):
            for one in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(one.path).startswith("/memfd:"):
                        about = os.stat(one.path)
                        found[about.st_dev, about.st_ino] = 512 * about.st_blocks
    return sum(found.values())
