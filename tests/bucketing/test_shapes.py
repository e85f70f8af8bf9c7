import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.errors import SequenceTooLong
from torchserve_neuron_lstm.bucketing.padding import unpad
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid, TensorSpec, check_time_size, size_at

from .strategies import grids


@pytest.mark.parametrize("sizes", [(), (0, 1), (2, 1), (1, 1), (-1,)])
def test_sizes_that_do_not_ascend_from_one_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"batches: expected (ascending sizes, each once|sizes of 1 or more), got \["):
        BucketGrid(batches=sizes, lengths=(1,))
    with pytest.raises(ValueError, match=r"lengths: expected (ascending sizes, each once|sizes of 1 or more), got \["):
        BucketGrid(batches=(1,), lengths=sizes)


@given(grids(), st.integers(1, 20))
def test_the_smallest_length_that_fits_is_found_or_the_request_is_refused(grid: BucketGrid, length: int) -> None:
    fitting = [edge for edge in grid.lengths if edge >= length]

    if fitting:
        assert grid.bucket_length_for(length) == fitting[0]
    else:
        with pytest.raises(SequenceTooLong) as refusal:
            grid.bucket_length_for(length)
        assert str(refusal.value) == str(SequenceTooLong(length, grid.lengths))


def test_a_sequence_too_long_is_told_the_longest_bucket_and_all_buckets() -> None:
    """The client learns the accepted lengths."""
    with pytest.raises(SequenceTooLong, match=r"33 timesteps fits no bucket: the longest holds 32 \(buckets: 16, 32\)"):
        BucketGrid((1,), (16, 32)).bucket_length_for(33)
    with pytest.raises(SequenceTooLong, match=r"33 timesteps fits no bucket: the longest holds 32$"):
        BucketGrid((1,), (32,)).bucket_length_for(33)


@given(st.integers(1, 5), st.integers(-3, 3), st.integers(1, 4), st.integers(1, 10_000))
def test_an_expression_has_the_value_that_python_gives_it(factor: int, added: int, stride: int, time: int) -> None:
    text = f"({factor}*time + {added})//{stride} + 1"

    assert size_at(text, time) == (factor * time + added) // stride + 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "3", "Time", "time / 2", "time()", "time.real", "__import__('os')", "time if 1 else 2"),
        *("time**2", "1 +", "x", "time//0", pytest.param("(" * 5000 + "time" + ")" * 5000, id="many levels")),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """A manifest may come from anywhere: only integer arithmetic on `time` is evaluated, of few levels."""
    with pytest.raises(ValueError, match="expected an integer expression of time"):
        check_time_size(text)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=5))
def test_padding_is_removed_at_the_own_number_of_frames(lengths: list[int]) -> None:
    spec = TensorSpec("frames", "float32", ("batch", "(time - 1)//2 + 1", 2))
    frames = torch.arange(len(lengths) * 8 * 2, dtype=torch.float32).reshape(len(lengths), 8, 2)

    parts = unpad(frames, spec, lengths)

    for row, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        assert torch.equal(part, frames[row, : (length + 1) // 2])
