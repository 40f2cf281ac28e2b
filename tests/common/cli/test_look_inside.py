"""What the report says of failing cases before the verdicts, and what after them."""

import io
from pathlib import Path

from rich.console import Console

from common.cli.look_inside import leading, print_inside, print_nothing_found
from common.inspect.findings.model import Access, Finding, Group
from common.inspect.source_lines import Place

FILE = "task2/solution/attention_kernel.cu"
LINE = "const float inverse_sum"


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(Path(FILE).read_text().split("\n"), 1) if text in line)


def group(kind: str, **options: object) -> Group:
    access = Access("write", 4, Place(FILE, 157, "softmax_kernel"), (0, 0, 0), (5, 0, 0))
    found = Finding(kind, "softmax_kernel", variable="y", shape=(2, 9), element_bytes=4, byte_offset=20, **options)
    return Group([Finding(**{**vars(found), "accesses": (access,)})], ["softmax: 2 x 9"], 1)


def printed(print_it, found: dict[str, list[Group]]) -> str:
    text = io.StringIO()
    print_it(Console(file=text, width=120), found)
    return " ".join(text.getvalue().split())


def test_what_a_number_is_made_of_follows_the_verdicts_and_hides_none() -> None:
    number = group(
        "wrong_value", detail="y[0, 5] is stored here as 0; right is 1.", lines=(Place(FILE, line_of(LINE)),)
    )
    found = {"softmax": [number], "gemm": []}
    assert leading(found) == {"softmax": [], "gemm": []}
    assert printed(print_inside, found) == ""
    last = printed(print_nothing_found, found)
    assert "wrong number in softmax_kernel: y[0, 5]" in last
    assert f"What this number is made of: {line_of(LINE)} {LINE}" in last
    assert "nothing read before it was written: softmax, gemm" in last


def test_what_went_wrong_in_memory_comes_first_and_once() -> None:
    found = {"softmax": [group("stored_elsewhere", detail="It is the right answer of y[0, 6].")]}
    assert leading(found) == found
    assert "wrong content in softmax_kernel: y[0, 5]" in printed(print_inside, found)
    assert printed(print_nothing_found, found) == ""
