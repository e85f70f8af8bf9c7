"""Models that count timesteps: chunks continue sums and positions of the chunk before."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from chunked_models import assert_chunks_equal_whole_sequences
from input_configs import one_input

from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

from .position_models import COUNTING, ENDING, MORE, Counting, running_mean, sines

CONFIG = one_input("[batch, time, 3]", batch="[1, 4]", length="[4, 9]")
LENGTHS = (9, 8, 5, 3, 1, 1)
Before = Callable[..., Any]
BEFORE = [pytest.param(one, id=one.__name__, marks=[pytest.mark.long] * (one in MORE)) for one in COUNTING]


@cache
def lowered(before: Before) -> tuple[Counting, LoweredModel]:
    torch.manual_seed(0)
    model = Counting(before).eval()
    return model, lower(model, CONFIG)


@pytest.mark.few(1)
@pytest.mark.parametrize("before", BEFORE)
def test_chunks_cut_anywhere_equal_the_whole_sequence(before: Before) -> None:
    model, program = lowered(before)
    assert program.chunked is not None
    carried = [value.spec.name for value in program.chunked.carried if not value.spec.name.endswith(".h")]

    assert len(carried) == len(program.chunked.carried) - 1
    assert set(carried) == COUNTING[before]
    assert_chunks_equal_whole_sequences(model, program, [[torch.randn(length, 3)] for length in LENGTHS], LENGTHS)


@pytest.mark.few(1)
@pytest.mark.parametrize("before", ENDING.values(), ids=ENDING)
def test_what_needs_the_end_or_a_table_is_not_chunked(before: Before) -> None:
    _, program = lowered(before)

    assert program.chunked is None
    assert "at position_models.py" in program.chunking_reason


def test_sums_run_over_whole_sequences_without_sessions() -> None:
    """Whole sequences round them as the model does; positions are exact in both."""
    _, summing = lowered(running_mean)
    _, counting = lowered(sines)
    assert summing.chunked is not None
    assert counting.chunked is not None

    assert summing.chunked.reason_for_whole == "chunks of time would round cumulative sums where they end"
    assert counting.chunked.reason_for_whole is None
