"""Candidates: the programs that an engine is given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_cases import CASES

from torchserve_neuron_lstm.archiver_ext.evaluation.candidate import make_candidate
from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel


class Whole(Eager):
    """An engine that would gain nothing by chunks."""

    name = "whole"
    whole_sequences = "its rows end by themselves"


def lowered(name: str) -> LoweredModel:
    """A test model."""
    case = next(case for case in CASES if case.name == name)
    return lower(case.make().eval(), parse_config(case.yaml, "model-config.yaml"))


@pytest.fixture(scope="module")
def split() -> LoweredModel:
    """A model that can be chunked."""
    program = lowered("ResidualStack")
    assert program.chunked is not None
    return program


def test_only_an_engine_that_gains_nothing_by_pieces_is_given_whole_sequences(split: LoweredModel) -> None:
    """The engine's reason is reported; the rest of the program is unchanged, and the others keep chunks."""
    taken = make_candidate(Whole(), split, streams=False).program

    assert (taken.chunked, taken.chunking_reason) == (None, "its rows end by themselves")
    assert replace(taken, chunked=split.chunked, chunking_reason=split.chunking_reason) == split
    assert set(taken.parts) == {"sequence"}
    assert make_candidate(Eager(), split, streams=False).program is split


def test_streams_need_pieces_whatever_an_engine_gains(split: LoweredModel) -> None:
    """A session's state is the carry of the chunks."""
    assert make_candidate(Whole(), split, streams=True).program is split


@pytest.mark.parametrize("streams", [True, False])
def test_a_model_that_is_not_cut_keeps_its_own_reason(streams: bool) -> None:
    """The reason is the line that needs the whole sequence, not the engine's reason."""
    program = lowered("AttentionPooling")
    assert program.chunked is None

    assert make_candidate(Whole(), program, streams=streams).program is program
