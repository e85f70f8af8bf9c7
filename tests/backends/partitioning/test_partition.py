import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recurrent import Case, Recurrent, exported, largest_error, ragged_batch
from torch import nn

from torchserve_neuron_lstm.backends.exported_program import specialize
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.backends.partitioning.operator_names import operator_name, operators_of
from torchserve_neuron_lstm.backends.partitioning.partition import PartitionError, partition
from torchserve_neuron_lstm.backends.partitioning.segments import Segments
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.partitioner import PartitionerConfig, TraceArguments

ANYTHING = PartitionerConfig(model_support_percentage_threshold=0)
FEATURES, WIDTH = 6, 4


class Branching(nn.Module):
    """A model with values that are used much later, and an operator with several results.

    It also has a constant, a buffer and tied weights.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU())
        self.second = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        self.register_buffer("shift", torch.ones(WIDTH), persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        early = self.first(x)
        left, right = self.second(early).chunk(2, 1)
        values, order = torch.sort(torch.cat([right.exp(), left], 1) * torch.tensor([1.0, 2.0, 3.0, 4.0]))
        late = torch.special.bessel_j0(values) + early * self.scale
        return late, order, y, nn.functional.linear(late, self.second.weight) + self.shift, self.scale


def fixed(model: nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program: torch.export.ExportedProgram = torch.export.export(model.eval(), inputs, strict=False)
        functional: torch.export.ExportedProgram = program.run_decompositions({})
    return functional


INPUTS = (torch.randn(3, FEATURES, generator=torch.Generator().manual_seed(1)), torch.arange(3))
MODEL = Branching().eval()
PROGRAM = fixed(MODEL, *INPUTS)
OPERATORS = sorted({operator_name(node) for node in operators_of(PROGRAM.graph)})


def run(segments: Segments, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run the segments in order; a missing value is a KeyError."""
    values: dict[str, torch.Tensor] = dict(zip(segments.inputs, inputs, strict=True))
    for segment in segments.segments:
        with torch.no_grad():
            given = segment.program.module()(*(values[name] for name in segment.takes))
        values.update(zip(segment.gives, given, strict=True))
    return [values[name] for name in segments.outputs]


