"""Every function in CUDA's math library, device headers and runtime API has a row in api.md, and the row is correct."""

import re

import pytest

from common.simulator import api_names
from common.simulator.api_names import MARK, README, TABLE, read_names, refusal, states, summary, table
from common.simulator.rewriter import RewriteError, rewrite

FUNCTIONS = read_names()


@pytest.fixture(scope="module")
def found():
    return states(FUNCTIONS)


def test_the_list_is_that_of_a_toolkit():
    names = {one.name for one in FUNCTIONS}
    assert len(FUNCTIONS) > 1300 and len({one.section for one in FUNCTIONS}) > 25
    assert {"__fadd_rd", "erfcinvf", "__vabsdiffu4", "__hgtu2_mask", "__shfl_sync", "cudaMemcpy3DPeerAsync"} <= names


@pytest.mark.slow
def test_every_name_has_its_row(found):
    assert TABLE.read_text() == table(found), "run python -m common.simulator.api_names"
    assert MARK.search(README.read_text())[0] == summary(found), "run python -m common.simulator.api_names"
    rows = re.findall(r"^\| [^|]+ \| (?:has|refused: [^|]+|lacks) \| (.+) \|$", TABLE.read_text(), re.MULTILINE)
    assert len(rows) + 6 == len(TABLE.read_text().splitlines())
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(one.name for one in FUNCTIONS)


@pytest.mark.slow
def test_nothing_lacks_and_most_is_there(found):
    assert [one.name for one, state in found.items() if state == "lacks"] == []
    math = [state for one, state in found.items() if one.section.startswith("math")]
    assert math.count("has") >= 0.85 * len(math)


def test_what_is_not_there_lacks():
    made_up = [
        api_names.Function("math: float", "__fadd_rx", "float", "float, float"),
        api_names.Function("math: float", "sinf", "float", "float, float"),
        api_names.Function("math: float", "cosf", "float", "float"),
        api_names.Function("runtime: device", "cudaThreadExit", "cudaError_t", ""),
    ]
    assert list(states(made_up).values()) == ["lacks", "lacks", "has", "refused"]


@pytest.mark.slow
def test_what_is_refused_says_why(found):
    for one, state in found.items():
        if state == "refused":
            with pytest.raises(RewriteError, match=re.escape(refusal(one.name))):
                rewrite(f"int main() {{ {one.name}(); }}", "a.cu")


def test_the_list_comes_from_headers(tmp_path):
    for name in {*api_names._DOCUMENTED, *api_names._DEVICE, "cuda_runtime_api.h", "cuda_runtime.h"}:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "cuda_fp16.h").write_text(
        "/** \\ingroup CUDA_MATH__HALF_MISC */\n__CUDA_FP16_DECL__ __half __ldg(const __half *const ptr);\n"
    )
    (tmp_path / "cuda_runtime_api.h").write_text(
        "/** \\defgroup CUDART_EVENT Events */\n/** text */\n"
        "extern __host__ cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event);\n"
    )
    assert [(one.section, one.name, one.result, one.parameters) for one in api_names.listed(tmp_path)] == [
        ("math: half", "__ldg", "__half", "const __half*"),
        ("runtime: event", "cudaEventQuery", "cudaError_t", "cudaEvent_t"),
    ]
