"""Chunking: carried values, the reasons of models that cannot be chunked, and equal outputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import torch
from chunked_models import any_chunked_plan, assert_plan_answers, exported_parts
from input_configs import one_input
from model_cases import CASES, Case, cases, lowered
from ragged import GARBAGE, alone, ragged
from torch import Tensor, nn

from torchserve_neuron_lstm.bucketing.shapes import ProgramRole
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.chunks.carry_analysis import NotChunkable
from torchserve_neuron_lstm.lowering.chunks.chunking import check_chunked_equivalence

Value = tuple[str, tuple[int | str, ...], float | None]


def states(hidden: int, layers: int = 1, name: str = "lstm", fill: float | None = 0.0, cell: int = 0) -> list[Value]:
    """The two states of an LSTM; the cell state may be larger than the projected one."""
    return [(f"{name}.h", ("batch", layers, hidden), fill), (f"{name}.c", ("batch", layers, cell or hidden), fill)]


CARRIED: dict[str, list[Value]] = {
    "FixedLength": states(7),
    "PackedSorted": states(7),
    "OneHotLetters": [("rnn.h", ("batch", 1, 9), 0.0)],
    "ProjectedFourLayers": states(4, 4, cell=9),
    "ResidualStack": [("rnn.h", ("batch", 1, 6), 0.0), *states(6, fill=None)],
    "MaskedMeanPooling": [*states(8), ("sum_1", ("batch", 1, 8), 0.0), ("amax", ("batch", 1, 8), -inf)],
    "TwoInputs": states(8),
    "LastStepClassifier": [*states(8, 2), ("gather", ("batch", 1, 1, 8), 0.0)],
    "CausalPerStep": states(8),
    "OptionalPacking": states(4),
    "MeanOfUnpacked": [*states(8), ("sum_1", ("batch", 1, 8), 0.0)],
    "MeanOverTime": [*states(8), ("sum_1", ("batch", 1, 8), 0.0)],
    "MeanByCountedMask": [*states(8), ("sum_1", ("batch", 1, 8), 0.0), ("sum_2", ("batch", 1, 1), 0.0)],
    "MeanCountedFromOne": [*states(8), ("sum_1", ("batch", 1, 8), 0.0)],
    "MaximumOfMasked": [*states(8), ("max_1", ("batch", 1, 8), -inf)],
    "MaximumOfUnpacked": [*states(8), ("max_1", ("batch", 1, 8), -inf)],
    "Extremes": [
        *states(8),
        ("amin", ("batch", 1, 8), inf),
        ("amax", ("batch", 1, 1, 8), -inf),
        ("amax_1", ("batch", 1), -(2**63)),
        ("amax_2", ("batch", 1), 0),
    ],
    "TwoLayersAndTheirEnd": states(8, 2),
    "GruGivenState": [("rnn.h", ("batch", 2, 8), None)],
    "LstmGivenState": states(8, fill=None),
    "LearnedState": states(8, 2, fill=None),
    "StateOfSpeaker": [("lstm.h", ("batch", 1, 8), None), ("lstm.c", ("batch", 1, 8), 0.0)],
    "SpeakerAtEveryStep": [*states(8), ("rnn.h", ("batch", 1, 8), 0.0)],
    "Parallel": [*states(8), *states(8, 2, "lstm_1")],
    "ReluRnn": [("rnn.h", ("batch", 2, 5), 0.0)],
    "ProjectedGivenState": states(4, 2, fill=None, cell=9),
    "InplaceRelu": [*states(8), *states(8, name="lstm_1")],
    "AddedInPlace": [
        ("gather", ("batch", 1, 1, 6), 0.0),
        ("rnn.h", ("batch", 1, 6), 0.0),
        ("gather_1", ("batch", 1, 1, 6), 0.0),
        ("rnn_1.h", ("batch", 1, 6), 0.0),
    ],
    "LogSoftmaxAtEveryStep": states(8),
    "FixedStatistics": states(8),
    "LastStep": [*states(8), ("gather", ("batch", 1, 1, 8), 0.0)],
    "LastStepByIndex": [*states(8), ("gather", ("batch", 1, 1, 8), 0.0), ("gather_1", ("batch", 1, 1, 8), 0.0)],
    "LengthsAreAnAnswer": states(8),
    "TiedWeights": states(8),
    "Switched": states(8),
    "FirstHundred": [*states(8), ("timesteps", ("batch",), 0.0)],
    "RunningSum": [*states(8), ("cumsum", ("batch", 1, 8), 0.0)],
    "PositionsAreAnAnswer": [*states(8), ("timesteps", ("batch",), 0.0)],
    "StateWrittenInPlace": [("lstm.h", ("batch", 1, 8), None), ("lstm.c", ("batch", 1, 8), 0.0)],
    "FoldedSum": [*states(8), ("sum_1", ("batch", 2, 4), 0.0)],
    "FlattenedSteps": states(8),
}
"""Models in chunks of time: name, layout and initial value of each carried value."""

WHOLE = {
    "Tagger": ("the recurrence is bidirectional (at typical_models.py:", "self.lstm(packed)"),
    "MedianOverTime": ("an operation mixes timesteps (at typical_models.py:", "median(1)"),
    "GruWithState": ("the recurrence is bidirectional (at typical_models.py:", "self.gru("),
    "LstmWithState": ("the recurrence is bidirectional (at typical_models.py:", "self.lstm("),
    "AttentionPooling": ("the recurrence is bidirectional (at typical_models.py:", "self.lstm(packed)"),
    "VanillaRnn": ("the recurrence is bidirectional (at typical_models.py:", "self.rnn("),
    "SelfAttention": ("an operation mixes timesteps (at typical_models.py:", "y @ y.transpose"),
    "NoBatch": ("input x has no batch dimension", ""),
    "NoTime": ("no input has a time dimension", ""),
    "FirstStep": ("an operation needs timesteps of more than one chunk (at noncausal_models.py:", "# the first"),
    "PositionsEmbedded": ("an operation counts timesteps from the beginning or the end (at", "# embedded"),
    "PositionsSliced": ("an operation counts timesteps from the beginning (at", "# sliced"),
    "AllButTheLast": ("an operation counts timesteps from the beginning or the end (at", "# inner"),
    "EncoderDecoder": ("the initial state of a recurrence is known only at the end of the sequence (at", "# decoder"),
    "EndAsQuery": ("an operation needs the end of the sequence at every timestep (at", "# query"),
    "PlaceOfTheMaximum": ("aten.max returns the index of a timestep within the sequence (at", "# places"),
    "WritesIntoAView": ("an operation mixes timesteps (at", "# bounded"),
    "BackAndForth": ("an operation needs the end of the sequence at every timestep (at", "# added"),
}
"""Models over whole sequences: the start of the reason, and a part of the user's line."""


