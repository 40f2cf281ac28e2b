"""Converts Nsight Compute's measurements on a GPU into the same profiles as those of the simulator's checked build.

    profile(tool, command, sources)     runs ncu on the command, a child of common.inspect.gpu_tools
    read_raw(csv)                       `ncu --page raw --csv`: one row per launch
    read_source(csv, sources)           `ncu --page source --print-source cuda,sass --csv`: each line's instructions

Sectors and wavefronts per source line are counted by instrumented instructions (section SourceCounters); time, DRAM
traffic and arithmetic by the hardware. The build uses -lineinfo, which source lines require.
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from common.compiling.report import kernel_name
from common.compiling.toolchain import ToolchainError
from common.inspect import gpu_tools
from common.inspect.profile.instruction_counts import Operations
from common.inspect.profile.model import KernelProfile, LineTraffic, merged
from common.inspect.source_lines import DEVICE_HEADERS, Place

GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
SHARED_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
SHARED_REQUESTS = "sm__sass_inst_executed_op_shared_{}.sum"
FLOPS = {  # operations per thread instruction
    "sm__sass_thread_inst_executed_op_fadd_pred_on.sum": 1,
    "sm__sass_thread_inst_executed_op_fmul_pred_on.sum": 1,
    "sm__sass_thread_inst_executed_op_ffma_pred_on.sum": 2,
}
TIME = "gpu__time_duration.sum"
DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
REGISTERS = "launch__registers_per_thread"
SHARED_BYTES = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
METRICS = [
    TIME,
    *DRAM,
    *FLOPS,
    REGISTERS,
    *SHARED_BYTES,
    *(GLOBAL.format(what, op) for what in ("requests", "sectors") for op in ("ld", "st")),
    *(name.format(op) for name in (SHARED_WAVEFRONTS, SHARED_CONFLICTS, SHARED_REQUESTS) for op in ("ld", "st")),
]
UNITS = {
    **{"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1, "s": 1},
    **{"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Kbyte/block": 1e3},
}
NOT_PERMITTED = "ERR_NVGPUCTRPERM"
NO_PERMISSION = (
    f"ncu may not read the GPU's performance counters here ({NOT_PERMITTED}). Run it as root (in a container: with "
    "--cap-add=SYS_ADMIN), or have the administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0. "
    "Without that, --backend simulator --profile counts transactions and bank conflicts on the CPU."
)

# SASS opcode -> memory space and direction. LDGSTS is an asynchronous copy, LDSM reads matrices.
_OPCODES = {
    "LDG": ("global", "read"),
    "STG": ("global", "write"),
    "ATOMG": ("global", "atomic"),
    "REDG": ("global", "atomic"),
    "RED": ("global", "atomic"),
    "LDGSTS": ("global", "async copy"),
    "LDS": ("shared", "read"),
    "LDSM": ("shared", "read"),
    "STS": ("shared", "write"),
    "STSM": ("shared", "write"),
    "ATOMS": ("shared", "atomic"),
}
_SASS = re.compile(r"(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z0-9]+)(?P<modifiers>(?:\.\w+)*)")


def profile(tool: Path, command: Sequence[str], sources: Sequence[Path]) -> list[KernelProfile]:
    """Profiles of the sources' kernels that the command launched.

    Raises:
        ToolchainError: no permission to read the counters, or ncu failed; the message has the remedy or its output.
    """
    names = "|".join(kernels_in(sources))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.ncu-rep")
        measure = ["--section", "SourceCounters", "--metrics", ",".join(METRICS), "--import-source", "yes"]
        chosen = ["--kernel-name", f"regex:^({names})$", "--target-processes", "all"]
        text = gpu_tools.output_of([tool, "--force-overwrite", "-o", report, *measure, *chosen, *command])
        if NOT_PERMITTED in text:
            raise ToolchainError(NO_PERMISSION)
        if not report.exists():
            if "No kernels were profiled" in text:
                return []
            last = "\n".join(text.strip().splitlines()[-8:])
            raise ToolchainError(f"ncu wrote no report:\n{last}")
        show = [tool, "--import", report, "--csv"]
        raw = gpu_tools.output_of([*show, "--page", "raw", "--print-units", "base"])
        by_line = gpu_tools.output_of([*show, "--page", "source", "--print-source", "cuda,sass"])
    lines = read_source(by_line, sources)
    return [
        replace(kernel, lines=lines[kernel.kernel]) if lines.get(kernel.kernel) else kernel for kernel in read_raw(raw)
    ]


def kernels_in(sources: Iterable[Path]) -> list[str]:
    """The names of the __global__ functions."""
    names: list[str] = []
    for source in sources:
        text = re.sub(r"//[^\n]*|__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)", "", source.read_text())
        names += re.findall(r"__global__\s+(?:[\w:]+\s+)*(\w+)\s*\(", text)
    return list(dict.fromkeys(names))


def _rows(text: str, first: str) -> list[list[str]]:
    """The CSV rows from the first one that begins with `first`; ncu prints messages before it."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(f'"{first}"')), None)
    return [] if start is None else list(csv.reader(line for line in lines[start:] if line.startswith('"')))


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


# ---- one row per launch


