"""Numbers that are known while one request is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchserve_neuron_lstm.lowering.one_request.known_numbers import known_values, with_known_values
from torchserve_neuron_lstm.lowering.one_request.single_mode import SingleRequestMode


def lengths_of(*numbers: int) -> Tensor:
    """Return lengths whose numbers are known."""
    return with_known_values(torch.tensor(numbers), list(numbers))


@pytest.mark.parametrize(
    "function",
    [
        lambda n: torch.div(n, 2, rounding_mode="floor"),
        lambda n: torch.ceil(n / 4).long(),
        lambda n: ((n * 0.25 + 1.5) - 1).int(),
        lambda n: n.sub_(2).mul_(3),
        lambda n: 10 - (n // 2),
        lambda n: (n.float() / 3).floor().to(torch.int64) >> 1,
        lambda n: torch.stack([n, n])[1],
        lambda n: n.unsqueeze(1),
        lambda n: n.unsqueeze(0).squeeze(1),
        lambda n: n.unsqueeze(-1).unsqueeze(0).squeeze((0, 2)),
        lambda n: n.squeeze(dim=0),
        lambda n: n[None, :, None].squeeze([0, 2]),
        lambda n: n[None].squeeze(),
        lambda n: (n.double() * 1.0).int(),
        lambda n: torch.where(n % 2 == 0, n // 2, n // 2 + 1),
        lambda n: (n // 2 + (n % 3 != 1).long()).clamp(min=2, max=4),
        lambda n: torch.minimum(n // 2 + (n & 1) + torch.fmod(n, 4), torch.tensor(5)),
        lambda n: n.true_divide(2).trunc().type_as(torch.ones(1, dtype=torch.int64)),
    ],
)
def test_numbers_are_those_of_the_tensor(function: Callable[[Tensor], Tensor]) -> None:
    """The numbers that are known of a result are those that torch computes."""
    for number in range(1, 12):
        with SingleRequestMode():
            result = function(lengths_of(number))
            known = known_values(result)

        assert known is not None
        assert known.tolist() == result.tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n.bitwise_xor_(3),
        lambda n: n.__setitem__(0, 3),
        lambda n: n.copy_(torch.tensor([3])),
        lambda n: n.fill_(3),
    ],
    ids=["bitwise_xor_", "setitem", "copy_", "fill_"],
)
def test_a_number_that_is_changed_in_another_way_is_no_longer_known(change: Callable[[Tensor], Any]) -> None:
    """A change in place leaves no number from before."""
    with SingleRequestMode():
        lengths = lengths_of(7)
        change(lengths)

    assert known_values(lengths) is None


@pytest.mark.parametrize("function", [lambda n: n / 3 > 2, lambda n: n * 0.1, lambda n: ((n - 5) / 2).long()])
def test_numbers_that_quotients_do_not_tell_are_not_known(function: Callable[[Tensor], Tensor]) -> None:
    """Comparisons, floats that are no quotients, and rounding of what may be negative."""
    with SingleRequestMode():
        assert known_values(function(lengths_of(2))) is None
