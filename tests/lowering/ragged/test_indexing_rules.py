"""Sorting over time: padding is chosen by no index, also where real values tie with it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from computed import Computed
from input_configs import one_input
from torch import Tensor

from torchserve_neuron_lstm.backends.onnx_export import missing_translation
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

CONFIG = one_input("[batch, time, 3]", length="[4, 64]")
LENGTHS = (64, 40, 33, 9, 5, 3, 2, 1)
VALUES = torch.tensor([float("-inf"), float("inf"), float("nan"), 0.5])
LOWEST, HIGHEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


def half(x: Tensor) -> int:
    return max(1, x.size(1) // 2)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "ascending": lambda x: x.sort(1),
    "descending": lambda x: x.sort(1, descending=True),
    "stable": lambda x: torch.sort(x, dim=1, stable=True),
    "order": lambda x: (x.gather(1, x.argsort(1)), x.argsort(1)),
    "descending order": lambda x: (x.gather(1, x.argsort(1, True)), x.argsort(1, True)),
    "largest": lambda x: x.topk(half(x), 1),
    "smallest": lambda x: x.topk(half(x), 1, largest=False),
    "largest values": lambda x: (x.topk(half(x), 1)[0], x.argsort(1)),
}
WITH_TIES: dict[str, Callable[[Tensor], Any]] = {
    "highest integers": lambda x: torch.where(x > 0, HIGHEST, 1).sort(1),
    "lowest integers": lambda x: torch.where(x > 0, LOWEST, 1).topk(half(x), 1),
    "conditions": lambda x: (x > 0).sort(1, descending=True),
    "negated conditions": lambda x: (x > 0).sort(1),
}
"""Functions that sort equal values, of which torch may return any order."""


def within(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def checked(x: Tensor) -> Any:
        values, order = function(x)
        return values, order < x.size(1)

    return checked


def requests() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [VALUES[torch.randint(4, (1, length, 3), generator=generator)] for length in LENGTHS]


def padded(items: list[Tensor], padding: float) -> Tensor:
    x = torch.full((len(items), 64, 3), padding)
    for row, item in zip(x, items, strict=True):
        row[: item.size(1)] = item[0]
    return x


@pytest.mark.few(2)
@pytest.mark.parametrize("function", WITH_TIES.values(), ids=WITH_TIES.keys())
def test_padding_is_chosen_by_no_index_of_equal_values(function: Callable[[Tensor], Any]) -> None:
    """Integers and conditions have no value beyond all others, so that padding ties with the last of them."""
    program = lower(Computed(within(function)), CONFIG)
    items = requests()
    for padding in VALUES:
        values, valid = program.exported.module()(padded(items, float(padding)), torch.tensor(LENGTHS))

        for row, item in enumerate(items):
            own, _ = function(item)
            assert values[row : row + 1, : own.size(1)].equal(own)
            assert valid[row, : own.size(1)].all()


@pytest.mark.few(1)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_padding_is_chosen_by_no_index(function: Callable[[Tensor], Any]) -> None:
    program = lower(Computed(function), CONFIG)
    items = requests()
    for padding in VALUES:
        values, order = program.exported.module()(padded(items, float(padding)), torch.tensor(LENGTHS))

        for row, (item, length) in enumerate(zip(items, LENGTHS, strict=True)):
            own, _ = function(item)
            count = own.size(1)
            torch.testing.assert_close(values[row : row + 1, :count], own, rtol=0, atol=0, equal_nan=True)
            assert int(order[row, :count].max()) < length
            assert all(len(set(column.tolist())) == len(column) for column in order[row, :count].T)


def test_the_order_of_a_stable_sort_is_kept() -> None:
    function = FUNCTIONS["stable"]
    x = VALUES[torch.randint(4, (1, 40, 3), generator=torch.Generator().manual_seed(0))]
    batch = torch.cat([x, torch.full((1, 24, 3), float("inf"))], 1)

    order = lower(Computed(function), CONFIG).exported.module()(batch, torch.tensor([40]))[1]

    assert order[:, :40].equal(function(x)[1])


def test_the_largest_values_alone_need_no_sort() -> None:
    """Engines that have no sort may have this operator."""
    program = lower(Computed(lambda x: x.topk(half(x), 1)[0]), CONFIG)

    calls = {str(node.target) for node in program.exported.graph.nodes}
    assert "aten.topk.default" in calls
    assert not any("sort" in call for call in calls)


@pytest.mark.parametrize("descending", [False, True])
def test_sorted_values_can_be_written_as_onnx(descending: bool) -> None:
    program = lower(Computed(lambda x: x.sort(1, descending=descending)[0]), CONFIG)

    assert not any(map(missing_translation, calls_of(program)))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["ascending", "order", "largest", "smallest"])
def test_the_order_of_equal_values_cannot_be_written_as_onnx(name: str) -> None:
    """No engine of ONNX has torch's order of them."""
    assert any(map(missing_translation, calls_of(lower(Computed(FUNCTIONS[name]), CONFIG))))


def calls_of(program: LoweredModel) -> list[torch.fx.Node]:
    return [node for node in program.exported.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


TIED: dict[str, Callable[[Tensor], Any]] = {
    **FUNCTIONS,
    **WITH_TIES,
    "median": lambda x: x.median(1),
    "median without NaN": lambda x: x.nanmedian(1),
    "most frequent": lambda x: x.mode(1),
    "the third": lambda x: x.kthvalue(max(1, x.size(1) // 3), 1),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("function", TIED.values(), ids=TIED.keys())
def test_equal_values_are_in_the_order_of_the_request_alone(function: Callable[[Tensor], Any]) -> None:
    program = lower(Computed(function), CONFIG)
    items = requests()

    values, order = program.exported.module()(padded(items, 0.5), torch.tensor(LENGTHS))

    for row, item in enumerate(items):
        own, places = function(item)
        got = (values[row : row + 1, : own.size(1)], order[row : row + 1, : places.size(1)])
        torch.testing.assert_close(got, (own, places), rtol=0, atol=0, equal_nan=True)
