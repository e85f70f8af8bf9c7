"""Masks whose elements are all equal: the value that is known is that of each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchserve_neuron_lstm.lowering.one_request.element_facts import uniform_value
from torchserve_neuron_lstm.lowering.one_request.known_numbers import known_values
from torchserve_neuron_lstm.lowering.one_request.single_mode import SingleRequestMode


def written(mask: Tensor) -> Tensor:
    mask.flatten()[0] = 7
    return mask


CHANGES: list[Callable[[Tensor], Any]] = [
    lambda m: m[0],
    lambda m: m.transpose(0, -1),
    lambda m: ~m,
    lambda m: m.logical_not(),
    lambda m: m + 255,
    lambda m: m - 2,
    lambda m: m * 3,
    lambda m: m.all(),
    lambda m: m.any(0),
    lambda m: m.sum(0),
    lambda m: m.sum(),
    lambda m: m.bool(),
    lambda m: m.byte(),
    lambda m: m.to(torch.int8),
    lambda m: m.float(),
    lambda m: m.eq(1),
    lambda m: m > 200,
    lambda m: torch.ones_like(m, dtype=torch.uint8),
    written,
]
MASKS: list[Callable[[int], Tensor]] = [
    lambda t: torch.ones(1, t, dtype=torch.bool),
    lambda t: torch.ones(1, t).new_ones((t, 1), dtype=torch.uint8),
    lambda t: torch.zeros_like(torch.randn(1, t), dtype=torch.uint8),
    lambda t: torch.zeros(2, t, dtype=torch.bool),
]


@given(st.sampled_from([1, 2, 300]), st.sampled_from(MASKS), st.lists(st.sampled_from(CHANGES), max_size=4))
def test_a_known_value_is_that_of_each_element(
    timesteps: int, mask: Callable[[int], Tensor], changes: list[Callable[[Tensor], Any]]
) -> None:
    with SingleRequestMode():
        made = mask(timesteps)
        try:
            for change in changes:
                made = change(made)
        except (IndexError, RuntimeError, TypeError):  # the changes do not fit each other
            return
        value, numbers = uniform_value(made), known_values(made)

    assert value is None or bool((made == value).all())
    assert numbers is None or numbers.tolist() == made.tolist()


@pytest.mark.parametrize("mask", MASKS)
def test_the_value_of_a_new_mask_is_known(mask: Callable[[int], Tensor]) -> None:
    with SingleRequestMode():
        assert uniform_value(mask(3)[0]) == mask(3)[0, 0].item()
