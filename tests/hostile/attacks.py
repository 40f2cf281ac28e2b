"""Hostile submissions: each loses only the points of its own part; everything else that is right keeps its points."""

from __future__ import annotations

import gzip
import io
import os
import socket
import subprocess
import tarfile
import zipfile
from pathlib import Path

from common.console.paths import ROOT
from common.course.grading.attacking import (
    KERNELS,
    LAUNCH,
    PYTHON,
    Attack,
    solution,
    with_kernel,
    with_launcher,
    with_python,
    writes,
)

FILLED = solution()
ALL = ("softmax", "merge")
FOREVER = "def flash_attention(*_, **__):\n"
LISTENERS: list[socket.socket] = []
LOOKS_AROUND = f"""
honest = flash_attention
def flash_attention(*given, **named):  # right, unless it can read or change something that is not its own
    import glob, os
    found = []
    for pattern in ('/etc/shadow', '/root/*', '/home/*/*', '/tmp/grading-*/*', '/tmp/rehearsal-*/*', '/*/salt',
                    '{ROOT}/task*/solution/*', '{ROOT}/task*/cases/hidden.py', '/course/*', '/course/common/*',
                    '/usr/bin/g*', '/proc/loadavg', os.__file__):
        for name in filter(os.path.isfile, glob.glob(pattern)):
            for how in ('ab',) if name.startswith(('/course/', '/usr/', os.__file__)) else ('rb', 'ab'):
                try:
                    open(name, how).close()
                    found.append(how + ' ' + name)
                except OSError:
                    pass
    found += glob.glob('/course/task*/solution/*.cu') + glob.glob('/course/task*/cases/hidden.py')
    found += [name for name in os.environ if 'SALT' in name.upper()]
    if found:
        raise RuntimeError(', '.join(found))
    return honest(*given, **named)
"""


def host(name: str, body: str, before: str = "", **more) -> Attack:
    """Hostile code in the launcher; the other kernel is right."""
    includes = (
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n#include <signal.h>\n"
    )
    return Attack(name, writes(with_launcher(body, includes + before)), ("softmax",), ("merge",), **more)


def python(name: str, body: str, **more) -> Attack:
    """Hostile code in attention.py, as the body of flash_attention; the kernels are right."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return Attack(name, writes(with_python(FOREVER + lines)), ("algorithm",), ("softmax",), **more)


def network(folder: Path) -> None:
    """Right, unless it can reach a port on the grader's machine."""
    listener = socket.create_server(("127.0.0.1", 0))
    LISTENERS.append(listener)  # open as long as this process runs
    body = (
        "    int s = socket(AF_INET, SOCK_STREAM, 0); sockaddr_in a = {}; a.sin_family = AF_INET;\n"
        f"    a.sin_port = htons({listener.getsockname()[1]}); a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);\n"
        "    if (!connect(s, (sockaddr*)&a, sizeof a)) exit(0);\n    close(s);\n"
    )
    headers = ("sys/socket.h", "netinet/in.h", "arpa/inet.h", "stdlib.h", "unistd.h")
    writes(with_launcher(body + LAUNCH, "".join(f"#include <{name}>\n" for name in headers)))(folder)


def fifo(folder: Path) -> None:
    writes({PYTHON: FILLED[PYTHON]})(folder)
    os.mkfifo(folder / KERNELS)


def zip_bomb(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(PYTHON, FILLED[PYTHON])
        archive.writestr(KERNELS, bytes(200 << 20))
    return folder / "bomb.zip"


def tar_bomb(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "bomb.tar.gz", "wb", compresslevel=1) as out:
        info = tarfile.TarInfo("task3/video.bin")
        info.size = 1 << 30
        out.write(info.tobuf())
        for _ in range(64):
            out.write(bytes(1 << 24))
    return folder / "bomb.tar.gz"


def tree_bomb(folder: Path) -> Path:
    """A git bundle in which each of ten folders holds the same ten folders, ten levels deep."""
    folder.mkdir(parents=True, exist_ok=True)

    def git(*command: str, said: str = "") -> str:
        git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *command]
        return subprocess.run(git, input=said, text=True, check=True, capture_output=True).stdout.strip()

    git("init", "-q")
    tree = git("mktree", said=f"100644 blob {git('hash-object', '-w', '--stdin')}\tattention.py\n")
    for _ in range(10):
        tree = git("mktree", said="".join(f"040000 tree {tree}\ttask{i}\n" for i in range(10)))
    git("update-ref", "HEAD", git("commit-tree", "-m", "x", tree))
    git("bundle", "create", "bomb.bundle", "HEAD")
    return folder / "bomb.bundle"


