"""The test doubles check callers against AWS's documentation."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import neuron_doubles
import pytest
import torch
from torch import nn


class Conv(nn.Module):
    """The module of AWS's documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.conv(x) + 1
        return found


class Counting(nn.Module):
    state: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        after = self.state + x
        return after * 2, after


def affine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The function of AWS's documentation."""
    return 2 * x + y


def sorted_softmax(x: torch.Tensor) -> torch.Tensor:
    """A function that ends in an unsupported operator."""
    return torch.sort(torch.log_softmax(x.relu() * 2, 1))[0]


@pytest.fixture
def neuronx() -> Iterator[Any]:
    """Test double of torch_neuronx, on a host with two cores."""
    with neuron_doubles.on_path() as patch:
        patch.setenv("NEURON_DOUBLE_CORES", "2")
        yield importlib.import_module("torch_neuronx")


@pytest.fixture
def neuron() -> Iterator[Any]:
    with neuron_doubles.on_path():
        yield importlib.import_module("torch_neuron")


@torch.no_grad()
def test_a_function_is_traced_saved_and_loaded(neuronx: Any, tmp_path: Path) -> None:
    torch.jit.save(neuronx.trace(affine, (torch.rand(3), torch.rand(3))), tmp_path / "func.pt")
    loaded = torch.jit.load(tmp_path / "func.pt")
    x, y = torch.rand(3), torch.rand(3)

    assert torch.equal(loaded(x, y), affine(x, y))
    for other in (torch.rand(4), torch.rand(1, 3), torch.rand(3, dtype=torch.float64)):
        with pytest.raises(torch.jit.Error, match="input 1 has"):
            loaded(x, other)


@torch.no_grad()
def test_separated_weights_are_replaced_and_inlined_ones_are_not(neuronx: Any) -> None:
    one, other, x = Conv().eval(), Conv().eval(), torch.rand(1, 1, 3, 3)
    separated = neuronx.trace(one, x, inline_weights_to_neff=False)
    neuronx.replace_weights(separated, other.state_dict())
    neuronx.move_trace_to_device(separated, 0)
    inlined = neuronx.trace(one, x)
    with pytest.warns(UserWarning, match="does not contain any separated weights"):
        neuronx.replace_weights(inlined, other)

    assert torch.equal(separated(x), other(x))
    assert torch.equal(inlined(x), one(x))


@torch.no_grad()
def test_dynamic_batches_are_chunked_and_padded(neuronx: Any) -> None:
    model, eight = Conv().eval(), torch.rand(8, 1, 3, 3)
    traced = neuronx.trace(model, torch.rand(3, 1, 3, 3))

    assert neuronx.dynamic_batch(traced) is traced
    assert torch.allclose(traced(eight), model(eight), atol=1e-6)
    with pytest.raises(torch.jit.Error, match="ValueError: input 0 differs from the compiled shape in dimension 2"):
        traced(torch.rand(8, 1, 4, 3))
    two = neuronx.dynamic_batch(neuronx.trace(affine, (torch.rand(2, 3), torch.rand(2, 3))))
    with pytest.raises(torch.jit.Error, match="ValueError: the 0th dimension differs"):
        two(torch.rand(4, 3), torch.rand(5, 3))
    with pytest.raises(ValueError, match="same size of the 0th dimension"):
        neuronx.dynamic_batch(neuronx.trace(affine, (torch.rand(1, 3), torch.rand(3, 3))))


def test_options_by_position_are_inferred_with_a_warning(neuronx: Any, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="by keyword"):
        neuronx.trace(affine, (torch.rand(3), torch.rand(3)), {}, str(tmp_path / "work"), "-O1")

    assert (tmp_path / "work" / "command.txt").read_text() == "-O1"


