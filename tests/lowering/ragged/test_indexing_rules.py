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
    "stable": lambda x: torch.sort(x, dim=1, stable=True),
    "ascending": lambda x: x.sort(1),
    "descending": lambda x: x.sort(1, descending=True),
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


def requests() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [VALUES[torch.randint(4, (1, length, 3), generator=generator)] for length in LENGTHS]


def padded(items: list[Tensor], padding: float) -> Tensor:
    x = torch.full((len(items), 64, 3), padding)
    for row, item in zip(x, items, strict=True):
        row[: item.size(1)] = item[0]
    return x


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


@pytest.mark.few(5)
@pytest.mark.parametrize("function", TIED.values(), ids=TIED.keys())
def test_equal_values_are_in_the_order_of_the_request_alone(function: Callable[[Tensor], Any]) -> None:
    """No value is beyond all integers and conditions, so that padding ties with the last of them."""
    run = lower(Computed(function), CONFIG).exported.module()
    items = requests()
    for padding in VALUES:
        values, order = run(padded(items, float(padding)), torch.tensor(LENGTHS))

        for row, item in enumerate(items):
            own, places = function(item)
            got = (values[row : row + 1, : own.size(1)], order[row : row + 1, : places.size(1)])
            torch.testing.assert_close(got, (own, places), rtol=0, atol=0, equal_nan=True)
