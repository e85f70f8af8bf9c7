"""Weights in huge pages are the same weights, and a system may have none."""

from __future__ import annotations

import mmap
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.backends.native.huge_pages import in_huge_pages

LARGE = 1 << 18
"""Floats of 1 MiB."""


@given(
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from([torch.float32, torch.bfloat16])), min_size=1, max_size=6),
    st.integers(0, 6),
)
def test_copies_are_equal_and_apart(shapes: list[tuple[int, torch.dtype]], place: int) -> None:
    """Each has the dtype and shape of its own, begins with a cache line, and shares no byte with another."""
    weights = [torch.rand(3, width).to(dtype) for width, dtype in shapes]
    weights.insert(min(place, len(weights)), torch.rand(LARGE))

    copies = in_huge_pages(weights)

    assert all(torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(weights, copies, strict=True))
    assert all(copy.data_ptr() % 64 == 0 for copy in copies if copy.numel())
    ends = sorted((copy.data_ptr(), copy.data_ptr() + copy.numel() * copy.element_size()) for copy in copies)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))


def test_few_weights_stay_where_they_are() -> None:
    """A huge page for each small model would take more memory than the model."""
    weights = [torch.rand(8, 8), torch.rand(8)]

    assert [copy.data_ptr() for copy in in_huge_pages(weights)] == [weight.data_ptr() for weight in weights]


@pytest.mark.parametrize("refuses", [True, False])
def test_a_system_without_huge_pages_gives_small_ones(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel refuses the advice, or Python does not know it."""
    if refuses:
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)
    else:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    weight = torch.rand(LARGE)

    assert torch.equal(in_huge_pages([weight])[0], weight)
