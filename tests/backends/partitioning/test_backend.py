import json
from pathlib import Path

import neuron_doubles
import pytest
import torch
from picky_engine import Picky, Telling
from torch import nn

from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import Backend, CompileError, CompileSettings, LoadError
from torchserve_neuron_lstm.backends.partitioning.backend import PartitionedBackend
from torchserve_neuron_lstm.backends.partitioning.partitioned_program import load_compiled
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.backends.signature import WrongInput
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.partitioner import PartitionerConfig

BUCKET = Bucket(4, 1)
SORT_ON_CPU = PartitionerConfig(ops_to_partition={"aten::sort"})


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.special.bessel_j0(torch.relu(self.first(x)))
        values, order = torch.sort(torch.log_softmax(self.second(hidden), 1))
        return values * torch.arange(1.0, 6.0), order


class Perceptron(nn.Module):
    """The partitioned example of torch_neuronx's documentation, in a smaller size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = torch.sort(torch.log_softmax(self.layers(x), 1))[0]
        return values


MODEL = Sorted().eval()
X = torch.rand(BUCKET.batch, 8, generator=torch.Generator().manual_seed(3))


def program_of(model: nn.Module) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad():
        return torch.export.export(model.eval(), (torch.rand(3, 8),), dynamic_shapes=({0: batch},), strict=False)


def targets(directory: Path) -> list[str]:
    return [segment["place"] for segment in json.loads((directory / "segments.json").read_text())["segments"]]


def assert_answers_of(model: nn.Module, engine: Backend, directory: Path) -> None:
    weights = {**model.state_dict(), **weights_of(program_of(model))}
    run = load_compiled(engine.load, directory, weights, engine.host(), 1)
    with torch.no_grad():
        theirs = model(X)
    ours = run([X])
    assert all(one.is_contiguous() for one in ours)
    for mine, other in zip(ours, theirs if isinstance(theirs, tuple) else (theirs,), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    with pytest.raises(WrongInput, match="compiled for float32"):
        run([X[:3]])


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["eager", "onnxruntime", pytest.param("openvino", marks=pytest.mark.long)])
def test_one_model_from_outside(name: str, tmp_path: Path) -> None:
    engine = get_backend(name)
    model = Sorted().eval()
    PartitionedBackend(engine, SORT_ON_CPU).compile(program_of(model), BUCKET, tmp_path)
    assert "cpu" in targets(tmp_path)
    assert "device" in targets(tmp_path)
    assert_answers_of(model, engine, tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-0.5)
    assert_answers_of(model, engine, tmp_path)


@pytest.mark.ci
def test_the_sort_that_neuronx_does_not_take_runs_on_the_cpu(tmp_path: Path) -> None:
    """The defaults write Python source: the torch of the engine's hosts cannot read this one's exports."""
    engine = get_backend("neuronx")
    settings = CompileSettings(args=("--target", "inf2"))
    with neuron_doubles.on_path():
        with pytest.raises(CompileError, match=r"partitioner_config: \{\}"):
            engine.compile(program_of(Perceptron()), BUCKET, _made(tmp_path / "whole"), settings)
        PartitionedBackend(engine).compile(program_of(Perceptron()), BUCKET, _made(tmp_path / "parts"), settings)
        assert targets(tmp_path / "parts") == ["device", "cpu"]
        assert not list(tmp_path.glob("parts/1_cpu/*.pt2"))
        assert_answers_of(Perceptron().eval(), engine, tmp_path / "parts")


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_an_engine_without_a_query_takes_what_is_not_put_on_the_cpu(tmp_path: Path) -> None:
    PartitionedBackend(Picky(), SORT_ON_CPU).compile(program_of(MODEL), BUCKET, tmp_path)
    assert targets(tmp_path) == ["device", "cpu", "device"]
    assert_answers_of(MODEL, Picky(), tmp_path)


def test_only_the_engines_segments_are_told_what_trace_kwargs_say(tmp_path: Path) -> None:
    config = PartitionerConfig(
        ops_to_partition={"aten::sort"},
        trace_kwargs={"compiler_workdir": str(tmp_path / "left"), "compiler_args": "--fast 'a b'"},
    )
    settings = CompileSettings(workdir=tmp_path, args=("--slow",))
    PartitionedBackend(Picky(), config).compile(program_of(MODEL), BUCKET, _made(tmp_path / "parts"), settings)
    asked = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("parts/*/asked.json"))]
    assert [one["args"] for one in asked] == [["--fast", "a b"]] * 2
    assert [file.parent.name for file in sorted((tmp_path / "left").glob("*/notes.txt"))] == ["0", "2"]


def test_limits_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    config = PartitionerConfig(ops_to_partition={"aten::sort"}, max_subgraph_count=1)
    with pytest.raises(CompileError, match=r"^partitioner_config\.max_subgraph_count: .* 3 segments"):
        PartitionedBackend(Picky(), config).compile(program_of(MODEL), BUCKET, tmp_path)


def test_a_segment_that_is_refused_after_all_names_what_is_in_it(tmp_path: Path) -> None:
    engine = Picky(refused=frozenset({"aten::relu"}))
    with pytest.raises(CompileError, match=r"picky has no .*\(a segment of aten::linear, aten::relu.*ops_to_partition"):
        PartitionedBackend(engine, SORT_ON_CPU).compile(program_of(MODEL), BUCKET, tmp_path)


def test_what_an_engine_says_of_itself_holds_for_both_together(tmp_path: Path) -> None:
    both: Backend = PartitionedBackend(Telling(), SORT_ON_CPU)
    assert both.whole_sequences == "it keeps its state to itself"
    assert PartitionedBackend(Picky()).whole_sequences is None
    both.compile(program_of(MODEL), BUCKET, tmp_path)
    operators = sum(len(json.loads(file.read_text())["operators"]) for file in tmp_path.glob("*/asked.json"))
    assert both.estimate_us(tmp_path) == 2.0 * operators
    assert PartitionedBackend(Picky()).estimate_us(tmp_path) is None


@pytest.mark.few(2)
@pytest.mark.parametrize("damage", ["", "[]", '{"inputs": [], "outputs": []}'])
def test_a_damaged_list_of_segments_is_refused(damage: str, tmp_path: Path) -> None:
    PartitionedBackend(Picky(), SORT_ON_CPU).compile(program_of(MODEL), BUCKET, tmp_path)
    (tmp_path / "segments.json").write_text(damage)
    with pytest.raises(LoadError, match="package the model again"):
        load_compiled(Picky().load, tmp_path, MODEL.state_dict(), {}, 1)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    PartitionedBackend(Picky(), SORT_ON_CPU).compile(program_of(MODEL), BUCKET, tmp_path)
    with pytest.raises(LoadError, match=r"first\.weight: missing"):
        load_compiled(Picky().load, tmp_path, {}, {}, 1)
