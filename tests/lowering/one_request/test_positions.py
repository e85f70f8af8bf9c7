"""Rows at a position: what a model selects by them is what eager mode selects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchserve_neuron_lstm.lowering.one_request.element_facts import only_true, uniform_value
from torchserve_neuron_lstm.lowering.one_request.known_numbers import with_known_values
from torchserve_neuron_lstm.lowering.one_request.single_mode import SingleRequestMode

Change = Callable[[Tensor], Tensor]
CHANGES: list[Change] = [
    lambda p: p[None],
    lambda p: p[:, None],
    lambda p: p.unsqueeze(-1),
    lambda p: p.transpose(0, -1),
    lambda p: p.repeat(2),
    lambda p: p.repeat(2, 1),
    lambda p: p.expand(1, *p.shape),
    lambda p: p.expand(3, *p.shape),
    lambda p: p.flip(0),
    lambda p: p[1:],
    lambda p: p[torch.zeros(p.size(0), dtype=torch.int64)],
    lambda p: p[:1].expand_as(p),
    lambda p: p.float(),
    lambda p: p.to(torch.uint8),
    lambda p: p.half().long(),
    lambda p: p.add_(1),
    lambda p: p.clone().fill_(0),
]
NUMBERS: list[Change] = [lambda n: n - 1, lambda n: n - n, lambda n: n, lambda n: n - 2, lambda n: (n - 1).view(1, 1)]
MASKS: list[Change] = [lambda m: m, lambda m: m.logical_not_(), lambda m: m.view(-1).fill_(True).view(m.shape)]


def selected(timesteps: int, changes: list[Change], number: Change, mask: Change) -> tuple[Tensor, bool]:
    """Return the places that are selected, and whether the place is known."""
    positions = torch.arange(timesteps)
    for change in changes:
        positions = change(positions)
    chosen = mask(positions == number(with_known_values(torch.tensor([timesteps]), [timesteps])))
    return torch.arange(chosen.numel()).view(chosen.shape)[chosen], only_true(chosen) is not None


@given(
    st.sampled_from([1, 2, 3, 7, 130, 257, 2050]),
    st.lists(st.sampled_from(CHANGES), max_size=3),
    st.sampled_from(NUMBERS),
    st.sampled_from(MASKS),
)
def test_what_positions_select_is_what_eager_mode_selects(
    timesteps: int, changes: list[Change], number: Change, mask: Change
) -> None:
    try:
        expected, _ = selected(timesteps, changes, number, mask)
    except (IndexError, RuntimeError):  # the changes do not fit each other
        return

    with SingleRequestMode():
        places, _ = selected(timesteps, changes, number, mask)

    assert torch.equal(places, expected)


def test_the_place_of_the_last_timestep_is_known() -> None:
    with SingleRequestMode():
        places, is_known = selected(5, [CHANGES[0], CHANGES[6]], NUMBERS[0], MASKS[0])

    assert is_known
    assert places.tolist() == [4]


@pytest.mark.parametrize("rounded", [lambda p: p.half(), lambda p: p.bfloat16().float(), lambda p: p.type(torch.half)])
def test_positions_that_a_type_rounds_may_reach_the_length(rounded: Change) -> None:
    with SingleRequestMode():
        lengths = with_known_values(torch.tensor([2052]), [2052])
        assert uniform_value(rounded(torch.arange(2052)) < lengths) is None
