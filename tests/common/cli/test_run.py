"""python -m common.run: any program with a main(), and the message where there is none."""

import os
import shutil
import subprocess

import pytest
from forked_python import run_python

from common.cli.run import run_main

SAXPY = """
#include <cstdio>
#include <cstdlib>
__global__ void saxpy(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
int main(int argc, char** argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 100;
    float *x, *y, *h = (float*)malloc(2 * n * sizeof(float));
    for (int i = 0; i < n; ++i) h[i] = i;
    cudaMalloc(&x, n * sizeof(float));
    cudaMalloc(&y, n * sizeof(float));
    cudaMemcpy(x, h, n * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(y, h, n * sizeof(float), cudaMemcpyHostToDevice);
    saxpy<<<(n + 31) / 32, 32>>>(n, 2.0f, x, y);
    cudaMemcpy(h, y, n * sizeof(float), cudaMemcpyDeviceToHost);
    printf("last %g of %d arguments\\n", h[n - 1], argc);
    if (const char* number = getenv("LINE")) switch (atoi(number)) { /* PLACE */ }
    cudaFree(x), cudaFree(y);
    free(h);
    return argc > 2 ? 7 : 0;
}
"""


def write(folder, text=SAXPY, name="saxpy.cu"):
    file = folder / name
    file.write_text(text)
    return str(file)


@pytest.fixture(autouse=True)
def builds_here(tmp_path_factory, monkeypatch):
    monkeypatch.setattr("common.compiling.program.build_root", lambda: tmp_path_factory.getbasetemp() / "programs")


def run(capfd, *arguments, backend="simulator"):
    status = run_main(["--backend", backend, *arguments])
    out, err = capfd.readouterr()
    return status, out, err


