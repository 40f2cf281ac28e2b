"""flash_merge: combines two partial results in place, for every combination of dtypes and any strides."""

from __future__ import annotations

import flash_room as flash
import pytest
import torch

UNIT = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}
DTYPES = [(one, one) for one in UNIT] + [(torch.float32, torch.float16), (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize("head_dim", [8, 100, 3, 128])
@pytest.mark.parametrize(("dtype", "of_part"), DTYPES, ids=lambda x: str(x)[6:])
def test_two_halves_of_the_keys_are_all_of_them(backend, dtype, of_part, head_dim):
    ops, generator = flash.load(backend), torch.Generator().manual_seed(head_dim)
    scores = 3 * torch.randn(2, 3, 7, 10, generator=generator, dtype=torch.float64)
    value = torch.randn(2, 3, 10, head_dim, generator=generator, dtype=torch.float64)
    scores[0, 0, 1, :5], scores[1, 2, 3, 5:], scores[1, 1, 2] = -torch.inf, -torch.inf, -torch.inf
    halves = []
    for keys in (slice(5), slice(5, None)):
        weights = scores[..., keys].softmax(-1).nan_to_num(0.0)
        halves.append((weights @ value[:, :, keys], scores[..., keys].logsumexp(-1)))
    # out and lse are every second row of a larger tensor, starting two columns in
    wide = torch.full((2, 3, 14, head_dim + 2), torch.nan, dtype=dtype, device=ops.device)
    long = torch.full((2, 3, 14), torch.nan, device=ops.device)
    out, lse = wide[:, :, ::2, 2:], long[:, :, ::2]
    out.copy_(halves[0][0]), lse.copy_(halves[0][1])
    ops.flash_merge(out, lse, halves[1][0].to(ops.device, of_part), halves[1][1].to(ops.device, torch.float32))

    whole = scores.softmax(-1).nan_to_num(0.0) @ value
    unit = UNIT[dtype] + UNIT[of_part] + 2**-22  # two roundings of an output, and exp and log
    assert (out.cpu() - whole).abs().max() <= 2 * unit * whole.abs().max()
    torch.testing.assert_close(lse.cpu(), scores.logsumexp(-1).float())
    assert wide[:, :, 1::2].isnan().all() and wide[..., :2].isnan().all() and long[:, :, 1::2].isnan().all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"part": torch.zeros(1, 2, 3, 4, dtype=torch.float64)}, "part has dtype Double"),
        ({"out": torch.zeros(1, 2, 3, 4, dtype=torch.float16)}, "out has dtype Half; it must be Float or that of part"),
        ({"lse": torch.zeros(1, 2, 4)}, "lse has shape"),
        ({"part_lse": torch.zeros(1, 2, 3, 1)}, "part_lse has 4 dimensions"),
        ({"part": torch.zeros(1, 2, 4, 3).transpose(2, 3)}, "part of shape .* is not contiguous"),
    ],
)
def test_what_does_not_fit_is_named(change, words):
    ops = flash.load("simulator")
    given = {
        "out": torch.zeros(1, 2, 3, 4),
        "lse": torch.zeros(1, 2, 3),
        "part": torch.zeros(1, 2, 3, 4),
        "part_lse": torch.zeros(1, 2, 3),
    }
    with pytest.raises(ValueError, match=words):
        ops.flash_merge(*(given | change).values())
