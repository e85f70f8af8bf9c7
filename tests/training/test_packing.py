from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import _VF, Tensor

from torchserve_neuron_lstm.training.packing import gather, pack, scatter, scatter_with_mask, unpack

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=9).map(lambda rows: sorted(rows, reverse=True))


def batch(lengths: list[int], batch_first: bool, longer: int = 0, features: tuple[int, ...] = (3,)) -> Tensor:
    sizes = (len(lengths), lengths[0] + longer) if batch_first else (lengths[0] + longer, len(lengths))
    return torch.randn(*sizes, *features, generator=torch.Generator().manual_seed(0))


def outcome(function: Callable[..., tuple[Tensor, Tensor]], x: Tensor, lengths: Tensor) -> str:
    try:
        return str([tensor.tolist() for tensor in function(x, lengths, True)])
    except (RuntimeError, IndexError) as error:
        return str(error).splitlines()[0]


@given(LENGTHS, st.booleans(), st.booleans(), st.sampled_from([0, 2]), st.sampled_from([(), (3,), (2, 2)]))
def test_pack_is_that_of_torch(
    lengths: list[int], batch_first: bool, turned: bool, longer: int, features: tuple[int, ...]
) -> None:
    x = batch(lengths, batch_first, longer, features)
    if turned:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    x.requires_grad_()
    data, sizes = pack(x, torch.tensor(lengths), batch_first)
    theirs, their_sizes = _VF._pack_padded_sequence(x, torch.tensor(lengths), batch_first)
    weights = torch.arange(float(data.numel())).view(data.shape)

    assert torch.equal(data, theirs)
    assert torch.equal(sizes, their_sizes)
    assert torch.equal(*(torch.autograd.grad((d * weights).sum(), x)[0] for d in (data, theirs)))


@given(LENGTHS, st.booleans(), st.sampled_from([0, 3]), st.sampled_from([0.0, -1.5, float("-inf")]))
def test_unpack_is_that_of_torch(lengths: list[int], batch_first: bool, longer: int, padding: float) -> None:
    data, sizes = _VF._pack_padded_sequence(batch(lengths, batch_first), torch.tensor(lengths), batch_first)
    data.requires_grad_()
    total = lengths[0] + longer
    padded, n = unpack(data, sizes, batch_first, padding, total)
    theirs, their_n = _VF._pad_packed_sequence(data, sizes, batch_first, padding, total)
    weights = torch.arange(float(padded.numel())).view(padded.shape)
    real = torch.isfinite(theirs)

    assert torch.equal(padded, theirs)
    assert torch.equal(n, their_n)
    if len(lengths) > 1 and total > 1:
        assert padded.stride() == theirs.stride()
    assert torch.equal(*(torch.autograd.grad((p * weights)[real].sum(), data)[0] for p in (padded, theirs)))


def test_ids_stay_ids() -> None:
    ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
    data, sizes = pack(ids, torch.tensor([3, 2]), True)
    back, _ = unpack(data, sizes, True, 0.0, 3)

    assert data.tolist() == [5, 8, 6, 9, 7]
    assert torch.equal(back, ids)


@pytest.mark.parametrize("lengths", [[3, 3], [3, 2]], ids=str)
def test_writing_to_packed_or_unpacked_data_changes_nothing_else(lengths: list[int]) -> None:
    x = torch.zeros(2, 3, 1)
    data, sizes = pack(x, torch.tensor(lengths), True)
    data += 1
    padded, n = unpack(data, sizes, True, 0.0, 3)
    padded += 1
    n += 1

    assert x.sum() == 0
    assert torch.equal(data, torch.ones_like(data))
    assert unpack(data, sizes, True, 0.0, 3)[1].tolist() == lengths


@pytest.mark.parametrize(
    ("lengths", "dtype", "rows"),
    [
        *((lengths, torch.int64, 2) for lengths in ([2, 3], [3, 0], [3, 2, 1], [4, 2], [[3, 2]], [])),
        ([3, 1, 2], torch.int64, 3),
        ([3, 2], torch.int32, 2),
        ([3, 2], torch.float32, 2),
    ],
    ids=["unsorted", "zero", "rows", "long", "2d", "none", "unsorted between the ends", "int32", "float32"],
)
def test_what_torch_refuses_is_refused_by_torch(lengths: list[int], dtype: torch.dtype, rows: int) -> None:
    x, n = torch.zeros(rows, 3, 1), torch.tensor(lengths, dtype=dtype)

    assert outcome(pack, x, n) == outcome(_VF._pack_padded_sequence, x, n)
    assert dtype == torch.int64 or "int64" in outcome(pack, x, n)


def test_gradients_of_gradients() -> None:
    index = torch.tensor([3, 0, 1])
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    padded = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradgradcheck(lambda v: scatter(v, index, 4).square(), values)
    assert torch.autograd.gradgradcheck(lambda v: scatter_with_mask(v, index, 4, 2).square(), values)
    assert torch.autograd.gradgradcheck(lambda p: gather(p, index).square(), padded)


def test_the_flags_are_one_on_padding() -> None:
    values, index = torch.tensor([[5.0], [6.0]]), torch.tensor([2, 0])

    assert scatter_with_mask(values, index, 3, 1).tolist() == [[6, 0], [1, 1], [5, 0]]
    assert scatter_with_mask(values, index, 3, 2).tolist() == [[6, 0, 0], [1, 1, 1], [5, 0, 0]]