@pytest.mark.parametrize("backend", ["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_program_gets_its_arguments_and_gives_its_status(saxpy, capfd, backend):
    assert run(capfd, saxpy, backend=backend)[:2] == (0, "last 297 of 1 arguments\n")
    assert run(capfd, saxpy, "50", "--check", "x", backend=backend)[:2] == (7, "last 147 of 4 arguments\n")
    assert run(capfd, saxpy, "--", "64", backend=backend)[:2] == (0, "last 189 of 2 arguments\n")


def test_as_a_command(tmp_path, root):
    done = run_python(["-m", "common.run", write(tmp_path), "10"], cwd=root, env=os.environ, timeout=120)
    assert (done.returncode, done.stdout) == (0, "last 27 of 2 arguments\n")


def test_a_change_of_a_header_is_noticed(tmp_path, capfd):
    file = write(tmp_path, '#include "n.h"\n#include <cstdio>\nint main() { printf("%d\\n", N); }\n')
    for n in (1, 2):
        (tmp_path / "n.h").write_text(f"#define N {n}\n")
        assert run(capfd, file)[:2] == (0, f"{n}\n")


def test_a_damaged_program_is_built_anew_and_said(tmp_path, tmp_path_factory, capfd):
    file = write(tmp_path, "int main() { return 3; }\n", "damaged.cu")
    for _ in range(2):
        status, _, err = run(capfd, file)
        assert status == 3 and "rebuilt" not in err
    (program,) = tmp_path_factory.getbasetemp().glob("programs/programs/simulator/damaged-*/damaged")
    program.write_bytes(program.read_bytes()[:100])
    status, _, err = run(capfd, file)
    assert status == 3 and "damaged is not as the last build left it: rebuilt" in err.replace("\n", " ")


def test_check_and_profile(tmp_path, capfd):
    file = write(tmp_path)
    status, out, _ = run(capfd, file, "--check", "100")
    assert status == 0 and "0 findings" in out
    wrong = write(tmp_path, SAXPY.replace("i < n", "i <= n"), "wrong.cu")
    status, out, err = run(capfd, "--check", wrong, "96")
    assert status == 0 and "0 findings" in out  # no thread is out of bounds
    page = tmp_path / "check.html"
    status, out, err = run(capfd, "--check", "--html", str(page), wrong, "100")
    assert "byte 400" in page.read_text() and "wrong.cu" in page.read_text()
    assert (
        status == 1
        and "1 finding:" in out  # memory that the program could not free after the error is no leak
        and "out of bounds in saxpy: byte 400" in out
        and "wrong.cu:6" in out
        and "error: out of bounds" in err
    )
    status, out, _ = run(capfd, "--profile", "--html", str(page), file, "128")
    assert "coalesced" in page.read_text()
    assert status == 0 and "saxpy" in out and "coalesced" in out and "1.54 KB moved" in out


def test_the_gpu_asked_for_and_none_there(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("common.compiling.toolchain.find_gpu", lambda: None)
    monkeypatch.setattr("common.compiling.toolchain.driver_gpu_name", lambda: "")
    assert run_main(["--backend", "cuda", write(tmp_path)]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "--backend cuda runs the program on a GPU, and there is none; without it the simulator runs it" in said


def test_what_cannot_be_run(tmp_path, capfd, monkeypatch):
    assert run(capfd, str(tmp_path / "none.cu"))[::2] == (
        2,
        f"backend: simulator (asked for with --backend)\n{tmp_path}/none.cu: no such file\n",
    )
    status, _, err = run(capfd, write(tmp_path, "__global__ void k() {}\n// int main()\n", "kernel.cu"))
    assert status == 2 and "kernel.cu has no main()" in err
    (tmp_path / "latin.cu").write_bytes(SAXPY.encode() + b"// Gr\xf6\xdfe\n")
    status, _, err = run(capfd, str(tmp_path / "latin.cu"))
    assert status == 2 and "latin.cu:24: byte 0xf6 is not UTF-8" in err
    status, _, err = run(capfd, write(tmp_path, SAXPY.replace("a * x[i]", "b * x[i]"), "typo.cu"))
    assert status == 2 and "typo.cu:6: error" in err and "'b'" in err.replace("‘", "'").replace("’", "'")
    monkeypatch.setenv("CXX", "no-such-compiler")
    status, _, err = run(capfd, write(tmp_path))
    assert status == 2 and "CXX=no-such-compiler: no such compiler on PATH" in err


ENDINGS = [
    ('printf("%g\\n", y[3]);', "host code uses device memory, byte 12 of the 400 bytes of cudaMalloc at {file}:13"),
    ("y[3] = 1;", "host code uses device memory, byte 12 of the 400 bytes"),
    ("saxpy<<<1, 1>>>(1, 2.0f, x, h);", "{file}:19: argument 4 of saxpy is a pointer to host memory"),
    ("saxpy<<<1, 2000>>>(1, 2.0f, x, y); throw cudaGetLastError();", "error: the program ended itself"),
    ("*(volatile int*)8 = 1;", "host code failed: Segmentation fault\n  at {file}:19 in main"),
]
CODES = [
    ("cudaMemcpy(h, y, 404, cudaMemcpyDeviceToHost)", 1, "404 bytes come from byte 0 of the 400 bytes that were"),
    ("cudaMemcpy(y + 50, h, 204, cudaMemcpyHostToDevice)", 1, "204 bytes go to byte 200 of the 400 bytes"),
    ("cudaMemcpy(y, h, 4, cudaMemcpyDeviceToHost)", 1, "but the address is that of device memory"),
    ("cudaMemcpy(y, h, 4, cudaMemcpyDeviceToDevice)", 1, "goes from device memory, says its kind, but the address is"),
    ("cudaMemset(y + 99, 0, 8)", 1, "8 bytes are set from byte 396"),
    ("(saxpy<<<1, 2000>>>(1, 2.0f, x, y), cudaGetLastError())", 1, "a block has at most 1024 threads"),
    ("cudaMemcpy(y + 99, h, 4, cudaMemcpyHostToDevice)", 0, ""),
    ("cudaMemcpy(y, x, 400, cudaMemcpyDefault)", 0, ""),
]
REFUSED_BY_A_GPU = ["cudaMemcpy(h, y, 400 << 20, cudaMemcpyDeviceToHost)", "cudaMemset(y, 0, 400 << 20)"]
CALLS = [call for call, *_ in CODES] + REFUSED_BY_A_GPU
LINES = [f'printf("code %d\\n", (int){call});' for call in CALLS] + [line for line, _ in ENDINGS]


@pytest.fixture(scope="module")
def saxpy(tmp_path_factory) -> str:
    """One program for all tests of its behavior: $LINE selects which of LINES runs; each is on line 19."""
    cases = " ".join(f"case {number}: {{ {line} }} break;" for number, line in enumerate(LINES))
    return write(tmp_path_factory.mktemp("saxpy"), SAXPY.replace("/* PLACE */", cases))


@pytest.mark.parametrize("line, said", ENDINGS)
def test_what_ends_a_program(saxpy, capfd, monkeypatch, line, said):
    monkeypatch.setenv("LINE", str(LINES.index(line)))
    status, out, err = run(capfd, saxpy)
    assert status == 1 and said.format(file=saxpy) in err and out == "last 297 of 1 arguments\n"


@pytest.mark.parametrize("call, code, said", CODES)
def test_what_an_error_code_is_about_is_said(saxpy, capfd, monkeypatch, call, code, said):
    monkeypatch.setenv("LINE", str(CALLS.index(call)))
    status, out, err = run(capfd, saxpy)
    assert status == 0 and f"code {code}\n" in out and said in err and ("simulator:" in err) == bool(code)


@pytest.mark.gpu
@pytest.mark.parametrize("call", REFUSED_BY_A_GPU)
def test_a_gpu_refuses_them_too(saxpy, capfd, monkeypatch, call):
    monkeypatch.setenv("LINE", str(CALLS.index(call)))
    assert "code 1\n" in run(capfd, saxpy, backend="cuda")[1]


@pytest.mark.parametrize(
    "change, said",
    [
        (("a * x[i]", "a * rand()"), "saxpy runs on the device, where there is no rand()"),
        (
            ("a * x[i] + y[i];\n}", "twice(x[i]);\n}"),
            "saxpy runs on the device and calls twice(), which is a host function: write __device__ before its "
            "definition in line 1",
        ),
    ],
)
def test_host_functions_in_kernels(tmp_path, capfd, change, said):
    text = "inline float twice(float v) { return 2 * v; }" + SAXPY.replace(*change)
    status, _, err = run(capfd, write(tmp_path, text))
    assert status == 2 and f"saxpy.cu:6: {said}" in err
    if shutil.which("nvcc"):
        done = subprocess.run(["nvcc", "-c", "-o", "/dev/null", tmp_path / "saxpy.cu"], capture_output=True, text=True)
        assert done.returncode != 0 and "calling a __host__ function" in done.stdout + done.stderr
