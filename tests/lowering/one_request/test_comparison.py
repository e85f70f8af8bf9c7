"""Values that a normal distribution does not have, in the comparison with eager mode."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from computed import Computed
from input_configs import one_input
from torch import Tensor

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.lowering import LoweringError
from torchserve_neuron_lstm.lowering.one_request.comparison import Comparison

CONFIG = one_input("[batch, time, 2]", batch="[4]", length="[9]")


def picky(x: Tensor) -> Tensor:
    if x.abs().max() > 40:
        raise ValueError("a value is too large")
    return 2 * x


def compare(run: Callable[[Tensor], Tensor], model: Callable[[Tensor], Tensor] = lambda x: 2 * x) -> None:
    outputs = (TensorSpec("y", "float32", ("batch", "time", 2)),)
    program = cast(torch.export.ExportedProgram, None)
    comparison = Comparison(Computed(model), CONFIG, program, CONFIG.input_specs, outputs)

    def called(x: Tensor, lengths: Tensor) -> Any:
        return [run(x)]

    comparison.check(called, [1, 4, 9], 9)
    comparison.check_values(called, [1, 4, 9], 9)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda x: 2 * x.clamp(max=65), "values of about 300"),
        (lambda x: torch.where((x.mean((1, 2), keepdim=True) + 50).abs() < 2, 0, 2 * x), "values about -50"),
        (lambda x: torch.where(x[:, :1].abs().amax((1, 2), keepdim=True) < 0.1, 0, 2 * x), "values near 0"),
        (lambda x: torch.where(x[..., :1] == x[..., 1:], 0, 2 * x), "values that are equal"),
        (lambda x: torch.where(x == 0, float("nan"), 2 * x), "values with ties"),
        (lambda x: 2 * x + 0 * torch.nan_to_num(x).square().sum(), "values near 0"),
    ],
)
def test_a_program_that_is_right_near_1_only_is_refused(run: Callable[[Tensor], Tensor], words: str) -> None:
    with pytest.raises(LoweringError, match=rf"differs from that of a request alone .* for {words}"):
        compare(run)


def test_rounding_errors_of_large_values_are_allowed() -> None:
    """They grow with the square of the model's inputs, and its results do not."""
    compare(torch.ones_like, lambda x: (x * x + 1) - x * x)


def test_values_that_the_model_does_not_take_are_left_out() -> None:
    compare(lambda x: torch.where(x > 40, 0, 2 * x), picky)


def summed(x: Tensor) -> Tensor:
    return x.sum(1, keepdim=True).expand_as(x)


def test_a_program_that_reads_padding_is_refused() -> None:
    with pytest.raises(LoweringError, match="differs from that of a request alone"):
        compare(summed, summed)
