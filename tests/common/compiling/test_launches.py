"""Kernel launches without an error check, found in the source text."""

import pytest

from common.compiling.launches import unchecked_launches

CHECKED = """\
__global__ void kernel(float* x) { *x = 1; }
void launch(float* x, cudaStream_t stream) {
    // CUDA_CHECK_LAUNCH() is only spoken of here
    kernel<<<1, 32, 0, stream>>>(x);
    CUDA_CHECK_LAUNCH();
}
"""
WITHOUT = CHECKED.replace("    CUDA_CHECK_LAUNCH();\n", "")
BEFORE = WITHOUT.replace("    kernel<<<", "    CUDA_CHECK_LAUNCH();\n    kernel<<<")
ASKS = "void both(float* x) {\n    launch(x, 0);\n    launch(x, 0);\n    CUDA_CHECK(cudaGetLastError());\n}\n"
BY_THE_CALLER = WITHOUT + ASKS
BY_ITS_CALLER = WITHOUT + "void middle(float* x) { launch(x, 0); }\n" + ASKS.replace("launch", "middle")
TOO_EARLY = WITHOUT + "void both(float* x) {\n    CUDA_CHECK_LAUNCH();\n    launch(x, 0);\n}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [(CHECKED, 0), (WITHOUT, 4), (BEFORE, 5), (BY_THE_CALLER, 0), (BY_ITS_CALLER, 0), (TOO_EARLY, 4)],
    ids=["checked", "not", "before", "by the caller", "by its caller", "too early"],
)
def test_a_launch_that_nobody_checks_is_told_with_its_line(tmp_path, text, line):
    source = tmp_path / "kernel.cu"
    source.write_text(text)
    told = unchecked_launches([source])
    assert len(told) == bool(line)
    for one in told:
        assert one.startswith(f"{source}:{line}: warning: no CUDA_CHECK_LAUNCH() follows this launch in launch():")
