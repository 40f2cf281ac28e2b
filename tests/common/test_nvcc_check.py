"""Checking the named files with nvcc."""

from pathlib import Path

import pytest

from common import nvcc_check
from common.compiling import toolchain
from common.compiling.flags import gencode

ADD = """#include <cuda_runtime.h>
__global__ void add(float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    UNUSED
    if (i < n) x[i] += 1.0f;
}
"""


def test_only_the_files_named_are_compiled_each_once(monkeypatch, tmp_path, capsys) -> None:
    seen = []
    monkeypatch.setattr(
        nvcc_check, "check", lambda source, archs, optimized: (not seen.append((source, archs, optimized)), "ok")
    )
    one = tmp_path / "one.cu"
    one.write_text(ADD)
    assert nvcc_check.main([str(one), f"{tmp_path}/../{tmp_path.name}/one.cu", "--arch", "sm_80"]) == 0
    assert (
        seen == [(one, ["sm_80"], ["sm_80"])]
        and "1 of 1 compiled without a warning for sm_80" in capsys.readouterr().out
    )


@pytest.mark.parametrize("name", ["none.cu", "header.cuh"])
def test_what_is_no_source_is_refused_by_name(name: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "header.cuh").write_text("")
    with pytest.raises(SystemExit) as ended:
        nvcc_check.main([str(tmp_path / name)])
    assert ended.value.code == 2
    assert f"{name}'; it must be a .cu or .cpp file that exists" in " ".join(capsys.readouterr().err.split())


def test_architectures_share_their_ptx_where_they_take_the_same_branches(tmp_path: Path) -> None:
    source = tmp_path / "one.cu"
    source.write_text(ADD)
    archs = ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100", "sm_120"]
    assert nvcc_check.alike(archs, source) == [tuple(archs)]
    (tmp_path / "header.cuh").write_text("#if __CUDA_ARCH__ >= 800\n#endif")
    source.write_text(ADD.replace("UNUSED", '#include "header.cuh"\n#if __CUDA_ARCH__ < 1000\n#endif'))
    assert nvcc_check.alike(archs, source) == [("sm_75",), ("sm_80", "sm_89", "sm_90a"), ("sm_100", "sm_120")]
    source.write_text(ADD.replace("UNUSED", "#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n#endif"))
    assert nvcc_check.alike(archs, source) == [("sm_75", "sm_80", "sm_89", "sm_100", "sm_120"), ("sm_90a",)]
    source.write_text(ADD.replace("UNUSED", "#if __CUDA_ARCH__ == 890 || __CUDA_ARCH__ > 1000\n#endif"))
    assert nvcc_check.alike(archs, source) == [
        *(("sm_75", "sm_80"), ("sm_89",), ("sm_90a", "sm_100"), ("sm_120",)),
    ]
    assert gencode("sm_80") == "-gencode=arch=compute_80,code=sm_80"
    assert gencode("sm_90a") == "-gencode=arch=compute_90a,code=sm_90a"
    assert gencode("sm_80", "sm_89") == "-gencode=arch=compute_80,code=[sm_80,sm_89]"
    assert gencode("sm_90a", "sm_100") == "-gencode=arch=compute_90,code=[sm_90a,sm_100]"


def test_only_what_issues_wgmma_is_optimized_where_not_all_is(tmp_path: Path) -> None:
    (tmp_path / "one.cu").write_text('#include "header.cuh"\n' + ADD)
    for text, optimized in (("", []), ('asm volatile("wgmma.mma_async.sync ...");', ["sm_90a"])):
        (tmp_path / "header.cuh").write_text(text)
        assert nvcc_check.optimized_for(tmp_path / "one.cu", ["sm_80", "sm_90a"], ["sm_90a"]) == optimized
        assert nvcc_check.optimized_for(tmp_path / "one.cu", ["sm_80", "sm_90a"], None) == ["sm_80", "sm_90a"]


@pytest.mark.slow
@pytest.mark.skipif(toolchain.find_nvcc() is None, reason="there is no nvcc")
@pytest.mark.parametrize(("line", "status", "said"), [("", 0, "one.cu: ok"), ("int unused;", 1, "unused")])
@pytest.mark.parametrize("optimized", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("with_another", [False, True])  # host code is compiled only in the first of two passes
def test_a_warning_is_told_and_counts(
    line: str, status: int, said: str, optimized: str, with_another: bool, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(tmp_path / "build"))
    (tmp_path / "one.cu").write_text(ADD.replace("UNUSED", line))
    archs = ["--arch", "sm_80", *(["sm_90a"] if with_another else []), "--optimize", optimized]
    assert nvcc_check.main([str(tmp_path / "one.cu"), *archs]) == status
    assert said in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(toolchain.find_nvcc() is None, reason="there is no nvcc")
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [("", 0, "binding.cpp: ok"), ('#include "device.cuh"', 1, "__cvta_generic_to_global")],
)
def test_device_code_in_a_header_of_a_binding_is_told(line: str, status: int, said: str, tmp_path, capsys) -> None:
    (tmp_path / "device.cuh").write_text(
        "#include <cuda_runtime.h>\n__device__ size_t place(void* x) { return __cvta_generic_to_global(x); }\n"
    )
    (tmp_path / "binding.cpp").write_text(f'#include "common/cuda/binding.h"\n{line}\nTASK_OPERATORS(m) {{}}\n')
    assert nvcc_check.main([str(tmp_path / "binding.cpp")]) == status
    assert said in capsys.readouterr().out
