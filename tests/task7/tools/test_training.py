"""python -m task7.tools.training: both runs, what it prints and draws."""

from __future__ import annotations

import re

import pytest
import torch

from task7.tools import training


@pytest.mark.slow
def test_a_few_steps(tmp_path, capsys):
    """Both runs have the same decreasing losses in the table; the picture is a PNG."""
    picture = tmp_path / "new" / "losses.png"
    sizes = {"--steps": "6", "--batch": "1", "--length": "16", "--layers": "1", "--rate": "0.01"}
    small = [word for pair in (sizes | {"--backend": "simulator"}).items() for word in pair]
    assert training.main([*small, "--picture", str(picture)]) == 0
    words = capsys.readouterr().out
    rows = [[float(x) for x in re.findall(r"\d+\.\d+", line)] for line in words.splitlines() if "loss at step" in line]
    assert len(rows) == 6 and rows[-1][0] < rows[0][0] - 0.5
    assert all(abs(ours - theirs) <= 1e-3 for ours, theirs in rows)
    apart = float(re.search(r"at most (\S+) apart", words)[1])
    assert apart <= 1e-3
    assert picture.read_bytes().startswith(b"\x89PNG") and "losses.png" in words


def test_the_tokens_are_pieces_of_the_held_out_text():
    tokens = training.batches(3, 2, 8)
    assert tokens.shape == (3, 2, 9) and torch.equal(tokens, training.batches(3, 2, 8))
    assert len(set(map(tuple, tokens.flatten(0, 1).tolist()))) == 6


def test_the_rate_leaves_out_the_steps_that_build():
    run = training.Run([1.0] * 4, [9.0, 8.0, 0.5, 0.25], 0)
    assert run.rate(3) == 3 / 0.375 and training.Run([1.0], [2.0], 0).rate(3) == 1.5
