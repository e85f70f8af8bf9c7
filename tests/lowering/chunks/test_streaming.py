"""Streaming: models that cannot stream are refused with their line; ids of compatible session states."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from math import nextafter
from typing import Any

import pytest
import torch
from input_configs import config_of, one_input
from model_cases import CASES, lowered
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.chunks import streaming
from torchserve_neuron_lstm.lowering.chunks.streaming import check_streamable, state_compatibility_id
from torchserve_neuron_lstm.lowering.program import LoweredModel

Buckets = tuple[str, str]
BUCKETS = ("[1, 4]", "[4, 9]")
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


class LearnedInitialState(Plain):
    """The initial state is learned; the lengths give the batch size only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        state = self.first.expand(1, x.shape[0], 4).contiguous()
        return self.linear(self.lstm(x, (state, torch.zeros_like(state)))[0])


class Loop(nn.Module):
    """A cell of its own: its step is a graph within the program's, and its state begins with an input."""

    def __init__(self, keep: float = 0.9, start: float = 1.0, end: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.keep, self.start, self.end = keep, start, end

    def forward(self, x: Tensor, first: Tensor) -> Any:
        h, outputs = torch.tanh(first * self.start), []
        for t in range(x.size(1)):
            h = self.keep * h + torch.tanh(self.linear(x[:, t]) + h)
            outputs.append(h)
        return torch.stack(outputs, 1), h * self.end


class CountsLargeSquares(nn.Module):
    """Squares of short integers overflow, of long ones they do not."""

    def forward(self, x: Tensor) -> Any:
        return torch.where(x * x > 100, 1.0, 0.0).cumsum(1)


class OfOneName(nn.Module):
    """Two parameters whose names the exporter makes one, but for a number, in their order."""

    def __init__(self, *paths: str) -> None:
        super().__init__()
        self.paths = paths
        for module, name in (path.split(".") for path in paths):
            self.add_module(module, nn.Module())
            self.get_submodule(module).register_parameter(name, nn.Parameter(torch.ones(3)))

    def forward(self, x: Tensor) -> Any:
        first, second = map(self.get_parameter, self.paths)
        return ((x * first).tanh() + second).cumsum(1)


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


def doubled_if_empty(y: Tensor, x: Tensor) -> Tensor:
    return y * 2 if x.size(1) < 1 else y


def program_of(model: nn.Module, buckets: Buckets = BUCKETS, more: str = "") -> LoweredModel:
    batch, length = buckets
    return lower(model.eval(), one_input("[batch, time, 3]", f"lengths: lengths{more}", batch=batch, length=length))


@cache
def state_id(make: Callable[[], nn.Module]) -> str:
    return state_compatibility_id(program_of(make()), ["abc"])


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["CausalPerStep", "MaskedMeanPooling", "LearnedState", "GruGivenState"])
def test_a_model_of_the_past_alone_streams(name: str) -> None:
    check_streamable(lowered(BY_NAME[name]).program)


@pytest.mark.parametrize("make", [PicksAScore, LearnedInitialState])
def test_a_model_that_reads_no_other_timestep_and_no_length_streams(make: Callable[[], nn.Module]) -> None:
    check_streamable(program_of(make()))


def test_a_model_that_needs_the_future_is_refused_with_its_line() -> None:
    program = lowered(BY_NAME["Tagger"]).program
    with pytest.raises(LoweringError) as refused:
        check_streamable(program)

    assert "self.lstm(packed)" in program.chunking_reason
    assert str(refused.value) == (
        "streaming: the outputs of a chunk depend on other timesteps that cannot be carried to it: "
        f"{program.chunking_reason}; remove `streaming`, or change the model"
    )


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


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("function", "line"),
    [(doubled_if_long, "# long"), (doubled_at_one_length, "# one length"), (asserted, "# asserted")],
)
@pytest.mark.parametrize("buckets", [("[2, 4]", "[1, 9]"), ("[1, 4]", "[1, 16]")])
def test_a_branch_beyond_the_buckets_is_refused_with_its_line(
    function: Callable[[Tensor, Tensor], Tensor], line: str, buckets: Buckets
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
    program = program_of(Branching(function), more="\n  model: {batched: false}")

    with pytest.raises(LoweringError, match="beyond the longest bucket") if is_bounded else nullcontext():
        check_streamable(program)


@pytest.mark.parametrize("function", [lambda y, x: y * 2 if x.size(0) > 200 else y, doubled_if_empty])
@pytest.mark.parametrize("buckets", [("[2, 4]", "[1, 9]"), ("[1, 4]", "[1, 2]")])
def test_a_model_without_such_a_branch_streams(function: Callable[[Tensor, Tensor], Tensor], buckets: Buckets) -> None:
    check_streamable(program_of(Branching(function), buckets))


def test_the_same_model_in_other_buckets_goes_on_from_its_sessions() -> None:
    """Its weights alone make another id, for which no program is needed."""
    program = program_of(Plain(), ("[2, 3, 8]", "[64]"))
    state, of_others, of_none = (state_compatibility_id(program, weights) for weights in (["abc"], ["abd"], []))

    assert re.fullmatch("[0-9a-f]{32}", state)
    assert state_id(Plain) == state
    assert len({state, of_others, of_none}) == 3
    assert streaming.with_weight_digests(state, ["abd"]) == of_others


@pytest.mark.ci
def test_the_state_id_depends_on_the_code_and_its_constants() -> None:
    """A tensor that forward() makes is no weight, and the code reads the same."""
    makers: list[Callable[[], nn.Module]] = [Plain, lambda: Plain(2.0), Wider, Shifted, ShiftedElsewhere]

    assert len(set(map(state_id, makers))) == len(makers)


LOOP = "{x: {dtype: float32, shape: [batch, time, 3]}, first: {dtype: float32, shape: [batch, 3]}}"


@cache
def loop_id(buckets: Buckets = BUCKETS, **numbers: float) -> str:
    batch, length = buckets
    return state_compatibility_id(lower(Loop(**numbers).eval(), config_of(LOOP, batch=batch, length=length)), ["abc"])


@pytest.mark.few(1)
@pytest.mark.parametrize("changed", [{"keep": nextafter(0.9, 1)}, {"start": 0.5}, {"end": 0.5}])
def test_the_state_id_depends_on_every_number_of_every_program(changed: dict[str, float]) -> None:
    """They are in the step of a loop, at the beginning, and at the end: all of these compute from the same state."""
    assert loop_id(**changed) != loop_id()


@pytest.mark.ci
def test_the_state_id_of_a_loop_is_the_same_in_other_buckets_and_processes() -> None:
    assert loop_id(("[2, 8]", "[5, 64]")) == loop_id()
    code = f"import sys; sys.path[:0] = {sys.path!r}; from {__name__} import loop_id; print(loop_id())"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split()[-1] == loop_id()


def id_of(model: nn.Module, inputs: str) -> str:
    return state_compatibility_id(lower(model.eval(), config_of(inputs)), ["abc"])


def test_the_state_id_depends_on_the_dtypes_of_inputs() -> None:
    short, long = (f"{{x: {{dtype: {dtype}, shape: [batch, time, 3]}}}}" for dtype in ("int16", "int32"))
    assert id_of(CountsLargeSquares(), short) != id_of(CountsLargeSquares(), long)


def test_the_state_id_depends_on_the_names_of_weights() -> None:
    """The same file has both, and the code reads the same."""
    inputs = "{x: {dtype: float32, shape: [batch, time, 3]}}"
    assert id_of(OfOneName("a.b_w", "a_b.w"), inputs) != id_of(OfOneName("a_b.w", "a.b_w"), inputs)
