from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from input_configs import config_of
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.one_request.element_facts import only_true, uniform_value
from torchserve_neuron_lstm.lowering.one_request.known_numbers import known_values, with_known_values
from torchserve_neuron_lstm.lowering.one_request.single_mode import SingleRequestMode

# In this range the requests that packaging draws have no 0, so that only the trace can show a wrong branch.
CONFIG = config_of("{ids: {dtype: int64, shape: [batch, time], range: [0, 9999999]}}")


class Branching(nn.Module):
    def __init__(self, write: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 4, batch_first=True)
        self.write = write

    def forward(self, ids: Tensor) -> Tensor:
        own = ids.clone()
        self.write(own)
        y: Tensor = self.gru(own.float()[:, :, None] / 1e7)[0]
        return y if (own >= 0).all() else y * 2  # branch


def to_a_view(ids: Tensor) -> None:
    first = ids[:, :1]
    first -= 1


def to_an_element(ids: Tensor) -> None:
    ids.view(-1)[0] -= 1


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "a view": to_a_view,
    "an element of a view": to_an_element,
    "a row": lambda ids: ids.unbind(0)[0].sub_(1),
    "a part": lambda ids: ids.split(1, 1)[0].sub_(1),
    "a view without a range": lambda ids: ids.swapaxes(0, 1)[0].sub_(1),
    "its data": lambda ids: ids.data.sub_(1),
    "as a result": lambda ids: torch.sub(ids, 1, out=ids),
    "by an operator": lambda ids: ids.__ilshift__(61),
    "by a function of layers": lambda ids: nn.functional.threshold(ids.view(-1), 1, -1, inplace=True),
    "itself": lambda ids: ids.sub_(1),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_range_is_not_believed_after_a_write(write: Callable[[Tensor], Any]) -> None:
    with pytest.raises(LoweringError, match=r"depend on the values of its inputs .*# branch"):
        lower(Branching(write), CONFIG)


def test_views_of_what_is_written_have_no_range_either() -> None:
    class Earlier(Branching):
        def forward(self, ids: Tensor) -> Tensor:
            own = ids.clone()
            first = own[:, :1]
            own.sub_(1)
            y: Tensor = self.gru(own.float()[:, :, None] / 1e7)[0]
            return y if (first >= 0).all() else y * 2  # branch

    with pytest.raises(LoweringError, match=r"depend on the values of its inputs .*# branch"):
        lower(Earlier(len), CONFIG)


TYPES: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("int64, shape: [batch, time], range: [0, 2147483648]", lambda ids: ids.int() >= 0),  # it wraps
    ("int64, shape: [batch, time], range: [0, 16777219]", lambda ids: ids.to(torch.float32) < 16777220),  # it rounds
    ("int64, shape: [batch, time], range: [0, 16777219]", lambda ids: ids < 16777219.5),  # compared in float32
    ("float32, shape: [batch, time], range: [0, 1]", lambda x: x < 1.00000001),
    ("float32, shape: [batch, time], range: [0, 1]", lambda x: x > -1e-50),
    ("float32, shape: [batch, time], range: [0, 0.1]", lambda x: x.double() <= 0.1),
]


@pytest.mark.parametrize(("spec", "condition"), TYPES)
def test_a_range_is_that_of_the_type_that_compares(spec: str, condition: Callable[[Tensor], Tensor]) -> None:
    """Only values at its ends show it, which no draw has."""

    class AtTheEnd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if condition(x).all() else x  # branch

    with pytest.raises(LoweringError, match=r"depend on the values of its inputs .*# branch"):
        lower(AtTheEnd(), config_of(f"{{x: {{dtype: {spec}}}}}"))


def changed(ids: Tensor) -> None:
    copied = ids * 1
    copied.view(-1).sub_(1)
    ids.clone().sub_(1)
    ids.flip(1)[:, :1].sub_(1)


def test_a_range_is_believed_while_copies_are_changed() -> None:
    assert lower(Branching(changed), CONFIG).decided == {"ids"}


def written(mask: Tensor) -> Tensor:
    mask.flatten()[0] = 7
    return mask


MASK_CHANGES: list[Callable[[Tensor], Any]] = [
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
    lambda m: m.half(),
    lambda m: m.to(torch.bfloat16),
    lambda m: m * 0.1,
    lambda m: m.eq(1),
    lambda m: m > 200,
    lambda m: torch.ones_like(m, dtype=torch.uint8),
    written,
]
NEW_MASKS: list[Callable[[int], Tensor]] = [
    lambda t: torch.ones(1, t, dtype=torch.bool),
    lambda t: torch.ones(1, t).new_ones((t, 1), dtype=torch.uint8),
    lambda t: torch.zeros_like(torch.randn(1, t), dtype=torch.uint8),
    lambda t: torch.zeros(2, t, dtype=torch.bool),
]


@given(
    st.sampled_from([1, 2, 300, 2049]), st.sampled_from(NEW_MASKS), st.lists(st.sampled_from(MASK_CHANGES), max_size=4)
)
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


@pytest.mark.parametrize("mask", NEW_MASKS)
def test_the_value_of_a_new_mask_is_known(mask: Callable[[int], Tensor]) -> None:
    with SingleRequestMode():
        assert uniform_value(mask(3)[0]) == mask(3)[0, 0].item()


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
        assert uniform_value(rounded(torch.arange(2052)) < with_known_values(torch.tensor([2052]), [2052])) is None