def read_raw(text: str) -> list[KernelProfile]:
    """Sums over launches of the same kernel with the same grid and block, in order of the first launch.

    Their lines are the kernel's four totals (global and shared, read and write), without a place.
    """
    rows = _rows(text, "ID")
    if len(rows) < 2:
        return []
    header, units = rows[0], rows[1]
    found: dict[tuple, list[dict[str, float]]] = defaultdict(list)
    for row in rows[2:]:
        cells = dict(zip(header, row, strict=False))
        key = kernel_name(cells["Kernel Name"]), _triple(cells["Grid Size"]), _triple(cells["Block Size"])
        found[key].append(
            {name: _number(cell) * UNITS.get(unit, 1) for name, unit, cell in zip(header, units, row, strict=False)}
        )
    return [_profile(*key, launches) for key, launches in found.items()]


def _triple(text: str) -> tuple[int, int, int]:
    x, y, z = (int(number) for number in re.findall(r"\d+", text)[:3])
    return x, y, z


def _profile(kernel: str, grid, block, launches: list[dict[str, float]]) -> KernelProfile:
    def total(*names: str) -> float:
        return sum(launch.get(name, 0.0) for launch in launches for name in names)

    lines = []
    for op, action in (("ld", "read"), ("st", "write")):
        requests, sectors = (int(total(GLOBAL.format(what, op))) for what in ("requests", "sectors"))
        lines.append(LineTraffic(None, "global", action, 4, requests, None, sectors, sectors))
        wavefronts, conflicts = int(total(SHARED_WAVEFRONTS.format(op))), int(total(SHARED_CONFLICTS.format(op)))
        requests = int(total(SHARED_REQUESTS.format(op)))
        lines.append(LineTraffic(None, "shared", action, 4, requests, None, wavefronts, max(0, wavefronts - conflicts)))
    first = launches[0]
    return KernelProfile(
        kernel,
        None,
        len(launches),
        grid,
        block,
        int(sum(first.get(name, 0.0) for name in SHARED_BYTES)),
        tuple(line for line in lines if line.requests),
        operations=Operations(int(sum(weight * total(name) for name, weight in FLOPS.items()))),
        registers=int(first.get(REGISTERS, 0)) or None,
        measured_seconds=total(TIME) or None,
        dram_bytes=total(*DRAM),
    )


# ---- the instructions of each line


def read_source(text: str, sources: Sequence[Path]) -> dict[str, tuple[LineTraffic, ...]]:
    """Kernel -> its lines. A CUDA row is the sum of the SASS rows below it, so only those are read.

    An instruction of an inlined function may be listed under lines of several files; it is counted in the student's.
    """
    sections = _sections(_rows(text, "File Path"))
    own = {source.name: source for source in sources}
    sections.sort(key=lambda section: Path(section[0]).name not in own)  # stable sort: keeps the order of launches
    home: dict[tuple[str, str], str] = {}  # (kernel, address) -> the file it is counted in
    found: dict[str, list[LineTraffic]] = defaultdict(list)
    for file, function, header, rows in sections:
        source = own.get(Path(file).name) or DEVICE_HEADERS / Path(file).name
        for line, row in _instructions(header, rows):
            kernel, address = kernel_name(function), row["Address"]
            if home.setdefault((kernel, address), file) == file and (traffic := _traffic(row)):
                found[kernel].append(replace(traffic, place=Place(str(source), line)))
    return {kernel: merged(lines) for kernel, lines in found.items()}


def _sections(rows: list[list[str]]) -> list[tuple[str, str, list[str], list[list[str]]]]:
    """(file, function, header, rows) for each file of each kernel."""
    sections: list[tuple[str, str, list[str], list[list[str]]]] = []
    file = function = ""
    for row in rows:
        if row[0] == "File Path":
            file = row[1]
        elif row[0] == "Function Name":
            function = row[1]
        elif row[0] == "Line No":
            # "Source" appears twice; the second is the instruction
            header = ["SASS" if name == "Source" and i > 1 else name for i, name in enumerate(row)]
            sections.append((file, function, header, []))
        elif sections:
            sections[-1][3].append(row)
    return sections


def _instructions(header: list[str], rows: list[list[str]]) -> Iterable[tuple[int, dict[str, str]]]:
    line = 0
    for row in rows:
        cells = dict(zip(header, row, strict=False))
        if cells["Line No"].isdigit():
            line = int(cells["Line No"])
        elif line and cells.get("SASS"):
            yield line, cells


def _traffic(cells: dict[str, str]) -> LineTraffic | None:
    """An executed load or store; None for other instructions."""
    match = _SASS.match(cells["SASS"].strip())
    kind = _OPCODES.get(match["opcode"]) if match else None
    requests = int(_number(cells.get("Instructions Executed", "")))
    if not match or not kind or not requests:
        return None
    space, action = kind
    names = ("L2 Theoretical Sectors Global", "L2 Theoretical Sectors Global Ideal")
    if space == "shared":
        names = ("L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal")
    transactions, ideal = (int(_number(cells.get(name, ""))) for name in names)
    matrices = match["opcode"] in ("LDSM", "STSM")  # each lane provides the address of a 16-byte row
    bits = re.search(r"\.U?S?(8|16|64|128)\b", ".128" if matrices else match["modifiers"])
    threads = cells.get("Predicated-On Thread Instructions Executed") or cells.get("Thread Instructions Executed")
    lanes = int(_number(threads)) if threads else None
    return LineTraffic(None, space, action, int(bits[1]) // 8 if bits else 4, requests, lanes, transactions, ideal)
