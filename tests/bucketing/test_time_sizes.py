"""Sizes that follow from a sequence's timesteps: expressions that manifests hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.padding import unpad
from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.bucketing.time_sizes import check_time_size, size_at


@given(st.integers(1, 5), st.integers(-3, 3), st.integers(1, 4), st.integers(1, 10_000))
def test_an_expression_has_the_value_that_python_gives_it(factor: int, added: int, stride: int, time: int) -> None:
    """A convolution's number of frames, by any stride and padding."""
    text = f"({factor}*time + {added})//{stride} + 1"

    assert size_at(text, time) == (factor * time + added) // stride + 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "Time",
        "time / 2",
        "time()",
        "time.real",
        "__import__('os')",
        "time if 1 else 2",
        "time**2",
        "1 +",
        "x",
        "time//0",
        pytest.param("(" * 5000 + "time" + ")" * 5000, id="many levels"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """A manifest may come from anywhere: only integer arithmetic on `time` is evaluated, of few levels."""
    with pytest.raises(ValueError, match="expected an integer expression of time"):
        check_time_size(text)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=5))
def test_padding_is_removed_at_the_own_number_of_frames(lengths: list[int]) -> None:
    """Each request gets the frames that its own timesteps make."""
    spec = TensorSpec("frames", "float32", ("batch", "(time - 1)//2 + 1", 2))
    frames = torch.arange(len(lengths) * 8 * 2, dtype=torch.float32).reshape(len(lengths), 8, 2)

    parts = unpad(frames, spec, lengths)

    for row, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        assert torch.equal(part, frames[row, : (length + 1) // 2])
