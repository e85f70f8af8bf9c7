import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.padding import _padding, lengths_tensor, pad, unpad
from torchserve_neuron_lstm.bucketing.shapes import Axis, Bucket, TensorSpec

from .strategies import padding_problems

Problem = tuple[TensorSpec, Bucket, list[torch.Tensor], list[int]]

IDS = TensorSpec("ids", "int64", ("batch", "time"))
FRAMES = TensorSpec("frames", "float32", ("time", "batch", 2))
UNBATCHED = TensorSpec("wave", "float32", ("time", 2))


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal shape, dtype and memory: NaN is NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))


@given(padding_problems())
def test_unpadding_what_was_padded_gives_the_items_back(problem: Problem) -> None:
    spec, bucket, items, lengths = problem

    back = unpad(pad(items, spec, bucket), spec, lengths)

    assert len(back) == len(items)
    assert all(same_bits(ours, theirs) for ours, theirs in zip(back, items, strict=True))


@given(padding_problems())
def test_every_cell_is_an_items_own_or_the_pad_value(problem: Problem) -> None:
    spec, bucket, items, _ = problem

    padded = pad(items, spec, bucket)

    assert tuple(padded.shape) == spec.sizes(*bucket)
    assert padded.is_contiguous()
    pad_cell = torch.tensor(spec.pad_value, dtype=padded.dtype)
    for index in itertools.product(*map(range, padded.shape)):
        row = 0 if spec.batch_dim is None else index[spec.batch_dim]
        place = tuple(position for dim, position in enumerate(index) if dim != spec.batch_dim)
        inside = row < len(items) and all(at < size for at, size in zip(place, items[row].shape, strict=True))
        assert same_bits(padded[index], items[row][place] if inside else pad_cell)


def test_an_item_that_fills_its_bucket_is_not_copied_unless_it_is_scattered() -> None:
    """Engines read memory in order, so a tensor of the right shape may still be copied."""
    item, scattered = torch.rand(5, 2), torch.rand(2, 5).t()

    assert pad([item], UNBATCHED, Bucket(1, 5)) is item
    batched = pad([item], FRAMES, Bucket(1, 5))
    assert (batched.shape, batched.data_ptr()) == ((5, 1, 2), item.data_ptr())
    padded = pad([scattered], UNBATCHED, Bucket(1, 5))
    assert padded.is_contiguous()
    assert torch.equal(padded, scattered)


@given(padding_problems())
def test_padding_is_new_each_time(problem: Problem) -> None:
    """A program that changes its inputs does not affect the next batch."""
    spec, bucket, items, _ = problem
    kept = [item.clone() for item in items]
    first = pad(items, spec, bucket).clone()

    pad(kept, spec, bucket).fill_(1)

    assert same_bits(pad(items, spec, bucket), first)


@pytest.mark.parametrize("shape", [("batch", "time"), ("time", "batch", 2), ("batch", 2, "time"), ("time",)])
def test_a_bucket_may_be_of_any_length(shape: tuple[int | Axis, ...]) -> None:
    spec = TensorSpec("x", "float32", shape, pad_value=-1)
    item = torch.ones([1 if isinstance(size, str) else size for size in spec.item_shape])

    for length in (3, 1, 64, 65, 2, 200):
        padded = pad([item], spec, Bucket(2, length))
        assert padded.shape == spec.sizes(2, length)
        assert padded.clamp(min=0).sum() == item.numel()


@given(padding_problems())
def test_unpadded_parts_survive_the_next_run(problem: Problem) -> None:
    """An engine that overwrites its output buffer does not change answers given before."""
    spec, bucket, items, lengths = problem
    buffer = pad(items, spec, bucket).clone()

    parts = unpad(buffer, spec, lengths)
    buffer.fill_(1)
    buffer.logical_not_() if buffer.dtype == torch.bool else buffer.neg_()

    assert all(same_bits(part, item) for part, item in zip(parts, items, strict=True))
    assert all(part.is_contiguous() for part in parts)


@given(padding_problems())
def test_each_part_is_its_owners(problem: Problem) -> None:
    spec, bucket, items, lengths = problem
    parts = unpad(pad(items, spec, bucket), spec, lengths)

    parts[0].fill_(1)

    assert all(same_bits(part, item) for part, item in zip(parts[1:], items[1:], strict=True))


