"""The backend neuron on a test double that checks the documented contract of torch_neuron."""

from pathlib import Path

import neuron_doubles
import pytest
import torch
from recurrent import BATCH, CASES, GARBAGE, TIME, Case, Recurrent, exported, largest_error, ragged_batch
from torch import nn
from torch.export import ExportedProgram

from torchserve_neuron_lstm.backends.aws_neuron.neuron import Neuron
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings, LoadError
from torchserve_neuron_lstm.bucketing.shapes import Bucket

CASE = Case(layers=2, bidirectional=True, given_state=True)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table(ids)
        return found


@pytest.fixture(scope="module")
def model() -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(CASE).eval()


@pytest.fixture(scope="module")
def program(model: Recurrent) -> ExportedProgram:
    return exported(model, *ragged_batch(0.0))


@pytest.fixture(scope="module")
def directory(program: ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("neuron")
    python = neuron_doubles.interpreter(tmp_path_factory.mktemp("toolchain"))
    Neuron().compile(program, Bucket(BATCH, TIME), place, CompileSettings(python=python))
    return place


@torch.no_grad()
def test_equals_every_row_alone_whatever_the_padding_holds(
    double: pytest.MonkeyPatch, model: Recurrent, program: ExportedProgram, directory: Path
) -> None:
    run = Neuron().load(directory, weights_of(program), {}, 1)
    for garbage in GARBAGE:
        x, lengths = ragged_batch(garbage)

        assert largest_error(run([x, lengths]), model.alone(x, lengths)) <= 1e-5


@torch.no_grad()
def test_the_weights_are_in_the_program(double: pytest.MonkeyPatch, program: ExportedProgram, directory: Path) -> None:
    inputs = ragged_batch(0.0)
    other = {name: tensor + 1 for name, tensor in weights_of(program).items()}
    answers = [Neuron().load(directory, weights, {}, 1)(inputs)[0] for weights in (weights_of(program), other)]

    assert torch.equal(*answers)
    assert Neuron().inlines_weights


def test_an_unsupported_operator_is_refused_with_what_to_do(double: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a refusal it would run on the CPU silently; the operator query reports it too."""
    program = torch.export.export(Embedded(), (torch.zeros(2, dtype=torch.int64),))

    with pytest.raises(CompileError, match=r"aten::embedding is not supported\n.*partitioner_config: \{\}"):
        Neuron().compile(program, Bucket(2, 1), tmp_path)
    (why,) = [told for node in program.graph.nodes if (told := Neuron().refusal(node))]
    assert why == "aten::embedding is not among the operators that neuron-cc supports"


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_recurrences_are_not_refused(case: Case) -> None:
    program = exported(Recurrent(case), *ragged_batch(0.0))

    assert [why for node in program.graph.nodes if (why := Neuron().refusal(node))] == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (CompileSettings(), ["--fast-math", "none"]),
        (CompileSettings("bfloat16"), []),
        (CompileSettings(args=("--fast-math", "all")), ["--fast-math", "all"]),
    ],
)
def test_the_compiler_computes_in_the_precision_asked_for(settings: CompileSettings, told: list[str]) -> None:
    """The compiler's default would be bfloat16."""
    assert Neuron().trace_options(settings) == {"compiler_args": told, "fallback": False}


def test_a_host_without_the_toolchain_says_what_to_install(program: ExportedProgram, directory: Path) -> None:
    reason = str(Neuron().unavailable())

    for told in ("torch-neuron is not installed", "pip.repos.neuron.amazonaws.com", "torch 1.13", "compiler_python"):
        assert told in reason
    with pytest.raises(LoadError, match=r"run on a Neuron device.*amazonaws"):
        Neuron().load(directory, weights_of(program), {}, 1)


def test_the_placeholder_of_pypi_is_recognised(tmp_path: Path) -> None:
    with neuron_doubles.on_path(neuron_doubles.placeholder(tmp_path, "torch_neuron")):
        assert "pip uninstall torch-neuron)" in str(Neuron().unavailable())
