import math

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.backends.differences import allowed_rounding, difference


@given(st.floats(allow_nan=True), st.floats(allow_nan=True))
@example(math.nan, 1.0)
@example(1.0, math.nan)
def test_a_difference_is_finite_only_between_finite_numbers_or_equals(ours: float, theirs: float) -> None:
    a, b = torch.tensor([ours], dtype=torch.float64), torch.tensor([theirs], dtype=torch.float64)
    error, ratio = difference(a, b, (1e-5, 1e-5))
    same = ours == theirs or (math.isnan(ours) and math.isnan(theirs))

    assert (error == 0 == ratio) if same else error > 0
    assert same or bool(torch.isfinite(a) & torch.isfinite(b)) or error == ratio == float("inf")


def test_what_follows_from_rounding_errors_alone_may_differ() -> None:
    """Equal timesteps divided by their deviation: 0, or the rounding errors of an engine that adds in another order."""
    x = torch.full((16, 5), 300.0)

    def normalized(values: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
        products = values @ torch.linspace(-1.0, 2.0, 30).sin().reshape(5, 6)
        deviations = (products + errors) - (products + errors).mean(0)
        return deviations / (deviations.square().mean(0) + 1e-10).sqrt()

    eager = normalized(x, torch.zeros(6))
    other_order = normalized(x, torch.tensor([[3e-5], [0.0]]).repeat(8, 6))
    (rounding,) = allowed_rounding(lambda changed: [normalized(changed[0], torch.zeros(6))], [x], [eager])

    assert difference(other_order, eager, (1e-5, 0.0))[1] > 100
    assert difference(other_order, eager, (1e-5 + rounding, 0.0))[1] <= 1
