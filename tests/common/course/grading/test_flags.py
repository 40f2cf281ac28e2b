"""Words that a human should look at: found with their line, not in comments, and not in what is right."""

from __future__ import annotations

import pytest

from common.compiling.manifest import tasks
from common.course.grading.attacking import attacks_in, solution
from common.course.grading.flags import flags_of

CUDA = {
    '#include "../task3/solution/x.cu"': "includes what the handout does not name",
    'void* f = dlsym(RTLD_DEFAULT, "f");': "calls the dynamic loader",
    'PyRun_SimpleString("");': "speaks of Python",
    "at::softmax(x, 0);": "speaks of PyTorch's C++ side",
    'asm volatile("syscall");': "has inline assembler for the host",
    'system("ls");': "starts programs",
    "_exit(0);": "ends the process",
    "__attribute__((constructor)) static void f() {": "runs before or after everything else",
    "#ifdef CUDA_SIMULATOR": "speaks of the simulator",
    "mprotect(x, 1, 1);": "changes what memory may be used",
    'fopen("/proc/self/maps", "r");': "opens files or sockets",
    "std::thread t(f);": "starts threads of the host",
    "cudaMemcpy(a, b, 1, cudaMemcpyDeviceToHost);": "copies to the host",
    "__attribute__((no_sanitize_coverage)) void f();": "keeps its work from being counted",
    "static std::map<int, int> kept;": "keeps something between calls",
}
PYTHON = {
    "import numpy": "imports more than PyTorch",
    "from common.reference.oracle import attention": "imports the oracle, or another task",
    "torch.nn.functional.scaled_dot_product_attention(q, k, v)": "calls PyTorch's own attention",
    "sys._getframe()": "looks at frames, modules or memory",
    "exec('x')": "runs text as code",
    "os._exit(0)": "ends the process",
    "open('x')": "opens files, sockets or programs",
    "except BaseException:": "catches everything",
}


@pytest.mark.parametrize(("line", "words"), CUDA.items())
def test_cuda(line: str, words: str) -> None:
    assert any(found.startswith(f"task3/x.cu:2 {words}: ") for found in flags_of({"task3/x.cu": f"\n{line}\n"}))
    assert not flags_of({"task3/x.cu": f"// {line}\n/* {line} */\n"})


@pytest.mark.parametrize(("line", "words"), PYTHON.items())
def test_python(line: str, words: str) -> None:
    assert any(found.startswith(f"task3/x.py:2 {words}: ") for found in flags_of({"task3/x.py": f"\n{line}\n"}))
    assert not flags_of({"task3/x.py": f"# {line}\n"})


@pytest.mark.parametrize("task", tasks())
def test_the_solution_has_none(task: str) -> None:
    assert flags_of(solution(task)) == []


def test_what_calls_python_or_the_loader_from_a_launcher_is_flagged(tmp_path) -> None:
    (attack,) = [one for _, one in attacks_in("cheats") if one.name == "PyTorch's softmax through Python"]
    attack.write(tmp_path)
    files = {"task3/online_softmax.cu": (tmp_path / "task3" / "online_softmax.cu").read_text()}
    said = " ".join(flags_of(files))
    assert "calls the dynamic loader" in said and "speaks of Python" in said