def test_every_test_model_is_known() -> None:
    assert {*CARRIED, *WHOLE} == {case.name for case in CASES}
    assert not CARRIED.keys() & WHOLE.keys()


@pytest.mark.parametrize("case", cases(CARRIED, few=True))
def test_what_is_handed_on_comes_from_the_graph(case: Case) -> None:
    program = lowered(case).program

    assert program.chunked is not None, program.chunking_reason
    carried = [(value.spec.name, value.spec.shape, value.fill) for value in program.chunked.carried]
    assert carried == CARRIED[case.name]
    assert (
        program.chunking_reason == f"each chunk of time passes {', '.join(name for name, _, _ in carried)} to the next"
    )
    parts: set[ProgramRole] = {"chunk"}
    parts |= {"start"} if any(fill is None for _, _, fill in carried) else set()
    parts |= {"head"} if any(spec.time_dim is None for spec in program.outputs) else set()
    assert program.parts.keys() == parts


@pytest.mark.parametrize("case", cases(WHOLE, few=True))
def test_a_model_that_needs_whole_sequences_says_why(case: Case) -> None:
    program = lowered(case).program
    reason, line = WHOLE[case.name]

    assert program.chunked is None
    assert program.parts == {"sequence": program.exported}
    assert program.chunking_reason.startswith(reason)
    assert line in program.chunking_reason


@pytest.mark.parametrize("case", cases(CARRIED, few=True))
def test_pieces_take_their_weights_by_the_models_own_names(case: Case) -> None:
    program = lowered(case).program
    known = {*case.make().state_dict(), *program.constants}

    for part in program.parts.values():
        assert set(part.state_dict) <= known
        assert {name for name, value in part.constants.items() if isinstance(value, Tensor)} <= known


@pytest.mark.parametrize("case", cases(CARRIED, few=True))
def test_a_model_in_pieces_answers_as_the_model_alone(case: Case) -> None:
    made = lowered(case)
    model, config, program = made.model, made.config, made.program
    parts, choose = exported_parts(program), random.Random(0)
    for seed, some in enumerate(([1], [40], [23, 1, 9, 9, 2], [3, 61, 17], [5] * 4)):
        items = ragged(program.inputs, some, seed).items
        expected = [alone(model, config, item, length) for item, length in zip(items, some, strict=True)]
        for garbage in GARBAGE:
            assert_plan_answers(program, parts, any_chunked_plan(some, choose), items, some, expected, garbage)


