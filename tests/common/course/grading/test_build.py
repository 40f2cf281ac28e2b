"""What the build rejects without a compiler; the rest is in tests/cheats."""

import importlib
import struct
import subprocess
import sys

import pytest
import torch

from common.compiling import toolchain
from common.compiling.objects import compile_objects
from common.compiling.result import BuildError
from common.course.grading import at_work, build
from common.course.grading.elf import Elf
from common.course.grading.hidden import hidden_cases
from common.simulator import rewriter
from common.simulator.api_names import read_names, refusal

HEADER = "int one;  // a comment\n  #define TWO(a, b) a + \\\n    b /* and\nmore */\n\nint three;\n"


@pytest.fixture
def look(tmp_path):
    own, header = tmp_path / "own.cu", tmp_path / "include" / "header.h"
    header.parent.mkdir()
    own.touch()
    header.write_text(HEADER)

    def look(text: str) -> None:
        text = text.replace("HEADER", str(header)).replace("OWN", str(own))
        begin = f'# 0 "{own}"\n# 0 "<built-in>"\n#define __unix__ 1\n# 1 "{own}"\n'
        build._look_at_names(begin + text, {own}, (header.parent,))

    return look


@pytest.mark.parametrize(
    "text",
    [
        '# 1 "HEADER" 1\nint one;  // a comment\n#define TWO(a,b) a + b\n\n\n\nint three;\n# 2 "OWN" 2\nint mine;\n',
        '# 6 "HEADER" 1\nint three;\n# 2 "OWN" 2\n',
        "int mine;\n",
    ],
)
def test_what_headers_hold_is_theirs(look, text):
    look(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('# 6 "HEADER"\nint four;\n', "has no such line 6"),
        ('# 1 "HEADER"\nint three;\n', "has no such line 1"),
        ('# 60 "HEADER"\nint three;\n', "has no such line 60"),
        ('# 2 "HEADER"\n#define TWO(a,b) b\n', "has no such line 2"),
        ('# 2 "HEADER"\n#define TWO(a,b) a +\n', "has no such line 2"),
        ('# 1 "<built-in>"\nint mine;\n', "has no such line 1"),
        ('# 1 "/proc/self/status" 1\nName: cc1plus\n', "is no header of the course"),
        ('# 1 "nowhere.h" 1\n', "is no header of the course"),
    ],
)
def test_no_line_passes_for_a_headers(look, text, says):
    with pytest.raises(BuildError, match=says):
        look(text)


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("#pragma GCC unroll 8", True),
        ("  #pragma unroll", True),
        ("#pragma nv_diag_suppress 177", True),
        ("#pragma GCC optimize(3)", False),
        ("#pragma redefine_extname one two", False),
        ("#pragma weak one = two", False),
        ('#ident "x"', False),
        ('%:ident "x"', False),
        ("#pragma unrolled", False),
        ("#pragma region helpers", True),
        ('#pragma message("hello")', True),
        ("#pragma pack(push, 4)", True),
        ("#pragma pack(pop)", True),
        ("#pragma pack(push, name)", False),
    ],
)
def test_directives_that_may_be_left(line, left):
    match = next(build._TOKEN.finditer(line))
    assert match["directive"] and bool(build._PRAGMA.fullmatch(match[0])) is left


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("/* Plan\n# 1. scores\n*/", False),
        ("#define A 1", False),
        ("#line 3", True),
        ('# 1 "elsewhere.h"', True),
        ("*/ %: 1 NAME", True),
        ('# 1 /*\n*/ "elsewhere.h"', True),
        ("# /**/ 1", True),
        ("#/*\n" * 100_000, True),
        ("# 1" + "1" * 1_000_000, False),
    ],
)
def test_lines_are_not_renumbered(text, refused):
    assert bool(build.LINE_NUMBERS.search(text)) is refused


def test_pieces_are_joined_within_statements():
    pieces = [(1, "own", "float m = -"), (1, "own", "(inf())"), (1, "own", ";"), (2, "headers", ""), (3, "headers", "")]
    pieces += [(9, "own", "int a;"), (10, "own", "#pragma unroll"), (9, "own", "for (;;);"), (500, "own", "int b;")]
    assert build._joined(pieces, ["#include <x>"]) == (
        '\n#line 1 "own"\nfloat m = - (inf()) ;\n#include <x>\n#line 9 "own"\nint a;\n#pragma unroll\nfor (;;);'
        '\n#line 500 "own"\nint b;'
    )


