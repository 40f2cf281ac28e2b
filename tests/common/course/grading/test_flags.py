"""Words that a human should look at: found with their line, not in comments, not in what is right, in linear time."""

from __future__ import annotations

import time

import pytest

from common.compiling.manifest import tasks
from common.course.grading.attacking import attacks_in, solution
from common.course.grading.flags import MOST, flags_of

CUDA = {
    'void* f = dlsym(RTLD_DEFAULT, "f");': "dlsym",
    'PyRun_SimpleString("");': "PyRun_SimpleString",
    "at::softmax(x, 0);": "at::softmax",
    "__attribute__((constructor)) static void f() {": "__attribute__((constructor",
    "#ifdef CUDA_SIMULATOR": "CUDA_SIMULATOR",
    'fopen("/proc/self/maps", "r");': "/proc/",
    "std::thread t(f);": "std::thread",
    "__attribute__((no_sanitize_coverage)) void f();": "no_sanitize_coverage",
}
PYTHON = {
    "from common.reference.oracle import attention": "common.reference.oracle",
    "torch.nn.functional.scaled_dot_product_attention(q, k, v)": "scaled_dot_product_attention",
    "sys._getframe()": "_getframe",
    "os._exit(0)": "os._exit",
    "open('x')": "open",
}


@pytest.mark.parametrize(("line", "word"), CUDA.items())
def test_cuda(line: str, word: str) -> None:
    assert f"task3/x.cu:2 says {word}" in flags_of({"task3/x.cu": f"\n{line}\n"})
    assert not flags_of({"task3/x.cu": f"// {line}\n/* {line} */\n"})


@pytest.mark.parametrize(("line", "word"), PYTHON.items())
def test_python(line: str, word: str) -> None:
    assert f"task3/x.py:2 says {word}" in flags_of({"task3/x.py": f"\n{line}\n"})
    assert not flags_of({"task3/x.py": f'# {line}\n"""\n{line}\n"""\n'})


@pytest.mark.parametrize("task", tasks())
def test_the_solution_has_none(task: str) -> None:
    assert flags_of(solution(task)) == []


def test_what_calls_python_or_the_loader_from_a_launcher_is_flagged(tmp_path) -> None:
    (attack,) = [one for _, one in attacks_in("cheats") if one.name == "PyTorch's softmax through Python"]
    attack.write(tmp_path)
    files = {"task3/online_softmax.cu": (tmp_path / "task3" / "online_softmax.cu").read_text()}
    said = " ".join(flags_of(files))
    assert "says dlsym" in said and "says Py" in said


@pytest.mark.parametrize("unit", ["\n", "/*", '"""', "Py", "PyA ", "__attribute__", "os.", "simulator_"])
def test_a_file_of_the_largest_size_takes_no_time(unit: str) -> None:
    begun = time.process_time()
    for name in ("task3/x.cu", "task3/x.py"):
        assert len(flags_of({name: unit * ((1 << 20) // len(unit))})) <= MOST
    assert time.process_time() - begun < 5
