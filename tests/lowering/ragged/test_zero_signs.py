"""Signs of zeros: 0.0 and -0.0 are equal, and a model that tells them apart has torch's choice or is not lowered."""

from collections.abc import Callable

import pytest
import torch
from computed import Computed
from input_configs import one_input
from torch import Tensor

from torchserve_neuron_lstm.lowering import LoweringError, lower

CONFIG = one_input("[batch, time, 3]", length="[24]", batch="[4]")
EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "sorted": lambda x: torch.signbit(x.sort(1)[0]),
    "largest, divided by": lambda x: 1 / x.topk(2, 1)[0],
    "middle": lambda x: torch.copysign(torch.ones(3), x.kthvalue(2, 1)[0]),
    "median": lambda x: x.median(1)[0].reciprocal(),
    "extreme of positive numbers": lambda x: x / x.abs().amax((1, 2), keepdim=True),
    "extreme, never zero": lambda x: x / (x.amax((1, 2), keepdim=True) + 1e-6),
    "extreme, not told": lambda x: x.amax((1, 2)) ** 2,
}
CHOSEN_BY_SIZE: dict[str, Callable[[Tensor], Tensor]] = {
    "extreme": lambda x: torch.signbit(x.amin((1, 2))),
    "of all, divided by": lambda x: (x / x.max()).sum(1),
    "median of all": lambda x: torch.atan2(x.median(), torch.tensor(-1.0)).reshape(1),
    "of two": lambda x: torch.signbit(x.minimum(x.flip(1))),
}


@pytest.mark.parametrize("function", EXACT.values(), ids=EXACT.keys())
def test_zeros_have_the_signs_of_the_request_alone(function: Callable[[Tensor], Tensor]) -> None:
    program = lower(Computed(function), CONFIG).exported.module()
    lengths = torch.tensor([24, 15, 8, 3])
    zeros = torch.tensor([0.0, -0.0])[torch.randint(2, (4, 24, 3), generator=torch.Generator().manual_seed(0))]

    (answers,) = program(zeros, lengths)

    for row, length, answer in zip(zeros, lengths, answers, strict=True):
        alone = function(row[None, :length])[0]
        torch.testing.assert_close(answer[tuple(map(slice, alone.shape))], alone, rtol=0, atol=0, equal_nan=True)


@pytest.mark.few(2)
@pytest.mark.parametrize("function", CHOSEN_BY_SIZE.values(), ids=CHOSEN_BY_SIZE.keys())
def test_a_choice_that_depends_on_the_number_of_elements_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(LoweringError, match=r"tells 0\.0 from -0\.0, and which of them torch chooses.*test_zero_signs"):
        lower(Computed(function), CONFIG)
