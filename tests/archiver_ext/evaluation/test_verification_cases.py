from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.evaluation.reference import ReferenceRequest
from torchserve_neuron_lstm.archiver_ext.evaluation.verification_cases import (
    PaddingFill,
    VerificationCase,
    cases_for_bucket,
    compose_batches,
    draw_cases,
    lengths_to_try,
    poisoned_padding,
)
from torchserve_neuron_lstm.bucketing.shapes import Bucket, DType, TensorSpec
from torchserve_neuron_lstm.lowering.exporter.random_values import VALUE_KINDS, random_values_of

from .summing_model import GRID, SPLIT, eager, program, silent


def test_a_model_that_answers_nothing_finite_is_refused() -> None:
    """Not-a-number in both results would prove nothing."""
    with pytest.raises(PackagingError, match="are NaN or infinite"):
        draw_cases(program(), GRID, lambda request: (torch.tensor([float("nan")]),), silent)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True).map(lambda some: tuple(sorted(some))),
    batch=st.integers(1, 9),
    data=st.data(),
)
def test_every_bucket_sees_its_longest_and_the_shortest_request(
    lengths: tuple[int, ...], batch: int, data: st.DataObject
) -> None:
    cases = [VerificationCase(ReferenceRequest(length, ()), ()) for length in lengths_to_try(lengths)]
    bucket = Bucket(batch, data.draw(st.sampled_from(lengths)))
    batches = compose_batches(bucket, cases_for_bucket(bucket, cases, program()))
    seen = {case.request.length for made in batches for case in made.cases}

    assert all(1 <= len(made.cases) <= batch for made in batches)
    assert {1, bucket.length} <= seen
    assert max(seen) == bucket.length
    assert {"pad_value", "random"} <= {made.padding for made in batches} or len(batches) < 3
    assert batch == 1 or any(len(made.cases) < batch for made in batches)


@given(st.integers(1, 9), st.integers(1, 30))
def test_a_piece_sees_what_needs_several_of_it(batch: int, length: int) -> None:
    cases = [VerificationCase(ReferenceRequest(timesteps, ()), ()) for timesteps in lengths_to_try((length, 100))]
    lengths = {case.request.length for case in cases_for_bucket(Bucket(batch, length), cases, program(chunked=SPLIT))}

    assert lengths == {case.request.length for case in cases if case.request.length <= 3 * length}
    assert max(lengths) > length
    batches = compose_batches(
        Bucket(batch, length), cases_for_bucket(Bucket(batch, length), cases, program(chunked=SPLIT))
    )
    assert max(case.request.length for made in batches for case in made.cases) == max(lengths)


def test_the_same_seed_draws_the_same() -> None:
    one, other = (draw_cases(program(), GRID, eager, silent) for _ in range(2))

    assert all(
        torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x.expected, y.expected, strict=True)
    )


@pytest.mark.parametrize("padding", ["pad_value", "large", "random"])
def test_padding_is_filled_and_requests_are_left(padding: PaddingFill) -> None:
    """Frames get arbitrary values, ids a valid one: an engine may abort on others."""
    frames, ids = program().inputs
    pad = poisoned_padding(padding, torch.Generator().manual_seed(0))
    items = [torch.full((length, 2), 0.5) for length in (3, 1)]

    padded = pad(items, frames, Bucket(4, 8))
    numbers = pad([torch.tensor(4), torch.tensor(2)], ids, Bucket(4, 8))

    assert [torch.equal(padded[: len(item), row], item) for row, item in enumerate(items)] == [True, True]
    rubbish = torch.cat([padded[3:, 0], padded[1:, 1], padded[:, 2], padded[:, 3]])
    assert bool((rubbish == 0).all()) == (padding == "pad_value")
    assert bool((rubbish == 1e4).all()) == (padding == "large")
    assert numbers[:2].tolist() == [4, 2]
    assert bool(((numbers >= 0) & (numbers < 5)).all())


@pytest.mark.parametrize(
    ("dtype", "facts", "least", "largest"),
    [
        ("int64", {}, -300, 300),
        ("uint8", {}, 0, 255),
        ("int16", {}, -(2**15), 2**15 - 1),
        ("int64", {"vocabulary": 5}, 0, 4),
        ("int32", {"value_range": (2, 9)}, 2, 9),
        ("bool", {}, 0, 1),
    ],
)
def test_integers_without_bounds_are_drawn_of_both_signs(
    dtype: DType, facts: dict[str, Any], least: int, largest: int
) -> None:
    spec, generator = TensorSpec("x", dtype, ("batch", "time"), **facts), torch.Generator().manual_seed(0)
    drawn = torch.cat([random_values_of(kind, spec, (500,), generator, 8).long() for kind in VALUE_KINDS])

    near = 5 + (largest - least) // 100
    assert least <= int(drawn.min()) <= least + near
    assert largest - near <= int(drawn.max()) <= largest
