"""Compares the checked build's counters with Nsight Compute's; needs a GPU, ncu, nvcc and g++.

python tests/helpers/compare_ncu.py

Runs every kernel of kernels.cu once under ncu and once in the simulator. The table lists requests and transactions from
both where they differ; ncu has no request counts for shared memory.
"""

import csv
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from checked_library import PROFILE, CheckedLibrary, totals
from expected_counters import EXPECTED
from simulator_library import ROOT, compile_library

from common.compiling import toolchain

KERNELS = ROOT / "tests" / "common" / "simulator" / "counters" / "kernels.cu"
METRICS = {
    "global read": (
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    ),
    "global write": (
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    ),
    "shared read": (None, "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"),
    "shared write": (None, "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"),
}


def measured(folder: Path) -> dict[str, dict[str, tuple[int | None, int]]]:
    """ncu's counters: name -> {what: (requests, transactions)}."""
    driver = folder / "driver.cu"
    calls = "\n".join(f'    run("{name}", {name}());' for name in EXPECTED)
    driver.write_text(
        "#include <cstdio>\n#include <cstdlib>\n"
        + "".join(f'extern "C" const char* {name}();\n' for name in EXPECTED)
        + "static void run(const char* name, const char* error) {\n"
        '    if (error) { printf("%s: %s\\n", name, error); exit(1); }\n}\n'
        f"int main() {{\n{calls}\n}}\n"
    )
    program = folder / "kernels"
    nvcc = toolchain.find_nvcc()
    command = [nvcc.path, "-std=c++20", "-O3", "-arch=native", f"-I{ROOT}", KERNELS, driver, "-o", program]
    subprocess.run(command, check=True)
    names = ",".join(metric for pair in METRICS.values() for metric in pair if metric)
    ncu = shutil.which("ncu") or str(nvcc.home / "bin" / "ncu")
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--metrics", names, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    start = done.stdout.find('"ID"')
    if start < 0:
        raise SystemExit(f"ncu measured nothing:\n{done.stdout}\n{done.stderr}")
    rows = [row for row in csv.DictReader(io.StringIO(done.stdout[start:])) if row["ID"].isdigit()]

    def number(row: dict[str, str], metric: str | None) -> int | None:
        return None if metric is None else round(float(row[metric].replace(",", "")))

    return {
        name: {what: (number(row, pair[0]), number(row, pair[1])) for what, pair in METRICS.items()}
        for name, row in zip(EXPECTED, rows, strict=True)
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        gpu = measured(Path(folder))
        library = CheckedLibrary(compile_library([KERNELS], Path(folder) / "checked", checked=True))
        lines = ["| kernel | what | requests: ours, ncu | transactions: ours, ncu |", "|---|---|---|---|"]
        different: set[str] = set()
        for name in EXPECTED:
            (kernel,) = library.run(name, PROFILE)[1]["kernels"]
            ours = totals(kernel)
            for what, (requests, transactions) in gpu[name].items():
                mine = ours.get(what, (0, 0))
                if mine[1] != transactions or (mine != (0, 0) and requests not in (None, mine[0])):
                    different.add(name)
                    lines.append(f"| {name} | {what} | {mine[0]}, {requests} | {mine[1]}, {transactions} |")
    print(*(lines if different else []), sep="\n")
    print(f"{len(EXPECTED) - len(different)} of {len(EXPECTED)} kernels agree in every counter.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
