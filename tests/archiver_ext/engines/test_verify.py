"""Verification finds every way in which a program can be wrong, and nothing in one that is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.engines.reference import Answer, Request
from torchserve_neuron_lstm.archiver_ext.engines.verify import (
    Case,
    Checked,
    Verdict,
    compose,
    difference,
    draw_cases,
    lengths_to_try,
    served_by,
    to_tensors,
    verify,
)
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.lowering.program import Program
from torchserve_neuron_lstm.bucketing.grid import Bucket, BucketGrid
from torchserve_neuron_lstm.bucketing.spec import TensorSpec

GRID = BucketGrid((1, 4), (3, 8))
TOLERANCE = (1e-5, 1e-5)
Right = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


def program(**changes: Any) -> Program:
    """Sums up to every step of x[T, B, 2], and the whole sum: two answers, in two layouts."""
    facts: dict[str, Any] = {
        "inputs": (
            TensorSpec("x", "float32", ("time", "batch", 2)),
            TensorSpec("ids", "int64", ("batch",), vocabulary=5),
        ),
        "takes_lengths": True,
        "outputs": (TensorSpec("sums", "float32", ("batch", "time", 2)), TensorSpec("whole", "float32", ("batch",))),
        "padding": "masked",
        "padding_reason": "",
        "constants": {},
    }
    return Program(exported=cast(torch.export.ExportedProgram, None), **{**facts, **changes})


def eager(request: Request) -> Answer:
    """The reference of `program`."""
    x, ids = request.inputs
    return x.cumsum(0), x.sum() + ids


def right(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`program` over padded tensors, as it should be."""
    x, ids, lengths = tensors
    valid = torch.arange(x.shape[0])[:, None] < lengths
    x = torch.where(valid[..., None], x, 0.0)
    return [x.cumsum(0).transpose(0, 1), x.sum((0, 2)) + ids]


def unmasked(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Lets the padding into the whole sum."""
    return [right(tensors)[0], tensors[0].sum((0, 2)) + tensors[1]]


def last_row_off(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Errs in one row of a batch of several."""
    sums, whole = right(tensors)
    whole[-1] += 0.01 * (len(whole) > 1)
    return [sums, whole]


def last_step_off(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Errs in the last step of the longest sequences."""
    sums, whole = right(tensors)
    sums[:, -1] += 0.01
    return [sums, whole]


def shortest_off(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Errs for sequences of one step."""
    sums, whole = right(tensors)
    return [sums, whole + 0.01 * (tensors[2] == 1)]


def not_a_number(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Answers nothing sensible."""
    return [torch.full_like(answer, float("nan")) for answer in right(tensors)]


def transposed(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Has another shape, of as many elements."""
    sums, whole = right(tensors)
    return [sums.flip(-1).unsqueeze(-1), whole]


def silent(done: int, total: int, text: str) -> None:
    """No progress to tell."""


def check(run: Right, made: Program | None = None) -> list[Checked]:
    """Every bucket of the grid."""
    made = made or program()
    cases = draw_cases(made, GRID, eager, silent)
    return [verify(run, bucket, made, cases, TOLERANCE) for bucket in GRID.buckets]


def test_a_right_program_passes_in_every_bucket() -> None:
    """Nothing of what stands in the padding or in rows to spare disturbs it."""
    checked = check(right)

    assert all(found.verdict.is_passing() and found.max_error < 1e-5 for found in checked)
    assert [found.bucket for found in checked] == list(GRID.buckets)


@pytest.mark.parametrize("wrong", [unmasked, last_step_off, shortest_off, not_a_number, transposed])
def test_a_wrong_program_is_found_in_every_bucket(wrong: Right) -> None:
    """The verdict, the size of the error and the place are told."""
    for found in check(wrong):
        assert found.verdict is Verdict.MISSES
        assert found.worst_ratio > 1
        assert found.max_error >= 0.005
        assert "timesteps, row" in found.where


def test_an_error_in_one_row_is_found() -> None:
    """In buckets of several rows, and only there."""
    assert [found.verdict.is_passing() for found in check(last_row_off)] == [True, True, False, False]


def test_a_program_that_may_not_be_padded_sees_its_own_lengths_only() -> None:
    """Every row of every batch is as long as the bucket."""
    exact = program(padding="exact_lengths")
    seen = set()

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        seen.add((tensors[0].shape[0], *tensors[2].tolist()))
        return right(tensors)

    cases = draw_cases(exact, GRID, eager, silent)
    for bucket in GRID.buckets:
        verify(run, bucket, exact, cases, TOLERANCE)

    real = {(length, *(set(rows) - {1})) for length, *rows in seen}  # rows to spare have length 1
    assert real == {(3, 3), (8, 8)}


def test_a_model_that_answers_nothing_finite_is_refused() -> None:
    """Weights of not-a-number agree with themselves; that verifies nothing."""
    with pytest.raises(PackagingError, match="nothing but NaN"):
        draw_cases(program(), GRID, lambda request: (torch.tensor([float("nan")]),), silent)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True).map(lambda some: tuple(sorted(some))),
    batch=st.integers(1, 9),
    data=st.data(),
)
def test_every_bucket_sees_its_longest_and_the_shortest_request(
    lengths: tuple[int, ...], batch: int, data: st.DataObject
) -> None:
    """Batches have the bucket's rows, hold what fits, the maximum and length 1, and a request of a smaller bucket."""
    cases = [Case(Request(length, ()), ()) for length in lengths_to_try(lengths, padded=True)]
    bucket = Bucket(batch, data.draw(st.sampled_from(lengths)))
    batches = compose(bucket, served_by(bucket, cases, program()))
    seen = {row.request.length for made in batches for row in made.rows if row is not None}

    assert all(len(made.rows) == batch for made in batches)
    assert {1, bucket.length} <= seen
    assert max(seen) == bucket.length
    assert {"pad_value", "random"} <= {made.padding for made in batches} or len(batches) < 3
    assert batch == 1 or any(None in made.rows for made in batches)


def test_the_same_seed_draws_the_same() -> None:
    """Two packagings verify the same."""
    one, other = (draw_cases(program(), GRID, eager, silent) for _ in range(2))

    assert all(
        torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x.expected, y.expected, strict=True)
    )


def test_ids_stay_in_their_vocabulary_even_in_the_padding() -> None:
    """An engine may abort on others."""
    made = program()
    cases = draw_cases(made, GRID, eager, silent)
    rng = torch.Generator().manual_seed(0)
    for bucket in GRID.buckets:
        for batch in compose(bucket, served_by(bucket, cases, made)):
            ids = to_tensors(batch, bucket, made, rng)[1]
            assert bool(((ids >= 0) & (ids < 5)).all())


@given(st.floats(allow_nan=True), st.floats(allow_nan=True))
def test_a_difference_is_finite_only_between_finite_numbers_or_equals(ours: float, theirs: float) -> None:
    """Equal values, infinite and not-a-number alike, differ by nothing; one that is finite alone, by infinity."""
    a, b = torch.tensor([ours], dtype=torch.float64), torch.tensor([theirs], dtype=torch.float64)
    error, ratio = difference(a, b, (1e-5, 1e-5))
    same = ours == theirs or (math.isnan(ours) and math.isnan(theirs))

    assert (error == 0 == ratio) if same else error > 0
    assert same or bool(torch.isfinite(a) & torch.isfinite(b)) or error == ratio == float("inf")
