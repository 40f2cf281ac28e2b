"""Which calls in kernels are rejected, and which are not host functions."""

import pytest

from common.simulator.device_calls import definitions, host_calls
from common.simulator.rewriter import rewrite
from common.simulator.text import blanked


def calls(text: str) -> list[str]:
    return [message.split(":")[0] for _, message in host_calls(blanked(text))]


KERNEL = "__global__ void k(int* p) {{ {} }}\n"


@pytest.mark.parametrize(
    "text",
    [
        "__device__ int f(int i) { return i; }\n" + KERNEL.format("p[0] = f(1);"),
        "__host__ __device__ int f(int i) { return i; }\n" + KERNEL.format("p[0] = f(1);"),
        "constexpr int f(int i) { return i; }\n" + KERNEL.format("p[0] = f(1);"),
        "#define HD __host__ __device__\nHD int f(int i) { return i; }\n" + KERNEL.format("p[0] = f(1);"),
        "int f(int i) { return i; }\n__device__ int f(float x) { return x; }\n" + KERNEL.format("p[0] = f(1);"),
        "int f(int i) { return i; }\n" + KERNEL.format("auto f = [](int i) { return i; }; p[0] = f(1);"),
        "int f(int i) { return i; }\nstruct S { __device__ int f(int i) { return i; } };\n"
        + KERNEL.format("S s; s.f(1);"),
        "int f(int i) { return i; }\nint main() { return f(1); }\n" + KERNEL.format("p[0] = 1;"),
        "int f(int i) { return i; }\n__host__ __device__ int g(int i) { return f(i); }\n"
        + KERNEL.format("p[0] = g(1);"),
        "struct T { T(int i) : i(i) {} int i; };\n" + KERNEL.format("T f(1); // f(2)\n p[0] = f.i;"),
        KERNEL.format('printf("rand() %d", 1); /* rand() */ timeless(p);'),
        "__device__ int rand() { return 4; }\n" + KERNEL.format("p[0] = rand();"),
        KERNEL.format("Clock time(3); p[0] = time.now();"),
    ],
)
def test_accepted(text):
    assert calls(text) == []


@pytest.mark.parametrize(
    "text, caller",
    [
        (KERNEL.format("p[0] = rand() % 5;"), "k"),
        (KERNEL.format("p[0] = std::rand();"), "k"),
        ("int f(int i) { return i; }\n" + KERNEL.format("p[0] = f(1);"), "k"),
        ("namespace a {\nstatic inline int f(int i) { return i; }\n" + KERNEL.format("p[0] = f(1);") + "}", "k"),
        ("template <typename T> T f(T i) { return i; }\n" + KERNEL.format("p[0] = f<int>(1);"), "k"),
        ("int f(int i) { return i; }\n__device__ int g(int i) {\n  if (i) { return f(i); }\n return 0; }\n", "g"),
    ],
)
def test_refused(text, caller):
    (message,) = calls(text)
    assert message.startswith(f"{caller} runs on the device")


def test_definitions():
    found = definitions(
        "namespace n { struct S { int m() { return 1; } }; int f() { if (1) { } return 2; } }\n"
        "template <int N> __global__ void __launch_bounds__(256) k(int (*p)[N]) { }\nint x = g(3);\nenum E { a };\n"
        '[[nodiscard("a")]] int h() { return 1; }\n'
    )
    assert [(one.name, one.is_member, one.on_device) for one in found] == [
        ("m", True, False),
        ("f", False, False),
        ("k", False, True),
        ("h", False, False),
    ]


TAIL = """__global__ void sum(float* in) {{
  {volatile} float* s = in;
  int t = threadIdx.x;
  if (t < 32) {{
    s[t] += s[t + 32];
    s[t] += s[t + 16];
    s[t] += s[t + 8];
  }}
}}
"""


def test_a_tail_for_lanes_in_step_is_pointed_at():
    assert "GCC warning" in rewrite(TAIL.format(volatile="volatile"), "sum.cu").splitlines()[7]
    assert "GCC warning" not in rewrite(TAIL.format(volatile=""), "sum.cu")
    assert "GCC warning" not in rewrite(
        TAIL.format(volatile="volatile").replace(";\n    s", "; __syncwarp();\n    s"), "s.cu"
    )