def zeros(spec: TensorSpec, length: int) -> torch.Tensor:
    sizes = [length if size == "time" else int(size) for size in spec.item_shape]
    return torch.zeros(sizes, dtype=getattr(torch, spec.dtype))


@pytest.mark.parametrize(
    ("spec", "item", "message"),
    [
        (IDS, torch.zeros(9, dtype=torch.int64), r"ids, item 1: expected int64 \[time<=8\], got int64 \[9\]"),
        (IDS, torch.zeros(3, 1, dtype=torch.int64), r"expected int64 \[time<=8\], got int64 \[3, 1\]"),
        (IDS, torch.zeros(3), r"expected int64 \[time<=8\], got float32 \[3\]"),
        (FRAMES, torch.zeros(3, 1), r"frames, item 1: expected float32 \[time<=8, 2\], got float32 \[3, 1\]"),
        (TensorSpec("map", "float32", ("batch", "time", "time")), torch.zeros(3, 2), r"got float32 \[3, 2\]"),
    ],
)
def test_an_item_of_another_shape_or_dtype_is_named(spec: TensorSpec, item: torch.Tensor, message: str) -> None:
    """Without the check it would be broadcast or converted silently."""
    with pytest.raises(ValueError, match=message):
        pad([zeros(spec, 1), item], spec, Bucket(4, 8))


@pytest.mark.parametrize(("spec", "count"), [(IDS, 3), (IDS, 0), (UNBATCHED, 2)])
def test_items_that_are_more_than_the_rows_are_refused(spec: TensorSpec, count: int) -> None:
    rows = 1 if spec is UNBATCHED else 2

    with pytest.raises(ValueError, match=f"{count} items for a bucket of {rows} rows"):
        pad([zeros(spec, 4)] * count, spec, Bucket(2, 4))


def test_unpad_refuses_what_the_tensor_does_not_have() -> None:
    """Without the check, fewer rows or timesteps would be returned."""
    padded = torch.zeros(2, 4, dtype=torch.int64)

    with pytest.raises(ValueError, match="ids: 3 lengths for 2 rows"):
        unpad(padded, IDS, [1, 1, 1])
    with pytest.raises(ValueError, match="ids: length 5 of 4 timesteps"):
        unpad(padded, IDS, [1, 5])


@given(st.data())
def test_dummy_rows_have_the_shortest_length(data: st.DataObject) -> None:
    bucket = Bucket(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9)))
    lengths = data.draw(st.lists(st.integers(1, bucket.length), max_size=bucket.batch))

    result = lengths_tensor(lengths, bucket)

    assert result.dtype == torch.int64
    assert result.tolist() == lengths + [min(lengths, default=1)] * (bucket.batch - len(lengths))


@pytest.mark.parametrize("lengths", [[0], [5], [1, 1, 1]])
def test_lengths_outside_the_bucket_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"do not fit a bucket of 2 x 4"):
        lengths_tensor(lengths, Bucket(2, 4))


@pytest.mark.parametrize("pad_value", [7, 2**53 + 1], ids=["a float", "no float"])
@pytest.mark.parametrize("shape", [("time", "batch"), ("batch", "time")])
def test_short_rows_and_dummy_rows_hold_the_pad_value(shape: tuple[int | Axis, ...], pad_value: int) -> None:
    spec = TensorSpec("ids", "int64", shape, pad_value=pad_value)

    padded = pad([torch.tensor([1, 2]), torch.tensor([3])], spec, Bucket(3, 3))

    by_row = padded if shape[0] == "batch" else padded.T
    assert by_row.tolist() == [[1, 2, pad_value], [3, pad_value, pad_value], [pad_value] * 3]


def test_padding_of_each_length_takes_memory_for_short_lengths_only() -> None:
    """A client can send a sequence of each length, and a view takes some 600 bytes for ever."""
    spec = TensorSpec("long", "uint8", ("batch", "time"), pad_value=3)
    item, views = torch.zeros(1, dtype=torch.uint8), _padding(spec)

    for length in (*range(2, 6000), 70_000):
        padded = pad([item], spec, Bucket(1, length))
        assert (padded.shape, int(padded[0, -1])) == ((1, length), 3)

    assert len(views) <= 4096
