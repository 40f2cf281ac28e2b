"""What a human should look at in a submission: flags_of(files) -> words of its text that a kernel has no use for.

They change no points: honest code can have them and dishonest code can do without.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MOST = 20  # of a file
_COMMENT = {
    "cuda": re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL),
    "python": re.compile(r'""".*?(?:"""|\Z)|#[^\n]*', re.DOTALL),
}
_WORDS = {
    "cuda": re.compile(
        r"\b(?:dl(?:m?open|sym|addr|_iterate_phdr)|Py[A-Z]\w+|pybind11|aoti_torch_\w+|(?:at|torch|c10)::\w+|syscall"
        r"|mprotect|ptrace|process_vm_\w+|fork|execv\w*|pthread_create|std::(?:thread|async)|no_sanitize\w*|simulator_\w+"
        r"|CUDA_SIMULATOR|__(?:tsan|sanitizer)_\w+|cudaMemcpyDeviceToHost)\b|__attribute__ ?\(\((?:con|de)structor"
        r"|/proc/"
    ),
    "python": re.compile(
        r"\b(?:_getframe|ctypes|gc\.\w+|inspect|settrace|__subclasses__|sys\.modules|exec|eval|__import__|importlib|atexit"
        r"|subprocess|socket|os\.\w+|open|scaled_dot_product_attention|MultiheadAttention|flex_attention"
        r"|common\.(?:reference\.oracle|testing|diagnosis)|task\d\.(?:cases|solution))\b"
    ),
}


def flags_of(files: Mapping[str, str]) -> list[str]:
    """ "task2/attention_kernel.cu:12 says PyRun_SimpleString": where each such word is first, in linear time."""
    found = []
    for name, text in files.items():
        language = "python" if name.endswith(".py") else "cuda"
        code = _COMMENT[language].sub(lambda match: "\n" * match[0].count("\n"), text)
        first: dict[str, int] = {}
        for match in _WORDS[language].finditer(code):
            first.setdefault(match[0][:60], match.start())
            if len(first) == MOST:
                break
        found += [f"{name}:{code.count(chr(10), 0, at) + 1} says {word}" for word, at in first.items()]
    return found
