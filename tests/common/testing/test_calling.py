"""Which part of an error's text is kept."""

from common.testing.calling import MOST_WORDS, CallFailed


def test_a_text_of_100_mb_is_cut_at_once():
    failed = CallFailed.because(RuntimeError("kernel.cu:7: " + "x" * 100_000_000))
    assert failed.file_line == "kernel.cu:7" and sum(map(len, failed.words)) < 2 * MOST_WORDS
    assert failed.words[-1].endswith("more characters")
