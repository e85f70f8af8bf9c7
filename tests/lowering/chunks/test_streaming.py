"""Streaming: models that cannot stream are refused with their line; ids of compatible session states."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from model_cases import CASES, Case, lowered
from torch import Tensor, nn

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.chunks.streaming import (
    check_streamable,
    state_compatibility_id,
    with_weight_digests,
)
from torchserve_neuron_lstm.lowering.program import LoweredModel

YAML = """\
neuron_lstm:
  inputs: {x: {dtype: float32, shape: [batch, time, 3]}}
  lengths: lengths
  buckets: %s
"""
BUCKETS = "{batch: [1, 4], length: [4, 9]}"
BY_NAME = {case.name: case for case in CASES}


class Plain(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.linear = nn.Linear(4, 2)
        self.scale = scale

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.linear(self.lstm(x)[0] * self.scale)


class Wider(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, batch_first=True)
        self.linear = nn.Linear(5, 2)


class Shifted(Plain):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.linear(self.lstm(x + torch.tensor([1.0, 2.0, 3.0]))[0])


class ShiftedElsewhere(Plain):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.linear(self.lstm(x + torch.tensor([1.0, 2.0, 4.0]))[0])


class PicksAScore(Plain):
    """The output of each step is one of its scores, as in a language model's loss."""

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        scores = self.linear(self.lstm(x)[0]).log_softmax(-1)
        return scores.gather(2, x[:, :, :2].argmax(2, keepdim=True))[:, :, 0]


class StateFromLength(Plain):
    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        state = (lengths.float()[None, :, None] / 10).expand(1, x.shape[0], 4).contiguous()
        return self.linear(self.lstm(x, (state, torch.zeros_like(state)))[0])


