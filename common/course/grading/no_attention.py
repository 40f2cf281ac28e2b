"""Builds the library that makes PyTorch's own attention raise: no_attention.cpp."""

from __future__ import annotations

from pathlib import Path

import torch

from common.compiling import toolchain
from common.compiling.objects import compile_objects, link

SOURCE = Path(__file__).with_suffix(".cpp")
OURS = ("attention", "sdp", "transformer_encoder", "transformer_decoder")  # what PyTorch's names for it hold


def build(library: Path) -> None:
    """Writes the library.

    Raises:
        CompilerFailed: it does not compile.
    """
    every = torch._C._dispatch_get_all_op_names()
    names = sorted(
        one.removeprefix("aten::") for one in every if one.startswith("aten::") and any(o in one for o in OURS)
    )
    listed = library.with_suffix(".inc")
    listed.write_text("".join(f'"{name}",\n' for name in names))
    include = f"-isystem{toolchain.torch_folder() / 'include'}"
    made = compile_objects([(SOURCE, ["-std=c++20", "-O1", "-fPIC", include, f'-DOPERATORS="{listed}"'])])
    link(made, ["-shared", f"-L{toolchain.torch_folder() / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10"], library)
