"""Which input elements a right answer depends on, and how a set of elements is described."""

import numpy as np
import pytest
import torch

from common.inspect.flow.reached import Needs, bits_of, mask_of
from common.inspect.flow.run import said
from common.reference import oracle


def attention_inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(1, 2, 5, 4, generator=generator) for name in ("query", "key", "value")}


def test_a_causal_query_depends_on_the_keys_up_to_it():
    needs = Needs(lambda **given: oracle.attention(**given, causal=True), attention_inputs())
    row = 1 * 5 * 4 + 2 * 4  # batch 0, head 1, query 2, column 0
    found = {name: mask.view(1, 2, 5, 4) for name, mask in needs.of([row]).items()}
    wanted = torch.zeros(1, 2, 5, 4, dtype=torch.bool)
    wanted[0, 1, :3] = True
    assert torch.equal(found["key"], wanted)
    wanted[..., 1:] = False
    assert torch.equal(found["value"], wanted)
    assert torch.equal(found["query"].nonzero()[:, 1:3].unique(dim=0), torch.tensor([[1, 2]]))


def test_elements_that_are_0_and_inputs_that_must_not_be_read_do_not_count():
    inputs = {"x": torch.tensor([1.0, 0.0, torch.nan, 2.0])}
    found = Needs(lambda x: (x[:2].sum() + x[3] ** 2).reshape(1), inputs).of([0])
    assert found["x"].tolist() == [True, False, False, True]


def test_whole_numbers_have_no_derivative():
    with pytest.raises(RuntimeError, match="no derivative"):
        Needs(lambda x: (x > 0).to(torch.float64), {"x": torch.ones(3)})


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (np.s_[0, 1, 2, 3], "key[0, 1, 2, 3]"),
        (np.s_[0, 1], "key[0, 1, :, :]"),
        (np.s_[:, 1, 2:4, 1], "key[:, 1, 2:4, 1]"),
        (np.s_[0, ::2, 0, 0], "2 elements of key[0, :, 0, 0]"),
    ],
)
def test_a_set_is_told_as_a_slice_or_as_a_count_in_one(at, words):
    mask = np.zeros((2, 3, 5, 4), dtype=bool)
    mask[at] = True
    assert said("key", mask.shape, mask.reshape(-1)) == words


def test_bits_and_masks_are_each_others_inverse():
    mask = np.random.default_rng(1).random(77) < 0.4
    assert (mask_of(bits_of(mask), 77) == mask).all()
