"""The doctor: its report on this machine, and that each problem comes with the command that fixes it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from common import doctor
from common.compiling import toolchain

RUN = "from common import doctor; raise SystemExit(doctor.main())"


@pytest.mark.slow
def test_this_machine_can_build(root):
    done = subprocess.run([sys.executable, "-m", "common.doctor"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for word in ("Python", "torch", "GPU", "nvcc", "C++ compiler", "ninja", "build folder", "backend"):
        assert word in done.stdout


def test_it_knows_every_package_that_the_project_depends_on(root):
    (line,) = re.findall(r"^dependencies = \[(.*)\]$", (root / "pyproject.toml").read_text(), re.MULTILINE)
    needed = {re.match(r"[\w-]+", name)[0].replace("-", "_") for name in re.findall(r'"([^"]+)"', line)}
    assert needed == {"torch", "ninja", "transformers", *doctor.PACKAGES}


def test_without_any_package_it_says_what_is_missing(root):
    """Only the standard library: no site-packages, so neither torch nor rich."""
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {RUN}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stderr, done.stderr
    assert (
        "torch" in done.stdout
        and "not installed: filelock, matplotlib, numpy, rich, tree_sitter, tree_sitter_cuda, watchfiles" in done.stdout
    )
    assert f"packages: run  {doctor.INSTALL}" in done.stdout and "tasks cannot be built yet" in done.stdout


def test_without_a_compiler_nothing_can_be_built(monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert doctor.main() == 1
    printed = capsys.readouterr().out
    assert "cannot be built" in printed and "apt-get install g++" in printed


def test_a_gpu_without_nvcc_names_the_command(monkeypatch):
    monkeypatch.setattr(toolchain, "find_gpu", lambda: toolchain.Gpu("NVIDIA T4", (7, 5)))
    monkeypatch.setattr(toolchain, "torch_cuda_version", lambda: (13, 0))
    monkeypatch.setattr(toolchain, "all_nvccs", tuple)
    findings = {finding.what: finding for finding in doctor.examine()}
    assert findings["nvcc"].mend == toolchain.INSTALL_CUDA and not findings["nvcc"].stops
    assert findings["backend"].found.startswith("simulator") and "NVIDIA T4" in findings["backend"].found


def test_a_build_folder_that_cannot_be_written(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(blocked / "build"))
    finding = next(finding for finding in doctor.examine() if finding.what == "build folder")
    assert finding.stops and "ATTENTION_BUILD_DIR" in finding.mend


def test_windows_itself_is_refused_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(toolchain.ToolchainError, match="WSL2"):
        toolchain.choose_backend("simulator")
    assert doctor.main() == 1
    assert "wsl --install" in capsys.readouterr().out
