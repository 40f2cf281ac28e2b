"""What a human should look at in a submission: flags_of(files) -> sentences. They change no points.

They are words in a text, so honest code can have them and dishonest code can do without.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PYTHON_WORDS = re.compile(r'"""(?:.|\n)*?"""|#[^\n]*')
_INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
_USUAL = re.compile(
    r"(common/cuda/(?!flash_)[\w.]+|task\d/(given/)?[\w.]+\.(h|cuh)|attention_tiles\.cuh|tiles\.h|"
    r"cuda_\w+\.h|cooperative_groups(/\w+)?\.h|mma\.h|cuda/\w+|cub/[\w./]+|math_constants\.h|"
    r"c?(math|float|stdint|stddef|limits|assert|stdio|string)(\.h)?|algorithm|limits|type_traits|utility|array|tuple)$"
)
_IN_CUDA = {
    "calls the dynamic loader": r"\b(dlsym|dlopen|dlmopen|dladdr|dl_iterate_phdr)\b",
    "speaks of Python": r"\bPy[A-Z]\w+|\bPython\.h\b|\bpybind11\b",
    "speaks of PyTorch's C++ side": r"\b(at|torch|c10|aten)::|\bATen\b|\baoti_torch_\w+",
    "has inline assembler for the host": r"\basm\s*(volatile|goto)?\s*\(\s*\"(?!\s*[{@%]*[\w{@%.]*(\.\w+|;))",
    "starts programs": r"\b(system|popen|fork|vfork|clone|execl|execv\w*|posix_spawn\w*)\s*\(",
    "ends the process": r"\b(_?exit|_Exit|quick_exit|abort|atexit|raise|kill)\s*\(",
    "runs before or after everything else": r"__attribute__\s*\(\(\s*(constructor|destructor)|\binit_array\b",
    "speaks of the simulator": r"\bsimulator(_|::|\b)|\bCUDA_SIMULATOR\b|\bSIMULATOR_\w+|__tsan_|__sanitizer_",
    "changes what memory may be used": r"\b(mprotect|mmap|process_vm_\w+|ptrace|sigaction|signal)\s*\(",
    "opens files or sockets": r"\b(fopen|open|openat|socket|connect|ifstream|ofstream|fstream)\s*[({]|/proc/",
    "starts threads of the host": r"\bstd::(thread|async)\b|\bpthread_create\b",
    "copies to the host": r"\bcudaMemcpyDeviceToHost\b",
    "keeps its work from being counted": r"\bno_sanitize\w*|#\s*pragma\s+GCC\s+(?:optimize|push_options)",
    "keeps something between calls": r"^\s*static\s+(?!(?:__\w+__|inline|const\w*)\b)[\w:<>,\s*&]+?[=;{]",
}
_IN_PYTHON = {
    "imports more than PyTorch": r"^\s*(?:import|from)\s+"
    r"(?!torch|math\b|typing|__future__|common\.|task\d|dataclasses|functools|collections)(\w+)",
    "imports the oracle, or another task": r"^\s*(?:import|from)\s+"
    r"(common\.(?:reference\.oracle|testing|diagnosis)|task\d\.(?:cases|solution))",
    "calls PyTorch's own attention": r"\bscaled_dot_product_attention\b|\bMultiheadAttention\s*\(|\bflex_attention\b",
    "looks at frames, modules or memory": r"\b(_getframe|inspect|gc|ctypes|sys\.modules|__subclasses__|settrace)\b",
    "runs text as code": r"\b(exec|eval|compile|__import__|importlib)\s*\(|\bimportlib\b",
    "ends the process": r"\b(os\._exit|sys\.exit|exit|quit|os\.kill|atexit)\b",
    "opens files, sockets or programs": r"\b(open|socket|subprocess|os\.system|os\.popen|urllib|requests)\s*[.(]",
    "catches everything": r"except\s*(BaseException)?\s*:",
}


def flags_of(files: Mapping[str, str]) -> list[str]:
    """ "task2/attention_kernel.cu:12 speaks of Python: PyRun_SimpleString"."""
    found = []
    for name, text in files.items():
        if name.endswith(".py"):
            code, rules = _PYTHON_WORDS.sub(lambda match: "\n" * match[0].count("\n"), text), _IN_PYTHON
        else:
            code, rules = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text), _IN_CUDA
            for match in _INCLUDE.finditer(code):
                if not _USUAL.fullmatch(match[1]):
                    found.append(_flag(name, code, match.start(1), "includes what the handout does not name", match[1]))
        for words, pattern in rules.items():
            if match := re.search(pattern, code, re.MULTILINE):
                text_of = match[0].lstrip()  # what matches may begin with empty lines
                found.append(_flag(name, code, match.end() - len(text_of), words, text_of))
    return found


def _flag(name: str, code: str, at: int, words: str, what: str) -> str:
    line = code.count("\n", 0, at) + 1
    return f"{name}:{line} {words}: {' '.join(what.split())[:60]}"