@pytest.mark.slow
def test_a_compiler_that_works_too_long_is_ended_and_its_caller_is_not(tmp_path):
    own = tmp_path / "own.cpp"
    own.write_text(
        "#include <utility>\ntemplate <int N> struct Sum { static constexpr int of() { int s = N;"
        " for (int i = 0; i < 30000; ++i) s ^= i; return s; } static constexpr int value = of(); };\n"
        "template <int... I> constexpr int all(std::integer_sequence<int, I...>) { return (Sum<I>::value ^ ...); }\n"
        "int result = all(std::make_integer_sequence<int, 20000>());\n"
    )
    code = (
        "import sys\nfrom common.course.grading import build\nbuild.limit_compilers(1)\n"
        "while build.os.times()[0] < 2: pass\n"
        "try: build._run([build.toolchain.host_compiler(), '-std=c++20', '-c', sys.argv[1], '-o', '/dev/null'])\n"
        "except build.CompilerFailed as error: print(bool(build._TOO_LONG.search(str(error))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, own], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_decoding_is_no_product_of_matrices():
    cache = torch.empty(3, 2, 100, 64)
    rest = 2 * cache.numel() + torch.empty(3, 4, 1, 64).numel() * 2
    query, queries = torch.empty(3, 4, 1, 64), torch.empty(3, 4, 20, 64)
    one = at_work.allowed({"query": query, "k_cache": cache, "v_cache": cache}, query)
    many = at_work.allowed({"query": queries, "key": cache, "value": cache}, queries)
    assert one == at_work.MOST_FOR_A_NUMBER * rest
    assert many == at_work.MOST_FOR_PRODUCTS * (2 * cache.numel() + 2 * 3 * 4 * 20 * 64)


# Multiply-adds, copies or visits of one element by a program without threads, given the inputs
STEPS = {
    "softmax": lambda x: 3 * x.numel(),
    "merge": lambda outs, lse: outs.numel(),
    "scores": lambda query, key: query.numel() * key.size(-2),
    "output": lambda weights, value: weights.numel() * value.size(-1),
    "gemm": lambda a, b: a.numel() * (b.numel() // b.size(0) // a.size(-1)),
    "attention": lambda query, key, value: 2 * query.numel() * key.size(-2),
    "full": lambda query, key, value: 2 * query.numel() * key.size(-2),
    "causal": lambda query, key, value: query.numel() * key.size(-2),
    "window": lambda query, key, value: 2 * query.numel() * 37,
    "blocks": lambda query, key, value, block_mask: 2 * query.numel() * key.size(-2) * block_mask.float().mean().item(),
    "update": lambda k_cache, v_cache, key, value, positions: key.numel() + value.numel(),
    "decode": lambda query, k_cache, v_cache, lengths: 2 * query[0].numel() * lengths.sum().item(),
}


@pytest.mark.parametrize("task", [f"task{i}" for i in range(1, 7)])
def test_no_thread_may_do_all_the_work(task):
    public = importlib.import_module(f"{task}.cases").cases()
    for seed in range(20):
        bounded = (one.case for one in hidden_cases(task, public, seed) if one.bounded)
        for case in (one for one in bounded if one.part in STEPS):
            inputs = case.inputs(torch.Generator().manual_seed(seed))
            out = None if case.in_place else case.reference(**inputs)
            # a load, an operation and a store or another operation take at least 14 bytes, without any loop
            least = 14 * STEPS[case.part](**inputs)
            assert least > at_work.allowed(inputs, out, case.in_place), (case.part, case.name)


def test_blocks_are_those_of_calls_of_the_counter_and_known_by_their_kernels(tmp_path):
    own, counter, library = tmp_path / "own.cpp", tmp_path / "counter.cpp", tmp_path / "own.so"
    own.write_text(
        'extern "C" void f(float* y, volatile int* spot) {\n    spot[-6] = NUMBER;  // e8, NUMBER: as in a call\n'
        "    for (int i = 0; i < 64; ++i) y[i * 17] = y[i * 31] * 1.5f;\n}\n"
        'extern "C" void g(float* y) {\n    while (*y > 1) *y /= 2;\n}\n'
    )
    counter.write_text(f'extern "C" __attribute__((visibility("hidden"))) void {build.COUNTER}() {{}}\n')

    def run(*command: object) -> None:
        subprocess.run([*map(str, (toolchain.host_compiler(), "-O2", "-fPIC", *command))], check=True)

    def blocks(number: int, *kernels: str) -> tuple[Elf, list[int]]:
        run("-c", counter, "-o", counter.with_suffix(".o"))
        run("-c", "-fsanitize-coverage=trace-pc", f"-DNUMBER={number}", own, "-o", own.with_suffix(".o"))
        subprocess.run(["objcopy", f"--rename-section=.text={build.CODE}", own.with_suffix(".o")], check=True)
        run("-shared", own.with_suffix(".o"), counter.with_suffix(".o"), "-o", library)
        elf = Elf(library.read_bytes())
        return elf, build._blocks(elf, library, [one.value for one in elf.symbols if one.name in kernels])

    elf, before = blocks(0x22222222, "f", "g")
    (text,) = (one for one in elf.sections if one.name == build.CODE)
    (place,) = (one.value for one in elf.symbols if one.name == build.COUNTER)
    after = text.address + text.data.index(b"\xe8" + struct.pack("<I", 0x22222222)) + 5
    assert len(before) > 1 and blocks(place - after, "f", "g")[1] == before
    of_f = {one >> 32: one & build.ASTRAY for one in blocks(0x22222222, "f")[1]}
    known = {one >> 32: one & build.ASTRAY for one in before}
    (end,) = {one.value for one in elf.symbols if one.name == "g"}
    assert build.ASTRAY not in known.values() and end in range(min(known), max(known))
    assert of_f == {at: size if at < end else build.ASTRAY for at, size in known.items()}  # no kernel calls g


@pytest.mark.slow
@pytest.mark.skipif(not toolchain.find_nvcc(), reason="the names of CUDA's functions are in its headers")
def test_kernels_may_call_every_function_that_the_simulator_has(tmp_path):
    calls = ["keep(clock()), keep(clock64());"]
    functions = ("norm", "abs", "arg", "exp", "log", "log10", "sqrt", "sin", "cosh", "atan", "acosh", "proj")
    for kind in ("float", "double"):
        each = "".join(f", keep({one}(z))" for one in functions)
        calls.append(f"auto& z = any<cuda::std::complex<{kind}>>(); keep(z * z), keep(z / z), keep(pow(z, z)){each};")
    for one in read_names():
        if one.section.startswith(("math", "device")) and not refusal(one.name):
            call = f"{one.name}({', '.join(f'any<{kind}>()' for kind in one.parameters.split(', ') if kind)})"
            calls.append(f"{call};" if one.result == "void" else f"keep<{one.result}>({call});")
    assert len(calls) > 1000
    headers = "cuda_runtime.h cuComplex.h cuda_bf16.h cuda_fp8.h cuda_pipeline.h cuda/std/complex"
    lines = [f"#include <{one}>" for one in headers.split()]
    lines += ["template <typename T> T& any();", "template <typename T> void keep(const T&);"]
    lines += [f"__global__ void kernel_{i}() {{ {call} }}" for i, call in enumerate(calls)]
    own = tmp_path / "own.cpp"
    own.write_text("\n".join(lines))
    flags = [*rewriter.CXX_FLAGS, *rewriter.COUNTED_FLAGS, "-fPIC", "-w", f"-I{rewriter.INCLUDE_DIR}"]
    objects = compile_objects([(own, flags), *rewriter.runtime_jobs(checked=False)])
    made, *runtime = (Elf(one.path.read_bytes()) for one in objects)
    left = made.undefined().difference(build.REPLACED, build._functions_of_gpus(), *(one.defined() for one in runtime))
    assert [one for one in left if not one.startswith(("_Z3any", "_Z4keep"))] == []