class Model(nn.Module):
    def __init__(self, function: Callable[[Model, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.other = nn.LSTM(4, 4, batch_first=True)
        self.table = nn.Parameter(torch.zeros(200, 4))

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        return self.function(self, x, lengths)


CONFIG = one_input("[batch, time, 4]", "lengths: lengths", batch="[1, 4]", length="[4, 9]")


def kept(x: Tensor, lengths: Tensor) -> Tensor:
    """True on real timesteps: bool[B, T, 1]."""
    return (torch.arange(x.size(1)) < lengths[:, None])[:, :, None]


def steps(x: Tensor) -> Tensor:
    return torch.arange(x.size(1)).float()[None, :, None].expand(x.size(0), -1, 4)


def written(m: Model, x: Tensor) -> Tensor:
    """Write through a view of the result of dropout, which is its input."""
    y: Tensor = m.lstm(x)[0]
    nn.functional.dropout(y, 0.5, training=False).clamp_(max=100.0)
    return y


def seen_before(m: Model, x: Tensor) -> Tensor:
    y: Tensor = m.lstm(x)[0]
    view = y.transpose(1, 2)
    first = view * 2.0
    y.add_(1.0)
    return first.transpose(1, 2) + view.transpose(1, 2)


def put_together(m: Model, x: Tensor) -> Tensor:
    y = torch.zeros(x.size(0), x.size(1), 4)
    y[:, :, :2], y[:, :, 2:] = m.lstm(x)[0][:, :, :2], m.other(x)[0][:, :, 2:]
    return y


SPLITS: dict[str, Callable[[Model, Tensor, Tensor], Any]] = {
    "any": lambda m, x, n: ((m.lstm(x)[0] > 0.1) & kept(x, n)).any(1),
    "all": lambda m, x, n: ((m.lstm(x)[0] > -0.9) | ~kept(x, n)).all(1),
    "padding on the other side": lambda m, x, n: m.lstm(x)[0].masked_fill(n[:, None, None] <= steps(x), 0.0),
    "lengths in another dtype": lambda m, x, n: (m.lstm(x)[0] * (steps(x) < n.float()[:, None, None])).sum(1),
    "expand_as": lambda m, x, n: (
        m.lstm(x)[0] * (torch.arange(x.size(1)).expand_as(x[..., 0]) < n[:, None])[..., None]
    ).sum(1),
    "sum over features too": lambda m, x, n: (m.lstm(x)[0] * kept(x, n)).sum((1, 2)),
    "time first": lambda m, x, n: m.lstm(x)[0].transpose(0, 1)[n - 1, torch.arange(x.size(0))],
    "one after the other": lambda m, x, n: m.other(m.lstm(x)[0])[1],
    "an answer without time": lambda m, x, n: (m.lstm(x)[0], n * 2, x.new_full((x.size(0), 2), 3.0)),
    "type_as": lambda m, x, n: m.lstm(x)[0].sum(1) / n.unsqueeze(1).type_as(x),
    "like another": lambda m, x, n: m.lstm(x)[0].sum(1) / n.unsqueeze(1).to(m.lstm(x)[0]),
    "gated": lambda m, x, n: (nn.functional.glu(m.lstm(x)[0], -1), m.lstm(x)[0].topk(2)[0]),
    "a number of its own": lambda m, x, n: m.lstm(x)[0] * (steps(x) < 3),
    "positions into a recurrence": lambda m, x, n: m.lstm(steps(x))[0],
    "the input written": lambda m, x, n: m.lstm(x.mul_(2.0))[0],
    "a view of what is written": lambda m, x, n: seen_before(m, x),
    "written through dropout": lambda m, x, n: written(m, x),
    "state of full": lambda m, x, n: m.lstm(x, (torch.full((1, x.size(0), 4), 0.5),) * 2)[0],
}
WHOLES: dict[str, tuple[Callable[[Model, Tensor, Tensor], Any], str]] = {
    "a table by position": (lambda m, x, n: m.lstm(x + m.table[: x.size(1)])[0], "aten.narrow counts"),
    "the last one alone": (lambda m, x, n: m.lstm(x)[0] * (steps(x) == n[:, None, None] - 1), "aten.eq counts"),
    "shorter by two": (lambda m, x, n: m.lstm(x)[0] * (steps(x) < n[:, None, None] - 2), "aten.lt counts"),
    "counted from 5": (
        lambda m, x, n: m.lstm(x)[0] * (torch.arange(5, x.size(1) + 5)[None, :, None] <= n[:, None, None]),
        "an operation counts",
    ),
    "counted from 1, without the last": (
        lambda m, x, n: m.lstm(x)[0] * (n[:, None] > torch.arange(1, x.size(1) + 1))[..., None],
        "an operation counts",
    ),
    "lengths at every step": (lambda m, x, n: m.lstm(x)[0] / n[:, None, None], "aten.div counts"),
    "lengths as an answer of every step": (
        lambda m, x, n: (m.lstm(x)[0], n[:, None].expand(-1, x.size(1))),
        "aten.squeeze counts",
    ),
    "positions summed": (lambda m, x, n: m.lstm(x)[1][0][0] + steps(x)[:, 0], "aten.select"),
    "a state of lengths": (
        lambda m, x, n: m.lstm(x, (n.float()[None, :, None].repeat(1, 1, 4),) * 2)[0],
        "the initial state of a recurrence is known only at the end",
    ),
    "weights of the end": (
        lambda m, x, n: m.other(m.lstm(x)[0] + m.lstm(x)[1][0].transpose(0, 1))[0],
        "an operation needs the end",
    ),
    "put together in place": (lambda m, x, n: put_together(m, x), "an operation mixes"),
    "a norm over time": (lambda m, x, n: m.lstm(x)[0].mul(kept(x, n)).norm(dim=1), "aten.linalg_vector_norm mixes"),
    "no recurrence": (lambda m, x, n: (x * kept(x, n)).sum(1), "there is no recurrence over time"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("function", SPLITS.values(), ids=SPLITS.keys())
def test_what_goes_from_step_to_step_is_cut(function: Callable[[Model, Tensor, Tensor], Any]) -> None:
    program = lower(Model(function), CONFIG)

    assert program.chunked is not None, program.chunking_reason


@pytest.mark.few(3)
@pytest.mark.parametrize(("function", "reason"), WHOLES.values(), ids=WHOLES.keys())
def test_what_needs_more_of_the_sequence_is_not_cut(function: Callable[..., Any], reason: str) -> None:
    """The reason names this file, although no short sequence may show the error."""
    program = lower(Model(function), CONFIG)

    assert program.chunked is None
    assert program.chunking_reason.startswith(reason)
    assert "test_chunking.py:" in program.chunking_reason or reason.startswith(("there is no", "aten.squeeze"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda carried: tuple(replace(value, fill=0.5) for value in carried),
            "chunked execution changes output output",
        ),
        (lambda carried: carried[::-1][:1], "the chunk programs cannot be run"),
    ],
    ids=["a wrong initial number", "a missing value"],
)
def test_pieces_that_differ_from_the_whole_or_do_not_run_are_not_served(
    change: Callable[[tuple[Any, ...]], tuple[Any, ...]], words: str
) -> None:
    program = lowered(next(case for case in CASES if case.name == "CausalPerStep")).program
    assert program.chunked is not None
    wrong = replace(program.chunked, carried=change(program.chunked.carried))

    with pytest.raises(NotChunkable, match=words):
        check_chunked_equivalence(program.exported, wrong, program.inputs, program.outputs)


STEPS = 2000


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, 1, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.cumsum(1), x.sum(1), self.rnn(x)[0]


def test_sums_of_single_timesteps_are_those_of_the_whole_sequence() -> None:
    model, x = Sums().eval(), torch.full((1, STEPS, 1), 0.1)
    parts = lower(model, one_input("[batch, time, 1]", "streaming: {}")).chunked
    assert parts is not None
    assert parts.head is not None
    chunk, head = parts.chunk.module(), parts.head.module()
    specs = [value.spec for value in parts.carried]
    carried = [torch.zeros(spec.sizes(1, 1), dtype=getattr(torch, spec.dtype)) for spec in specs]
    one, sums = torch.tensor([1]), []

    with torch.no_grad():
        for t in range(STEPS):
            running, _, *carried = chunk(x[:, t : t + 1], one, *carried)
            sums.append(running)
        expected, total, _ = model(x)
        (found,) = head(torch.tensor([STEPS]), *carried)

    torch.testing.assert_close(torch.cat(sums, 1), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(found, total, rtol=1e-6, atol=0)
    assert {spec.dtype for spec in specs} == {"float32", "float64"}