def climbing_tar(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "climbing.tar", "w") as archive:
        for name, text in (
            ("../../../../tmp/climbed", b"here"),
            ("/tmp/climbed", b"here"),
            (KERNELS, FILLED[KERNELS].encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
        link = tarfile.TarInfo(PYTHON)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return folder / "climbing.tar"


def strange_names(folder: Path) -> Path:
    """Copies whose folders are named with bytes that are not UTF-8, a line break, and what a terminal obeys."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "names.tar", "w") as archive:
        files = [*FILLED.items(), *((f"\udcff\n\x1b[2K/{PYTHON}", text) for text in "ab")]
        for name, text in files:
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return folder / "names.tar"


ATTACKS = [
    host("a crash in host code", "    *reinterpret_cast<volatile int*>(8) = 1;"),
    host("an endless loop on the host", "    for (volatile int i = 0;; i = i + 1) {}"),
    host("exit(0)", "    exit(0);"),
    host("_exit(0)", "    _exit(0);"),
    host("abort()", "    abort();"),
    host("a signal that stops the process", "    raise(SIGSTOP);"),
    host(
        "stack overflow",
        "    deep(1);",
        "static int deep(int n) { volatile char a[4096]; a[0] = n; return deep(n + 1) + a[0]; }",
    ),
    Attack(
        "a kernel that never ends",
        writes(
            with_kernel(
                "    // Sweep 1: m and l of the whole row.\n",
                "    while (*(volatile float*)x == *(volatile float*)x || cols) {}\n",
            )
        ),
        ("softmax",),
        ("merge",),
    ),
    Attack(
        "a barrier that some threads never reach",
        writes(
            with_kernel(
                "    // Sweep 1: m and l of the whole row.\n",
                "    if (threadIdx.x < 7) while (true) __syncthreads();\n",
            )
        ),
        ("softmax",),
        ("merge",),
    ),
    host("a fork bomb", "    while (true) fork();"),
    host(
        "a bomb of threads",
        "    while (true) std::thread([] { while (true) sleep(1); }).detach();",
        "#include <thread>",
    ),
    host("memory without end", "    while (true) memset(malloc(64 << 20), 1, 64 << 20);"),
    host(
        "memory without end, by many processes",
        "    for (int i = 0; i < 20; ++i) if (!fork()) { while (true) memset(malloc(16 << 20), 1, 16 << 20); }\n    sleep(300);",
    ),
    host(
        "a full disk",
        '    for (int i = 0;; ++i) { char name[99]; snprintf(name, 99, "%s/fill%d", getenv("HOME"), i); FILE* f = fopen(name, "w"); if (!f) exit(1); static char z[1 << 20]; while (fwrite(z, 1, sizeof z, f) == sizeof z && ftell(f) < (200 << 20)) {} fclose(f); if (i > 3000) exit(0); }',
        kinds=("bubblewrap",),
    ),
    host("stderr without end", '    while (true) fputs("spam spam spam spam spam spam spam spam\\n", stderr);'),
    host(
        "a process that stays behind",
        "    if (!fork()) { setsid(); if (fork()) _exit(0); while (true) sleep(1); }\n    exit(0);",
    ),
    host(
        "ptrace of the process that starts it",
        "    ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr); exit(0);",
        "#include <sys/ptrace.h>\n",
    ),
    host(
        "sizes written to a file",
        '    FILE* f = fopen("/tmp/sizes", "a"); fprintf(f, "%ld %ld\\n", (long)rows, (long)cols); fclose(f);\n'
        + LAUNCH,
    ),
    python(
        "memory of the process that all are forked from",
        "import os\nopen(f'/proc/{os.getppid()}/mem', 'r+b').close()\nreturn None",
    ),
    host("kill(-1)", "    kill(-1, SIGKILL); exit(0);"),
    host("its parent killed", "    kill(getppid(), SIGKILL); exit(0);"),
    Attack("the network", network, ("softmax",), ("merge",)),
    Attack("files of others", writes(with_python(LOOKS_AROUND)), (), ("algorithm", "softmax"), kinds=("bubblewrap",)),
    python("an exception of 100 MB", "raise RuntimeError('x' * 100_000_000)"),
    python("an exception with many lines", "raise RuntimeError('x\\n' * 5_000_000)"),
    python("an output that is too large", "return torch.zeros(1 << 28)"),
    python("no tensor", "return None"),
    python("a tensor of another type", "return (*_, *__.values())[0].double()"),
    python("endless recursion", "return flash_attention(*_, **__)"),
    python("sys.exit(0)", "import sys; sys.exit(0)"),
    python("an endless loop", "while True: pass"),
    python(
        "garbage on every connection",
        "import os\nfor number in range(3, 60):\n    try: os.write(number, os.urandom(5000))\n    except OSError: pass\nimport time; time.sleep(1000)",
    ),
    python(
        "half a message, then silence",
        "import os, time\nfor number in range(3, 60):\n    try: os.write(number, (1000).to_bytes(4, 'big') + b'{')\n    except OSError: pass\ntime.sleep(1000)",
    ),
    python(
        "a message of a terabyte",
        "import os, time\nfor number in range(3, 60):\n    try: os.write(number, (-1).to_bytes(4, 'big', signed=True) + (1 << 40).to_bytes(8, 'big'))\n    except OSError: pass\ntime.sleep(1000)",
    ),
    python(
        "a message of brackets",
        "import os, time\ndata = b'[' * 1_000_000\nfor number in range(3, 60):\n    try:\n        os.set_blocking(number, False); os.write(number, len(data).to_bytes(4, 'big') + data)\n    except OSError: pass\ntime.sleep(1000)",
    ),
    python(
        "shared memory without end",
        "import mmap\nkept = []\nwhile True:\n    kept.append(mmap.mmap(-1, 64 << 20)); kept[-1][:] = bytes(64 << 20)",
    ),
    python(
        "files in memory without end",
        "import os\nwhile True:\n    os.write(os.memfd_create('x'), bytes(64 << 20))",
    ),
    python(
        "shared memory that is full",
        "for number in range(10_000):\n    with open(f'/dev/shm/{number}', 'wb') as file:\n        file.write(bytes(16 << 20))",
        kinds=("bubblewrap",),
    ),
    python(
        "an output of another form at every further call",
        "global calls\ncalls = globals().get('calls', 0) + 1\nquery = (*_, *__.values())[0]\nreturn query + 1 if calls == 1 else torch.zeros(calls)",
    ),
    python(
        "a message of empty objects",
        "import os, time\ndata = b'[' + b'{},' * 20_000_000 + b'{}]'\nfor number in range(3, 60):\n    try: os.write(number, len(data).to_bytes(4, 'big') + data)\n    except OSError: pass\ntime.sleep(1000)",
    ),
    Attack(
        "a megabyte of empty lines",
        writes({**FILLED, PYTHON: FILLED[PYTHON] + "\n" * 900_000}),
        (),
        ("algorithm", *ALL),
    ),
    Attack("strings that do not end", writes({**FILLED, KERNELS: '"\\' * 400_000}), ALL, ("algorithm",)),
    Attack("a megabyte of comments that do not end", writes({**FILLED, KERNELS: "/*" * 500_000}), ALL, ("algorithm",)),
    python("every connection closed", "import os, time\nos.closerange(0, 100)\ntime.sleep(1000)"),
    Attack(
        "code that ends the process when it is imported",
        writes({**FILLED, PYTHON: "import os\nos._exit(0)\n"}),
        ("algorithm",),
        ("softmax",),
    ),
    Attack(
        "code that prints without end when it is imported",
        writes({**FILLED, PYTHON: "while True: print('x' * 1000)\n"}),
        ("algorithm",),
        ("softmax",),
    ),
    Attack(
        "a source that takes the compiler forever",
        writes(
            {
                **FILLED,
                KERNELS: FILLED[KERNELS] + "\ntemplate <int N> constexpr int work() {\n    int sum = N;\n"
                "    for (int i = 0; i < 100; ++i) for (int j = 0; j < 10000; ++j) sum ^= j;\n    return sum;\n}\n"
                + "".join(f"constexpr int never{i} = work<{i}>();\n" for i in range(3000)),
            }
        ),
        ALL,
    ),
    Attack("a source that includes /dev/zero", writes({**FILLED, KERNELS: '#include "/dev/zero"\n'}), ALL),
    Attack(
        "a source that includes itself",
        writes({**FILLED, KERNELS: '#include "task3/online_softmax.cu"\n#include "online_softmax.cu"\n'}),
        ALL,
    ),
    Attack(
        "a source that includes a secret",
        writes({**FILLED, KERNELS: '#include "task3/cases/hidden.py"\n#include "/etc/passwd"\n'}),
        ALL,
    ),
    Attack("a file of 3 MB", writes({**FILLED, KERNELS: FILLED[KERNELS] + "//" + "x" * 3_000_000}), ALL),
    Attack(
        "a file in another encoding",
        writes({**FILLED, KERNELS: FILLED[KERNELS].encode() + "// größer\n".encode("latin-1")}),
        ALL,
    ),
    Attack("a file of zero bytes", writes({**FILLED, KERNELS: bytes(1000)}), ALL),
    Attack("an empty file", writes({**FILLED, KERNELS: ""}), ALL),
    Attack("no file", writes({PYTHON: FILLED[PYTHON]}), ALL, ("algorithm",)),
    Attack(
        "a file with a byte order mark",
        writes({**FILLED, KERNELS: b"\xef\xbb\xbf" + FILLED[KERNELS].encode()}),
        (),
        ALL,
    ),
    Attack(
        "a file with the line ends of Windows",
        writes({**FILLED, KERNELS: FILLED[KERNELS].replace("\n", "\r\n")}),
        (),
        ALL,
    ),
    Attack("a pipe in place of a file", fifo, ALL),
    Attack("a zip that unpacks to 200 MB", zip_bomb, ALL),
    Attack("a tar that unpacks to 1 GB", tar_bomb, ALL),
    Attack("a git tree of 10,000,000,000 files", tree_bomb, ALL),
    Attack("names that no file can hold", strange_names, (), ("algorithm", "softmax")),
    Attack("a tar that climbs out of its folder", climbing_tar, ("algorithm",), ("softmax",)),
]
