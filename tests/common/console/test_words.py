"""Wording helpers shared by many messages."""

from __future__ import annotations

import pytest

from common.console.paths import ROOT
from common.console.words import error_words


def test_an_error_of_the_system_names_file_and_cause(tmp_path) -> None:
    with pytest.raises(OSError) as raised:
        (tmp_path / "none" / "x.cu").read_text()
    assert error_words(raised.value) == f"{tmp_path}/none/x.cu: No such file or directory"
    assert (
        error_words(PermissionError(13, "Permission denied", f"{ROOT}/task3/x.cu")) == "task3/x.cu: Permission denied"
    )
    assert error_words(OSError(28, "No space left on device")) == "No space left on device"
    assert error_words(FileExistsError(17, "File exists", "a", None, "b")) == "a -> b: File exists"


def test_another_error_says_what_it_says() -> None:
    assert error_words(ValueError("rows is 0")) == "rows is 0" and error_words(OSError("no worker")) == "no worker"
