"""The pictures of the kernels' READMEs are what their scripts draw."""

import importlib


def test_the_time_line_of_the_forward_kernel_is_drawn_as_it_is(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "docs" / "pictures")
    drawn = importlib.import_module("hopper").hopper_forward().svg()
    assert (root / "docs" / "pictures" / "hopper_forward.svg").read_text() == drawn, "python docs/pictures/hopper.py"
    assert "(../../../docs/pictures/hopper_forward.svg)" in (root / "common/kernels/flash/README.md").read_text()
