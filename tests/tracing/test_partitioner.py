"""partitioner_config and analyze(): unsupported operators run on the CPU, or are reported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchserve_neuron_lstm import tracing


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = torch.sort(torch.log_softmax(self.second(torch.relu(self.first(x))), dim=1))
        return out


SORT_ON_CPU = tracing.PartitionerConfig(ops_to_partition={"aten::sort"})


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["eager", "native", "onnxruntime"])
def test_a_divided_function_is_one_function(backend: str, tmp_path: Path) -> None:
    model, x = Sorted().eval(), torch.rand(5, 6)
    traced = tracing.trace(model, torch.rand(2, 6), partitioner_config=SORT_ON_CPU, backend=backend)
    segments = {path.name for path in (traced.directory / "programs" / "0").iterdir() if path.is_dir()}
    traced.save(tmp_path / "traced")

    with torch.no_grad():
        expected = model(x)
    for run in (traced, tracing.load(tmp_path / "traced")):
        torch.testing.assert_close(tracing.dynamic_batch(run)(x), expected, rtol=1e-5, atol=1e-5)
    assert segments == {"0_device", "1_cpu"}


def test_weights_of_a_divided_function_are_replaced() -> None:
    other, x = Sorted().eval(), torch.rand(2, 6)
    traced = tracing.trace(Sorted(), x, partitioner_config=SORT_ON_CPU, inline_weights_to_neff=False, backend="eager")

    tracing.replace_weights(traced, other)

    with torch.no_grad():
        torch.testing.assert_close(traced(x), other(x))


def test_an_option_that_cannot_be_kept_is_a_value_error() -> None:
    config = tracing.PartitionerConfig(ops_to_partition={"aten::sort"}, max_subgraph_count=1)
    with pytest.raises(ValueError, match="max_subgraph_count"):
        tracing.trace(Sorted(), torch.rand(2, 6), partitioner_config=config, backend="eager")


@pytest.mark.parametrize("option", ["compiler_workdir", "compiler_args"])
def test_segments_get_no_option_that_their_engine_has_no_compiler_for(option: str) -> None:
    config = tracing.PartitionerConfig(trace_kwargs={option: "x"})

    with pytest.raises(ValueError, match=f"partitioner_config.trace_kwargs.{option}: not supported by eager"):
        tracing.trace(torch.relu, torch.ones(2), partitioner_config=config, backend="eager")


def test_what_is_no_partitioner_config_is_refused() -> None:
    given: Any = {"min_subgraph_size": 1}

    with pytest.raises(TypeError, match="expected a PartitionerConfig"):
        tracing.trace(torch.relu, torch.ones(2), partitioner_config=given, backend="eager")


def test_analyze_counts_what_is_taken() -> None:
    found = tracing.analyze(Sorted(), torch.rand(2, 6), backend="eager")

    assert found["support_percentage"] == "100.00%"
    assert found["supported_operators"]["aten"]["aten::sort"] == 1
    assert found["unsupported_operators"] == []


def test_analyze_names_the_line_of_what_is_not_taken() -> None:
    """NeuronX has no sort according to its documentation; neither its compiler nor its device is needed."""
    found = tracing.analyze(Sorted(), torch.rand(2, 6), backend="neuronx", additional_ignored_ops={"aten::linear"})

    (sort,) = found["unsupported_operators"]
    assert sort["kind"] == "aten::sort"
    assert sort["failureAt"] == "list of operators"
    assert "test_partitioner.py" in sort["call"]
    assert "torch.sort" in sort["call"]
    assert found["supported_operators"] == {"aten": {"aten::relu": 1, "aten::log_softmax": 1}}
    assert found["support_percentage"] == "66.67%"


def test_analyze_tries_operators_where_an_engine_does_not_know_them() -> None:
    found = tracing.analyze(torch.sort, torch.rand(2, 6), backend="onnxruntime")

    assert found["supported_operators"] == {"aten": {"aten::sort": 1}}
