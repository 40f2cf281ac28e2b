"""Which architecture the simulator compiles code for."""

import pytest

from common.simulator.rewriter import rewrite
from common.simulator.targets import target_for_program, target_of


def test_names(monkeypatch):
    monkeypatch.delenv("SIMULATOR_ARCH", raising=False)
    assert (target_of().name, target_of().flags) == ("sm_89", [])
    hopper = target_of("sm_90a")
    assert hopper.number == 900 and hopper.has_features and "-DSIMULATOR_ARCH=900" in hopper.flags
    assert not target_of("sm_90").has_features
    with pytest.raises(ValueError, match="arch is 'sm_75'; the simulator runs code for sm_89, sm_90, sm_90a"):
        target_of("sm_75")
    monkeypatch.setenv("SIMULATOR_ARCH", "sm_90a")
    assert target_of() == hopper
    monkeypatch.setenv("SIMULATOR_ARCH", "hopper")
    with pytest.raises(ValueError, match="SIMULATOR_ARCH is 'hopper'"):
        target_of()


def test_a_program_says_by_what_it_uses(monkeypatch):
    monkeypatch.delenv("SIMULATOR_ARCH", raising=False)
    assert target_for_program(["int main() {}"]).name == "sm_89"
    for text in ('asm("wgmma.fence.sync.aligned;")', "void __cluster_dims__(2, 1, 1) f()", "CUtensorMap map;"):
        assert target_for_program(["int main() {}", text]).name == "sm_90a"
    monkeypatch.setenv("SIMULATOR_ARCH", "sm_89")
    assert target_for_program(["CUtensorMap map;"]).name == "sm_89"


def test_conditionals_follow_it():
    text = '#if __CUDA_ARCH__ >= 900\nint x;\nvoid h() { asm("none of ours;"); }\n#endif\n'
    kernel = f"__global__ void f() {{\n{text.replace('void h() {', '{')}}}\n"
    rewrite(kernel, "f.cu", target=target_of("sm_89"))  # excluded code need not be supported
    with pytest.raises(Exception, match="does not know the PTX instruction none"):
        rewrite(kernel, "f.cu", target=target_of("sm_90a"))
    host = "#ifdef __CUDA_ARCH_FEAT_SM90_ALL\nint a;\n#endif\n"
    assert "#if 0" in rewrite(f"void host() {{\n{host}}}\n", "f.cu", target=target_of("sm_90a"))