class LearnedInitialState(Plain):
    """The initial state is learned; the lengths give the batch size only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        state = self.first.expand(1, x.shape[0], 4).contiguous()
        return self.linear(self.lstm(x, (state, torch.zeros_like(state)))[0])


class Branching(Plain):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.function(self.lstm(x)[0], x)


def doubled_if_long(y: Tensor, x: Tensor) -> Tensor:
    if x.size(1) > 100:  # long
        y = y * 2
    return y


def doubled_at_one_length(y: Tensor, x: Tensor) -> Tensor:
    return y * 2 if x.shape[1] == 5000 else y  # one length


def asserted(y: Tensor, x: Tensor) -> Tensor:
    assert x.size(1) <= 100  # asserted
    return y


def doubled_in_a_large_batch(y: Tensor, x: Tensor) -> Tensor:
    return y * 2 if x.size(0) > 200 else y


def doubled_if_empty(y: Tensor, x: Tensor) -> Tensor:
    return y * 2 if x.size(1) < 1 else y


def program_of(model: nn.Module, buckets: str = BUCKETS) -> LoweredModel:
    return lower(model.eval(), parse_config(YAML % buckets, "f"))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["CausalPerStep", "MaskedMeanPooling", "LearnedState", "GruGivenState"])
def test_a_model_of_the_past_alone_streams(name: str) -> None:
    check_streamable(lowered(BY_NAME[name]).program)


def test_a_score_picked_at_each_step_streams() -> None:
    check_streamable(program_of(PicksAScore()))


@pytest.mark.parametrize(
    ("name", "blamed", "line"),
    [
        ("Tagger", "the recurrence is bidirectional (at typical_models.py:", "self.lstm(packed)"),
        ("SelfAttention", "aten.matmul mixes timesteps (at typical_models.py:", "y @ y.transpose"),
        ("EncoderDecoder", "the initial state of a recurrence is known only at the end", "# decoder"),
        ("BackAndForth", "aten.add needs the end of the sequence at every timestep (at", "# added"),
        ("PositionsSliced", "aten.slice counts timesteps", "# sliced"),
    ],
)
def test_a_model_that_needs_the_future_is_refused_with_its_line(name: str, blamed: str, line: str) -> None:
    case: Case = BY_NAME[name]
    with pytest.raises(LoweringError) as refused:
        check_streamable(lowered(case).program)

    said = str(refused.value)
    assert said.startswith("streaming: the outputs of a chunk depend on other timesteps that cannot be carried to it: ")
    assert blamed in said
    assert line in said
    assert "remove `streaming`, or change the model" in said


def test_a_first_state_made_of_the_length_is_refused() -> None:
    """The length of a stream is unknown when it starts."""
    with pytest.raises(LoweringError, match="the initial state of a recurrence is known only at the end"):
        check_streamable(program_of(StateFromLength()))


class StartOfLengths(nn.Module):
    def forward(self, lengths: Tensor) -> Tensor:
        return lengths.float()[None, :, None] / 10


def test_a_program_for_the_beginning_that_reads_lengths_is_refused() -> None:
    """It is refused even if the analysis accepts it: serving passes the length of the first chunk."""
    program = program_of(LearnedInitialState())
    rows = torch.export.Dim("rows", min=1, max=8)
    start = torch.export.export(StartOfLengths(), (torch.tensor([3, 2]),), dynamic_shapes=({0: rows},))
    assert program.chunked is not None
    changed = replace(program, chunked=replace(program.chunked, start=start))

    with pytest.raises(LoweringError, match="streaming: the initial state is computed from the length of the sequence"):
        check_streamable(changed)


def test_a_first_state_that_only_counts_the_rows_streams() -> None:
    check_streamable(program_of(LearnedInitialState()))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("function", "line"),
    [(doubled_if_long, "# long"), (doubled_at_one_length, "# one length"), (asserted, "# asserted")],
)
@pytest.mark.parametrize("buckets", ["{batch: [2, 4], length: [1, 9]}", "{batch: [1, 4], length: [1, 16]}"])
def test_a_branch_beyond_the_buckets_is_refused_with_its_line(
    function: Callable[[Tensor, Tensor], Tensor], line: str, buckets: str
) -> None:
    """Whole requests are served, as none is so long; a session may become so long."""
    program = program_of(Branching(function), buckets)
    assert program.chunked is not None

    with pytest.raises(LoweringError) as refused:
        check_streamable(program)

    said = str(refused.value)
    assert "at some numbers of timesteps beyond the longest bucket (at test_streaming.py:" in said
    assert line in said
    assert "remove `streaming`, or write code that is the same for every number of timesteps" in said


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("function", "is_bounded"), [(doubled_if_long, True), (doubled_at_one_length, True), (doubled_if_empty, False)]
)
def test_a_branch_in_the_trace_of_one_request_is_found_too(
    function: Callable[[Tensor, Tensor], Tensor], is_bounded: bool
) -> None:
    """Its program runs on ragged batches of any length, and so has no bound itself."""
    yaml = (YAML % "{batch: [1, 4], length: [4, 9]}").replace("neuron_lstm:", "neuron_lstm:\n  model: {batched: false}")
    program = lower(Branching(function).eval(), parse_config(yaml, "f"))

    with pytest.raises(LoweringError, match="beyond the longest bucket") if is_bounded else nullcontext():
        check_streamable(program)


@pytest.mark.parametrize("function", [doubled_in_a_large_batch, doubled_if_empty, lambda y, x: y * 2])
@pytest.mark.parametrize("buckets", ["{batch: [2, 4], length: [1, 9]}", "{batch: [1, 4], length: [1, 2]}"])
def test_a_model_without_such_a_branch_streams(function: Callable[[Tensor, Tensor], Tensor], buckets: str) -> None:
    check_streamable(program_of(Branching(function), buckets))


@pytest.mark.parametrize("buckets", ["{batch: [1, 4], length: [4, 9]}", "{batch: [2, 3, 8], length: [64]}"])
def test_the_same_model_in_other_buckets_goes_on_from_its_sessions(buckets: str) -> None:
    assert state_compatibility_id(program_of(Plain(), buckets), ["abc"]) == state_compatibility_id(
        program_of(Plain()), ["abc"]
    )


def test_the_state_id_has_32_hex_digits() -> None:
    """The manifest requires this format."""
    told = state_compatibility_id(program_of(Plain()), [])

    assert len(told) == 32
    assert set(told) <= set("0123456789abcdef")


@pytest.mark.few(2)
@pytest.mark.parametrize("other", [lambda: Plain(2.0), Wider, Shifted])
def test_the_state_id_depends_on_the_code(other: Any) -> None:
    assert state_compatibility_id(program_of(other()), ["abc"]) != state_compatibility_id(program_of(Plain()), ["abc"])


def test_the_state_id_depends_on_the_weights() -> None:
    program = program_of(Plain())

    assert len({state_compatibility_id(program, weights) for weights in ([], ["abc"], ["abd"])}) == 3


def test_the_state_id_of_other_weights_needs_no_program() -> None:
    program = program_of(Plain())

    assert with_weight_digests(state_compatibility_id(program, ["abc"]), ["abd"]) == state_compatibility_id(
        program, ["abd"]
    )


def test_the_state_id_depends_on_constants_of_the_code() -> None:
    """A tensor that forward() makes is no weight, and the code reads the same."""
    assert state_compatibility_id(program_of(Shifted()), []) != state_compatibility_id(
        program_of(ShiftedElsewhere()), []
    )
