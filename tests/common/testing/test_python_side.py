"""Errors in a student's Python name their lines."""

import importlib.util

import pytest

from common.testing.python_side import naming_the_line

TEXT = """\
def attend(key):
    return key.shape + 1


def forward(key):
    return attend(key)
"""


def test_an_error_names_its_line_and_the_call_that_led_to_it(tmp_path) -> None:
    file = tmp_path / "attention.py"
    file.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("attention_of_this_test", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(RuntimeError) as caught, naming_the_line(module):
        module.forward(3)
    assert "attention.py:2 in attend, called from line 6 in forward: AttributeError" in str(caught.value)
