"""python -m task5.patterns: what is inferred from a kernel's output, and the pictures."""

from __future__ import annotations

import pytest
import torch

from task5.tools import patterns
from task5.tools.patterns import Probe, block_pattern, probe


def tiled(see: torch.Tensor, rows: int, cols: int):
    """Attention under the mask `see` that computes a whole rows x cols tile if any of its scores is visible."""
    seq_len = see.size(0)

    def attend(query, key, value):
        weights = (query @ key.mT).masked_fill(~see, -torch.inf).softmax(-1).nan_to_num()
        out = torch.zeros_like(query)
        for i in range(0, seq_len, rows):
            for j in range(0, seq_len, cols):
                if see[i : i + rows, j : j + cols].any():
                    block = weights[:, :, i : i + rows, j : j + cols]
                    out[:, :, i : i + rows] += block @ value[:, :, j : j + cols]
        return out

    return attend


def test_a_probe_finds_the_mask_and_the_tiles():
    seq_len = 150  # more than one head's width of keys
    keys = torch.arange(seq_len)
    see = (keys <= keys[:, None]) & (keys > keys[:, None] - 20)
    found = probe(tiled(see, 32, 16), seq_len, "cpu")
    assert torch.equal(found.attended, see)
    whole = torch.zeros_like(see)
    for i in range(0, seq_len, 32):
        for j in range(0, seq_len, 16):
            whole[i : i + 32, j : j + 16] = see[i : i + 32, j : j + 16].any()
    assert torch.equal(found.computed, whole)
    assert found.attended_share == pytest.approx((20 * 21 / 2 + 130 * 20) / 150**2)


def test_the_taught_kernels_compute_every_score_that_counts_and_few_others(solution):
    ops, seq_len, block = solution("task5"), 128, 32
    keys = torch.arange(seq_len)
    before, near = keys <= keys[:, None], (keys - keys[:, None]).abs() < 40
    mask = block_pattern(seq_len // block)[0].repeat_interleave(block, 0).repeat_interleave(block, 1)
    expected = {
        "stride 3": (keys % 3 == 0).expand(seq_len, -1),
        "stride 3, causal": (keys % 3 == 0) & before,
        "window 40, causal": near & before,
        "window 40": near,
        "blocks of 32": mask,
        "blocks of 32, causal": mask & before,
    }
    found = {
        name: probe(attend, seq_len, ops.device)
        for name, attend in patterns.patterns(ops, 3, 40, block, seq_len).items()
    }
    assert list(found) == list(expected)
    for name, see in expected.items():
        assert torch.equal(found[name].attended, see), name
        assert bool((found[name].computed | ~see).all()), name
    for name in ("stride 3", "blocks of 32"):  # whole tiles: no wasted work
        assert torch.equal(found[name].computed, found[name].attended)
    # A query tile has at most 47 others before and after it, and a key tile starts at a multiple of 32
    back, ahead = keys[:, None] - keys, keys - keys[:, None]
    for name, end in (("window 40, causal", 47), ("window 40", 39 + 47)):
        assert not bool((found[name].computed & ((back > 39 + 47 + 31) | (ahead > end))).any()), name


@pytest.mark.parametrize("options", [["--seq-len", "0"], ["--seq-len", "100", "--block", "32"], ["--stride", "999"]])
def test_bad_arguments_are_refused(options, capsys, monkeypatch, solution):
    ops = solution("task5")
    monkeypatch.setattr(patterns, "load", lambda request: ops)
    assert patterns.main(options) == 2
    name, value = options[-2].lstrip("-").replace("-", "_"), options[-1]
    assert f"{name} is {value}; it must" in " ".join(capsys.readouterr().out.split())


def test_the_command_says_the_shares_and_draws(capsys, monkeypatch, tmp_path, solution):
    ops = solution("task5")
    monkeypatch.setattr(patterns, "load", lambda request: ops)
    assert patterns.main(["--seq-len", "64", "--window", "16", "--picture", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "shares of the 64 x 64 scores" in said and "window 16, causal" in said and "25.0%" in said


def test_the_pictures(tmp_path):
    half = torch.eye(8, dtype=torch.bool)
    files = patterns.draw({"window 1, causal": Probe(half, half | half.roll(1, 0))}, tmp_path)
    assert [file.name for file in files] == ["window_1_causal.png"] and files[0].stat().st_size > 5_000
