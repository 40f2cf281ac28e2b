"""Macros that assemble asm statements, expanded as the preprocessor does."""

import pytest

from common.simulator.macros import expanded
from common.simulator.ptx import PtxError
from common.simulator.rewriter import rewrite
from common.simulator.text import blanked


def made(text: str) -> str:
    return expanded(text, blanked(text))


def test_names_lists_and_numbers_are_put_together():
    text = (
        '#define LIST(n) "+f"(d[n]), "+f"(d[n + 1])\n'
        '#define NAMES_2 "%0, %1"\n'
        "#define ADD(N, type, i) \\\n"
        '    asm volatile("add." type " {" NAMES_##N "}, %" #i ", m" #N ";" : LIST(0) : "r"(x))\n'
        "#define BOTH(...) ADD(2, __VA_ARGS__)\n"
        'void f() { BOTH("f32", 2); }\n'
    )
    result = made(text)
    assert result.count("\n") == text.count("\n")
    last = result.splitlines()[-1].replace('" "', "").replace('"  "', "")
    assert 'asm volatile("add.f32 {%0, %1}, %2, m2;"' in " ".join(last.split())
    assert '"+f"(d[0]), "+f"(d[0 + 1])' in last


def test_what_can_be_read_stays():
    text = '#define FENCE() asm volatile("membar.gl;" ::: "memory")\nvoid f() { FENCE(); }\n'
    assert made(text) == text


def test_lines_stay_where_they_are():
    text = '#define DO(a, \\\n  b) asm(a b)\nvoid f() {\n  DO("membar",\n     ".gl;");\n}\nint last;\n'
    result = made(text)
    assert result.splitlines().index("int last;") == text.splitlines().index("int last;")
    assert 'asm("membar" ".gl;")' in result


def test_the_rewriter_reads_what_they_make():
    text = (
        '#define RED(op) asm("red.global." #op ".u32 [%0], %1;" :: "l"(p), "r"(x))\n'
        "__global__ void f(unsigned* p, unsigned x) { RED(max); }\n"
    )
    assert "atomicMax(" in rewrite(text, "f.cu")
    with pytest.raises(Exception, match=r"does not know the PTX instruction red\.global\.mix\.u32"):
        rewrite(text.replace("RED(max)", "RED(mix)"), "f.cu")
    assert issubclass(PtxError, ValueError)