def assert_same(segments: Segments) -> None:
    with torch.no_grad():
        for ours, theirs in zip(run(segments, INPUTS), MODEL(*INPUTS), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def targets(segments: Segments) -> list[str]:
    return [segment.place for segment in segments.segments]


@pytest.mark.ci
@given(refused=st.sets(st.sampled_from(OPERATORS)))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_segments_in_their_order_are_the_program_whatever_the_engine_takes(refused: set[str]) -> None:
    segments = partition(PROGRAM, lambda node: operator_name(node) not in refused, ANYTHING)
    assert_same(segments)
    everything = Counter(name for segment in segments.segments for name in segment.operators)
    wanted = Counter(operator_name(node) for node in operators_of(PROGRAM.graph))
    wanted["aten::clone"] += 2  # of an input and of a buffer that are answers
    assert everything == wanted
    for segment in segments.segments:
        assert all((name in refused) == (segment.place == "cpu") for name in segment.operators if name != "aten::clone")


def test_weights_keep_their_names_and_their_memory() -> None:
    segments = partition(PROGRAM, lambda node: operator_name(node) != "aten::sort")
    held: dict[str, torch.Tensor] = {}
    for segment in segments.segments:
        held.update(segment.program.state_dict)
    state = MODEL.state_dict()
    assert set(held) == set(state)
    assert all(held[name].data_ptr() == tensor.data_ptr() for name, tensor in state.items())
    constants = {name for segment in segments.segments for name in segment.program.constants}
    assert constants == {name for name in PROGRAM.constants if name not in state}


def test_an_engine_that_takes_everything_gets_one_segment() -> None:
    segments = partition(PROGRAM, lambda node: True)
    assert targets(segments) == ["device"]
    assert_same(segments)


def test_operators_that_nothing_keeps_apart_share_a_segment(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "torchserve_neuron_lstm.partitioner")
    segments = partition(PROGRAM, lambda node: True, PartitionerConfig(ops_to_partition={"aten::sort"}))
    assert targets(segments) == ["device", "cpu", "device"]
    assert segments.segments[1].operators == ("aten::sort",)
    assert re.fullmatch("3 segments: device: .*aten::linear.*; cpu: aten::sort; device: .*", caplog.messages[-1])
    assert_same(segments)


@pytest.mark.parametrize("name", ["aten::lstm", "neuron_lstm::lstm"])
def test_a_recurrence_is_put_on_the_cpu_by_either_of_its_names(name: str) -> None:
    """The user wrote nn.LSTM, which torch calls aten::lstm. Here it is an operator of this package, with any length."""
    layer = Recurrent(Case(layers=2, bidirectional=True))
    x, lengths = ragged_batch(0.0)
    program = specialize(exported(layer, x, lengths), Bucket(*x.shape[:2]))
    segments = partition(program, lambda node: True, PartitionerConfig(ops_to_partition={name}))
    on_cpu = [segment.operators for segment in segments.segments if segment.place == "cpu"]
    assert any("aten::lstm" in operators for operators in on_cpu)
    assert all("aten::lstm" not in segment.operators for segment in segments.segments if segment.place == "device")
    with torch.no_grad():
        assert largest_error(run(segments, [x, lengths]), layer.alone(x, lengths)) < 1e-5


class Decayed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.arange(1.0, 4.0).exp().expand(2, 3)
        return torch.sort(x + weights + self.scale.sum(0))[0], x.exp()


def test_what_needs_no_input_is_made_where_it_is_read() -> None:
    """Otherwise the engine would have a segment without inputs before the CPU's."""
    program = fixed(Decayed(), torch.rand(2, 3))
    segments = partition(program, lambda node: True, PartitionerConfig(ops_to_partition={"aten::sort", "aten::add"}))
    by_target = {segment.place: set(segment.operators) for segment in segments.segments}
    assert by_target["device"] == {"aten::exp"}
    assert by_target["cpu"] == {"aten::arange", "aten::expand", "aten::exp", "aten::add", "aten::sum", "aten::sort"}


def test_what_is_not_asked_about_stays_with_the_engine_and_does_not_count() -> None:
    asked = []

    def supported(node: torch.fx.Node) -> bool:
        asked.append(operator_name(node))
        return operator_name(node) != "aten::sort"

    config = PartitionerConfig(
        analyze_parameters={"additional_ignored_ops": ["aten::sort"]}, model_support_percentage_threshold=1.0
    )
    assert targets(partition(PROGRAM, supported, config)) == ["device"]
    assert "aten::sort" not in asked


def test_too_little_support_is_refused() -> None:
    few = {"aten::linear"}
    with pytest.raises(PartitionError, match=r"model_support_percentage_threshold: the engine supports .*aten::sort"):
        partition(PROGRAM, lambda node: operator_name(node) in few)
    lower = PartitionerConfig(model_support_percentage_threshold=0.1)
    assert_same(partition(PROGRAM, lambda node: operator_name(node) in few, lower))


def test_operators_put_on_the_cpu_by_name_count_as_supported() -> None:
    """The threshold is for the engine, not for the user's own choice."""
    config = PartitionerConfig(ops_to_partition=set(OPERATORS), model_support_percentage_threshold=1.0)
    segments = partition(PROGRAM, lambda node: True, config)
    assert targets(segments) == ["cpu"]
    assert_same(segments)


@pytest.mark.parametrize(
    ("limit", "refused", "words"),
    [("max_subgraph_count", 2, "the program has 3 segments"), ("min_subgraph_size", 2, "1 of 3 segments")],
)
def test_more_or_smaller_segments_than_asked_for_are_refused(limit: str, refused: int, words: str) -> None:
    def segments(value: int) -> int:
        limits: dict[str, Any] = {limit: value}
        config = PartitionerConfig(ops_to_partition={"aten::sort"}, **limits)
        return len(partition(PROGRAM, lambda node: True, config).segments)

    assert [segments(value) for value in (3 if limit == "max_subgraph_count" else 1, -1)] == [3, 3]
    with pytest.raises(PartitionError, match=rf"{limit}: {words} .*cpu: aten::sort"):
        segments(refused)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * 2


def test_a_program_that_writes_to_its_buffers_is_refused() -> None:
    """The outputs of a segment must be its only effect."""
    with pytest.raises(CompileError, match="writes to calls"):
        partition(fixed(Counting(), torch.ones(2)), lambda node: True)


WRONG: Sequence[tuple[Mapping[str, Any], str]] = (
    ({"model_support_percentage_threshold": 50}, "model_support_percentage_threshold: expected 1.0 or less, got 50"),
    ({"model_support_percentage_threshold": True}, "model_support_percentage_threshold: expected a number, got true"),
    ({"min_subgraph_size": 0}, "min_subgraph_size: expected -1"),
    ({"min_subgraph_size": -2}, "min_subgraph_size: expected -1"),
    ({"max_subgraph_count": 0}, "max_subgraph_count: expected -1"),
    ({"max_subgraph_count": 1.5}, "max_subgraph_count: expected -1"),
    ({"ops_to_partition": "aten::sort"}, "ops_to_partition: expected a list, got the text"),
    ({"ops_to_partition": {"sort"}}, "ops_to_partition.0.: expected an operator as in aten::sort, got 'sort'"),
    ({"ops_to_partition": {"1x::2\u00e9"}}, "ops_to_partition.0.: expected an operator as in aten::sort, got '1x::2"),
    ({"trace_kwargs": {"inline_weights_to_neff": False}}, "trace_kwargs.inline_weights_to_neff: is not a key here"),
    ({"trace_kwargs": {"compiler_args": 3}}, "compiler_args: expected a text"),
    (
        {"trace_kwargs": {"compiler_args": "--target 'inf2"}},
        "trace_kwargs.compiler_args: expected arguments as a shell takes them, got .*No closing quotation",
    ),
    ({"trace_kwargs": "-O1"}, "trace_kwargs: expected a mapping of keys, got the text"),
    ({"analyze_parameters": {"is_hf_transformers": True}}, "analyze_parameters.is_hf_transformers: is not a key here"),
    ({"analyze_parameters": {"max_workers": 0}}, "max_workers: expected 1 or more, got 0"),
    ({"analyze_parameters": {"additional_ignored_ops": {"sort"}}}, "additional_ignored_ops.0.: expected an operator"),
    ({"analyze_parameters": {"additional_ignored_ops": ["aten::2"]}}, "0.: expected an operator"),
)


@pytest.mark.parametrize(("options", "text"), WRONG, ids=lambda value: str(value)[:40])
def test_an_option_that_cannot_be_is_a_value_error(options: Mapping[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PartitionerConfig(**options)


def test_options_are_given_by_name_alone() -> None:
    with pytest.raises(TypeError):
        PartitionerConfig(None, 0.5)  # type: ignore[call-arg]  # which is wrong


def test_arguments_of_the_compiler_are_split_as_a_shell_would() -> None:
    text = PartitionerConfig(trace_kwargs={"compiler_args": "--target 'inf2 x' -O1"})
    assert text.trace_kwargs == TraceArguments(compiler_args=("--target", "inf2 x", "-O1"))
