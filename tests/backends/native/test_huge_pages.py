import mmap
import os
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.backends.native.packing import in_huge_pages

LARGE = 1 << 18
"""Floats of 1 MiB."""
STATM = Path("/proc/self/statm")


@given(
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from([torch.float32, torch.bfloat16])), min_size=1, max_size=6),
    st.integers(0, 6),
)
def test_copies_are_equal_and_apart(shapes: list[tuple[int, torch.dtype]], place: int) -> None:
    weights = [torch.rand(3, width).to(dtype) for width, dtype in shapes]
    weights.insert(min(place, len(weights)), torch.rand(LARGE))

    copies = in_huge_pages(given := [*weights])

    assert given == []
    assert all(torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(weights, copies, strict=True))
    assert all(copy.data_ptr() % 64 == 0 for copy in copies if copy.numel())
    ends = sorted((copy.data_ptr(), copy.data_ptr() + copy.numel() * copy.element_size()) for copy in copies)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))


def test_few_weights_stay_where_they_are() -> None:
    """A huge page for each small model would take more memory than the model."""
    weights = [torch.rand(8, 8), torch.rand(8)]

    assert [copy.data_ptr() for copy in in_huge_pages([*weights])] == [weight.data_ptr() for weight in weights]


@pytest.mark.parametrize("refuses", [True, False])
def test_a_system_without_huge_pages_gives_small_ones(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if refuses:
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)
    else:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    weight = torch.rand(LARGE)

    assert torch.equal(in_huge_pages([weight])[0], weight)


def test_memory_that_does_not_suffice_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's error would be taken for a damaged archive."""
    monkeypatch.setattr(mmap, "mmap", Mock(side_effect=OSError(12, "Cannot allocate memory")))

    with pytest.raises(MemoryError, match=r"out of memory for 1 MiB of weights: .*Cannot allocate memory"):
        in_huge_pages([torch.rand(LARGE)])


def resident_bytes() -> int:
    return int(STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason="needs Linux, which tells a process its memory")
def test_a_page_that_is_less_than_half_full_stays_small() -> None:
    weights = [torch.rand(550_000) for _ in range(20)]
    before = resident_bytes()
    copies = [in_huge_pages([weight]) for weight in weights]

    assert len(copies) == 20
    assert resident_bytes() - before < 1.3 * 20 * 550_000 * 4
