"""Answers belong to the caller: a weight that is returned is not changed through the answer."""

from pathlib import Path

import neuron_doubles
import pytest
import torch
from torch import nn

from torchserve_neuron_lstm.backends import versions
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import Backend, CompileSettings, LoadedProgram
from torchserve_neuron_lstm.backends.partitioning.backend import PartitionedBackend
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.partitioner import PartitionerConfig

BUCKET = Bucket(2, 1)
EXAMPLE = torch.ones(2, 3)
ANSWERS = [[[0.0, 1.0, 2.0]] * 2, [0.0, 1.0, 2.0], [1.0, 2.0]]
SLICED_ON_CPU = PartitionerConfig(ops_to_partition={"aten::slice"}, model_support_percentage_threshold=0)


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x * self.temperature, self.temperature, self.temperature[1:]


def compile_with(engine: Backend, directory: Path) -> dict[str, torch.Tensor]:
    model = Tempered().eval()
    program = torch.export.export(model, (EXAMPLE,))
    settings = CompileSettings(args=("--target", "inf2")) if engine.name == "neuronx" else CompileSettings()
    engine.compile(program, BUCKET, directory, settings)
    return {**model.state_dict(), **weights_of(program)}


def assert_answers_stay(run: LoadedProgram) -> None:
    for answer in run([EXAMPLE]):
        answer.fill_(9.0)

    assert [answer.tolist() for answer in run([EXAMPLE])] == ANSWERS


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "on_cpu"),
    [("eager", False), ("native", False), ("onnxruntime", False), ("eager", True), ("onnxruntime", True)],
)
def test_a_weight_is_answered_as_a_copy(name: str, on_cpu: bool, tmp_path: Path) -> None:
    engine = PartitionedBackend(get_backend(name), SLICED_ON_CPU) if on_cpu else get_backend(name)
    weights = compile_with(engine, tmp_path)

    assert_answers_stay(engine.load(tmp_path, weights, engine.host(), 1))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["neuronx", "neuron"])
def test_an_emulated_neuron_program_answers_with_a_copy_of_a_weight(name: str, tmp_path: Path) -> None:
    engine = get_backend(name)
    with neuron_doubles.on_path():
        weights = compile_with(engine, tmp_path)
        assert_answers_stay(engine.load(tmp_path, weights, engine.host(), 1))
    with versions.enable_emulation():
        assert_answers_stay(engine.load(tmp_path, weights, engine.host(), 1))
