from dataclasses import replace
from typing import Any

import pytest
import torch
from input_configs import one_input
from model_cases import CASES
from torch import nn
from torch.nn import functional

from torchserve_neuron_lstm.archiver_ext.evaluation.candidate import check_integers, make_candidate
from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.backends.interface import Backend
from torchserve_neuron_lstm.backends.partitioning.backend import PartitionedBackend
from torchserve_neuron_lstm.bucketing.shapes import DType, TensorSpec
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel


class Whole(Eager):
    name = "whole"
    whole_sequences = "its rows end by themselves"


class CausalConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(3, 4, 3)
        self.gru = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mixed = self.convolution(functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        outputs: torch.Tensor = self.gru(mixed)[0]
        return outputs


def lowered(name: str) -> LoweredModel:
    case = next(case for case in CASES if case.name == name)
    return lower(case.make().eval(), parse_config(case.yaml, "model-config.yaml"))


@pytest.fixture(scope="module")
def split() -> LoweredModel:
    program = lowered("ResidualStack")
    assert program.chunked is not None
    return program


def test_only_an_engine_that_gains_nothing_by_pieces_is_given_whole_sequences(split: LoweredModel) -> None:
    taken = make_candidate(Whole(), split, streams=False).program

    assert (taken.chunked, taken.chunking_reason) == (None, "its rows end by themselves")
    assert replace(taken, chunked=split.chunked, chunking_reason=split.chunking_reason) == split
    assert set(taken.parts) == {"sequence"}
    assert make_candidate(Eager(), split, streams=False).program is split


def test_streams_need_pieces_whatever_an_engine_gains(split: LoweredModel) -> None:
    """A session's state is the carry of the chunks."""
    assert make_candidate(Whole(), split, streams=True).program is split


def test_chunks_that_join_the_timesteps_before_them_are_only_run_where_they_are_needed() -> None:
    """They are slower than whole sequences. Sessions need them, and sequences that no bucket holds."""
    config = one_input("[batch, time, 3]", "lengths: lengths\n  outputs: [y]", batch="[2]", length="[8]")
    program = lower(CausalConvolution().eval(), config)
    assert program.chunked is not None

    taken = make_candidate(Eager(), program, streams=False).program

    assert taken.kind == "sequence"
    assert taken.chunking_reason == "chunks of time would be slower: each copies the timesteps before it (pad.past)"
    assert make_candidate(Eager(), program, streams=True).program is program
    assert make_candidate(Eager(), program, streams=False, beyond_grid=True).program is program
    assert make_candidate(Whole(), program, streams=False, beyond_grid=True).program.chunked is None


@pytest.mark.ci
@pytest.mark.parametrize("streams", [True, False])
def test_a_model_that_is_not_cut_keeps_its_own_reason(streams: bool) -> None:
    program = lowered("AttentionPooling")
    assert program.chunked is None

    assert make_candidate(Whole(), program, streams=streams).program is program


class Rounding(Eager):
    name = "rounding"
    largest_integer = 2**24


@pytest.mark.parametrize("engine", [Rounding(), PartitionedBackend(Rounding())], ids=["whole", "partitioned"])
@pytest.mark.parametrize(
    ("dtype", "facts", "fits"),
    [
        ("int64", {}, False),
        ("int32", {}, False),
        ("int64", {"value_range": (-(2**24) - 1, 5)}, False),
        ("int64", {"value_range": (-(2**24), 5)}, True),
        ("int64", {"vocabulary": 2**40}, True),
        ("uint8", {}, True),
        ("bool", {}, True),
        ("float32", {}, True),
    ],
)
def test_an_engine_that_rounds_large_integers_needs_their_bounds(
    split: LoweredModel, dtype: DType, facts: dict[str, Any], fits: bool, engine: Backend
) -> None:
    program = replace(split, inputs=(TensorSpec("seconds", dtype, ("batch", "time"), **facts),))
    rejected = check_integers(make_candidate(engine, program, streams=False))

    assert (rejected is None) is fits
    if rejected is not None:
        assert "rounding rounds integers beyond 16777216" in rejected.reason
        assert "in seconds: declare those that they have by `range: [least, largest]`" in rejected.reason
    assert check_integers(make_candidate(Eager(), program, streams=False)) is None