def test_unsupported_operators_are_refused_or_partitioned(neuronx: Any) -> None:
    x = torch.rand(4, 5)
    with pytest.raises(RuntimeError, match="aten::sort"):
        neuronx.trace(sorted_softmax, x)
    divided = neuronx.trace(sorted_softmax, x, partitioner_config=neuronx.PartitionerConfig())

    assert torch.equal(divided(x), sorted_softmax(x))
    told = neuronx.analyze(sorted_softmax, x)
    assert told["support_percentage"] == "75.00%"
    assert [one["kind"] for one in told["unsupported_operators"]] == ["aten::sort"]
    for limits in ({"model_support_percentage_threshold": 0.9}, {"max_subgraph_count": 1}, {"min_subgraph_size": 3}):
        with pytest.raises(ValueError):
            neuronx.trace(sorted_softmax, x, partitioner_config=neuronx.PartitionerConfig(**limits))
    for senseless in ({"min_subgraph_size": 0}, {"model_support_percentage_threshold": 2.0}):
        with pytest.raises(ValueError):
            neuronx.PartitionerConfig(**senseless)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_fused_recurrences_are_refused(neuronx: Any, kind: Callable[..., nn.Module]) -> None:
    """No compiler supports torch's own layers."""
    with pytest.raises(RuntimeError, match=r"aten::(lstm|gru|rnn_tanh)"):
        neuronx.trace(kind(2, 3).eval(), torch.rand(4, 1, 2))


@torch.no_grad()
def test_an_aliased_output_becomes_the_next_calls_state(neuronx: Any) -> None:
    model = Counting()
    traced = neuronx.trace(model, torch.ones(2), input_output_aliases={model.state: 1})

    assert [traced(torch.ones(2)).tolist() for _ in range(3)] == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]
    with pytest.raises(ValueError, match="parameter or buffer"):
        neuronx.trace(model, torch.ones(2), input_output_aliases={torch.ones(2): 1})


@torch.no_grad()
def test_a_bucket_model_runs_what_its_kernel_chooses(neuronx: Any, tmp_path: Path) -> None:
    def kernel() -> Any:
        @torch.jit.script
        def choose(inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
            x = inputs[0]
            bucket = 0 if x.size(0) <= 2 else 1
            return [torch.nn.functional.pad(x, [0, [2, 4][bucket] - x.size(0)])], torch.tensor(bucket)

        return choose

    config = neuronx.BucketModelConfig(kernel)
    traced = neuronx.bucket_model_trace(lambda: (nn.ReLU(), {}), [torch.rand(2), torch.rand(4)], config)
    torch.jit.save(traced, tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")

    assert [len(loaded(torch.ones(n))) for n in (1, 2, 3, 4)] == [2, 2, 4, 4]


def test_compiling_without_a_device_needs_a_target(neuronx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(3)
    with pytest.raises(ValueError, match="--target"):
        neuronx.trace(affine, (x, x), cpu_backend=True)
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "0")
    with pytest.raises(RuntimeError, match="no Neuron device"):
        neuronx.trace(affine, (x, x), compiler_args="--target inf2")

    assert neuronx.trace(affine, (x, x), compiler_args=["--target", "inf2"], cpu_backend=True) is not None


def test_cores_are_those_that_the_environment_leaves(neuronx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores count from the first visible one; VISIBLE_CORES wins, and must be contiguous."""
    traced = neuronx.trace(affine, (torch.rand(3), torch.rand(3)))
    neuronx.set_neuron_cores(traced, start_nc=1, nc_count=1)
    with pytest.raises(ValueError, match="nc_count"):
        neuronx.set_neuron_cores(traced, nc_count=3)
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "1")
    with pytest.raises(ValueError, match="no NeuronCore 1"):
        neuronx.set_neuron_cores(traced, start_nc=1)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0-1")
    neuronx.set_neuron_cores(traced, start_nc=1)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0,2")
    with pytest.raises(RuntimeError, match="not contiguous"):
        neuronx.set_multicore(traced)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "1-2")
    with pytest.raises(RuntimeError, match="not available"):
        neuronx.move_trace_to_device(traced, 0)


@torch.no_grad()
def test_inf1_falls_back_to_the_cpu_unless_told_not_to(neuron: Any) -> None:
    table, ids = nn.Embedding(5, 2), torch.tensor([1, 4])

    assert torch.equal(neuron.trace(table, ids)(ids), table(ids))
    with pytest.raises(AttributeError, match="aten::embedding"):
        neuron.trace(table, ids, fallback=False)
    with pytest.raises(TypeError, match="list of strings"):
        neuron.trace(table, ids, compiler_args="--fast-math none")
    dynamic = neuron.trace(affine, (torch.rand(2, 3), torch.rand(2, 3)), dynamic_batch_size=True)
    assert dynamic(torch.rand(5, 3), torch.rand(5, 3)).shape == (5, 3)
