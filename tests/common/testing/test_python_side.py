"""Errors in a student's Python name their lines."""

import pytest
import torch
from written_modules import written_module

from common.testing.python_side import naming_the_line

TEXT = """\
def attend(key):
    wide = key.repeat(2)
    if wide.dim() > 1:
        wide = wide[0]
    return wide.view(3, 5)


def forward(key):
    return attend(key)
"""


def test_an_error_names_its_line_and_the_call_that_led_to_it(tmp_path) -> None:
    module = written_module(tmp_path / "attention.py", TEXT)
    with pytest.raises(RuntimeError) as caught, naming_the_line(module):
        module.forward(torch.ones(4))
    first, *others = str(caught.value).split("\n")
    assert "attention.py:5 in attend, called from line 9 in forward: RuntimeError: shape '[3, 5]'" in first
    assert others == [
        "There wide is [8].",
        "What line 5 works with, and whether it runs, is decided in:",
        "    2  wide = key.repeat(2)",
        "    3  if wide.dim() > 1:",
        "    4  wide = wide[0]",
    ]


def test_where_the_innermost_line_has_arguments_alone_the_call_is_told(tmp_path) -> None:
    text = "def inner(x):\n    return x.view(3)\n\n\ndef outer(x):\n    x = x[1:]\n    return inner(x)\n"
    module = written_module(tmp_path / "calling.py", text)
    with pytest.raises(RuntimeError) as caught, naming_the_line(module):
        module.outer(torch.ones(3))
    assert str(caught.value).split("\n")[1:] == [
        "There x is [2].",
        "What line 7 works with, and whether it runs, is decided in:",
        "    6  x = x[1:]",
    ]
