"""The backend neuronx on a test double that checks the documented contract of torch_neuronx."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import neuron_doubles
import pytest
import torch
from computed import Computed
from recurrent import BATCH, GARBAGE, TIME, Case, Several, exported, largest_error, several_inputs
from torch import nn

from torchserve_neuron_lstm.backends import versions
from torchserve_neuron_lstm.backends.aws_neuron.neuronx import NeuronX
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings, LoadError
from torchserve_neuron_lstm.backends.signature import WrongInput
from torchserve_neuron_lstm.bucketing.shapes import Bucket

CASES = (Case(layers=2, bidirectional=True, given_state=True), Case(projected=True, need_cell=False), Case("gru"))
TARGET = CompileSettings(args=("--target", "inf2"))
BUCKET = Bucket(BATCH, TIME)

SERVE = """
import json, os, sys
from pathlib import Path
import torch
from torchserve_neuron_lstm.backends.registry import get_backend
directory, weights, inputs, answers = map(Path, sys.argv[1:])
run = get_backend("neuronx").load(directory, torch.load(weights), {}, 1)
torch.save(list(run(torch.load(inputs))), answers)
masked = "torchserve_neuron_lstm.backends.masked" in sys.modules
print(json.dumps({"cores": os.environ["NEURON_RT_NUM_CORES"], "masked": masked}))
"""


@dataclass(frozen=True)
class Compiled:
    module: Several
    program: torch.export.ExportedProgram
    directory: Path


DOUBLED, SORTED = Computed(lambda x: x * 2), Computed(lambda x: torch.sort(x * 2)[0])


class Constant(nn.Module):
    def forward(self) -> torch.Tensor:
        return torch.zeros(2)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """A model with a table of 20 MB, compiled on a host without a device."""
    torch.manual_seed(0)
    module = Several(CASES, rows=1_000_000).eval()
    program = exported(module, *several_inputs(0.0))
    directory = tmp_path_factory.mktemp("neuronx")
    with neuron_doubles.on_path() as patch:
        patch.setenv("NEURON_DOUBLE_CORES", "0")
        NeuronX().compile(program, BUCKET, directory, TARGET)
    return Compiled(module, program, directory)


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("doubled")
    with neuron_doubles.on_path():
        small(DOUBLED, directory)
    return directory


def small(module: nn.Module, directory: Path, settings: CompileSettings = TARGET) -> None:
    program = torch.export.export(module, (torch.zeros(5, 3),), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    NeuronX().compile(program, Bucket(2, 1), directory, settings)


@torch.no_grad()
def test_equals_every_row_alone_whatever_the_padding_holds(double: pytest.MonkeyPatch, compiled: Compiled) -> None:
    run = NeuronX().load(compiled.directory, weights_of(compiled.program), {}, 1)
    for garbage in GARBAGE:
        inputs = several_inputs(garbage)

        assert largest_error(run(inputs), compiled.module.alone(inputs)) <= 1e-5


def test_programs_hold_no_weights(compiled: Compiled) -> None:
    sizes = {file.name: file.stat().st_size for file in compiled.directory.iterdir()}

    assert sum(sizes.values()) < 300_000, sizes


@torch.no_grad()
def test_other_weights_need_no_other_program(double: pytest.MonkeyPatch, compiled: Compiled) -> None:
    torch.manual_seed(1)
    other = Several(CASES, rows=1_000_000).eval()
    weights = {**weights_of(compiled.program), **other.state_dict()}
    inputs = several_inputs(0.0)
    other.scale = compiled.module.scale  # not of the state dict, but of the program

    assert largest_error(NeuronX().load(compiled.directory, weights, {}, 1)(inputs), other.alone(inputs)) <= 1e-5
    with pytest.raises(LoadError, match=r"table.weight: float32 \[5, 5\], compiled with float32 \[1000000, 5\]"):
        NeuronX().load(compiled.directory, {**weights, "table.weight": torch.zeros(5, 5)}, {}, 1)


@pytest.mark.ci
def test_another_process_answers_the_same_on_one_core(
    double: pytest.MonkeyPatch, compiled: Compiled, tmp_path: Path
) -> None:
    weights, inputs = weights_of(compiled.program), several_inputs(0.0)
    here = NeuronX().load(compiled.directory, weights, {}, 1)(inputs)
    double.delenv("NEURON_RT_NUM_CORES")
    torch.save(weights, tmp_path / "weights.pt")
    torch.save(list(inputs), tmp_path / "inputs.pt")
    files = [compiled.directory, *(tmp_path / name for name in ("weights.pt", "inputs.pt", "answers.pt"))]
    source = Path(__file__).parents[3] / "src"
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{os.environ['PYTHONPATH']}"}
    command = [sys.executable, "-W", "ignore", "-c", SERVE, *map(str, files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"cores": "1", "masked": False}
    for ours, theirs in zip(here, torch.load(tmp_path / "answers.pt"), strict=True):
        assert torch.equal(ours, theirs)


def test_cores_that_the_user_chose_are_left_to_the_runtime(double: pytest.MonkeyPatch, compiled: Compiled) -> None:
    double.setenv("NEURON_RT_VISIBLE_CORES", "1")
    NeuronX().load(compiled.directory, weights_of(compiled.program), {}, 1)

    assert "NEURON_RT_NUM_CORES" not in os.environ


def test_other_shapes_and_dtypes_are_refused(double: pytest.MonkeyPatch, compiled: Compiled) -> None:
    run = NeuronX().load(compiled.directory, weights_of(compiled.program), {}, 1)
    x, ids, *rest = several_inputs(0.0)

    with pytest.raises(WrongInput, match=r"'x' is float32 \[4, 8, 5\], but .* \[4, 9, 5\]"):
        run([x[:, :8], ids, *rest])
    with pytest.raises(WrongInput, match="'ids' is int64"):
        run([x, ids.long(), *rest])
    with pytest.raises(torch.jit.Error, match="input 0 has shape"):
        torch.jit.load(compiled.directory / "program.pt")(x[:, :8], ids, *rest)


def test_a_host_without_the_toolchain_says_what_to_install(compiled: Compiled) -> None:
    reason = NeuronX().unavailable()

    assert reason is not None
    for told in ("torch-neuronx is not installed", "pip.repos.neuron.amazonaws.com", "2.31", "compiler_python"):
        assert told in reason
    with pytest.raises(LoadError, match=r"run on a Neuron device.*pip\.repos\.neuron\.amazonaws\.com"):
        NeuronX().load(compiled.directory, weights_of(compiled.program), {}, 1)


@torch.no_grad()
def test_a_host_without_the_device_can_emulate_it(monkeypatch: pytest.MonkeyPatch, compiled: Compiled) -> None:
    inputs, engine = several_inputs(0.0), NeuronX()
    monkeypatch.delenv(versions.VARIABLE, raising=False)
    assert engine.simulation() is None
    with versions.enable_emulation():
        run = engine.load(compiled.directory, weights_of(compiled.program), {}, 1)

        assert "what was compiled has not run" in str(engine.simulation())
    assert largest_error(run(inputs), compiled.module.alone(inputs)) <= 1e-5


@pytest.mark.parametrize("metadata", [True, False])
def test_the_placeholder_of_pypi_is_recognised(tmp_path: Path, metadata: bool) -> None:
    folder = neuron_doubles.placeholder(tmp_path, "torch_neuronx")
    if not metadata:
        (folder / "torch_neuronx-1.0.dist-info" / "METADATA").unlink()
        (folder / "torch_neuronx-1.0.dist-info").rmdir()
    with neuron_doubles.on_path(folder):
        reason = str(NeuronX().unavailable())

    for told in ("empty placeholder", "pip uninstall torch-neuronx", "pip.repos.neuron.amazonaws.com", "torch 2.9"):
        assert told in reason


@pytest.mark.ci
def test_without_a_device_a_target_must_be_named(double: pytest.MonkeyPatch, tmp_path: Path) -> None:
    double.setenv("NEURON_DOUBLE_CORES", "0")

    with pytest.raises(CompileError, match="compiler_args: --target inf2"):
        small(DOUBLED, tmp_path, CompileSettings())


@pytest.mark.ci
def test_with_a_device_no_target_is_needed(double: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small(DOUBLED, tmp_path, CompileSettings())
    x = torch.randn(2, 3)

    assert torch.equal(NeuronX().load(tmp_path, {}, {}, 1)([x])[0], x * 2)


@pytest.mark.ci
def test_a_host_without_cores_cannot_load(double: pytest.MonkeyPatch, doubled: Path) -> None:
    double.setenv("NEURON_DOUBLE_CORES", "0")

    with pytest.raises(LoadError, match=r"not available.*neuron-ls"):
        NeuronX().load(doubled, {}, {}, 1)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (CompileSettings(args=("-O1",)), "-O1 --auto-cast none"),
        (CompileSettings("bfloat16"), "--auto-cast matmult --auto-cast-type bf16"),
        (CompileSettings(args=("--auto-cast=all",)), "--auto-cast=all"),
    ],
)
def test_matrices_are_multiplied_in_the_precision_asked_for(settings: CompileSettings, told: str) -> None:
    """The compiler's default has changed between releases; the user's arguments take precedence."""
    assert " ".join(NeuronX().trace_options(settings)["compiler_args"]) == told


@pytest.mark.ci
def test_refusals_of_the_compiler_are_reported_with_its_message(double: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"neuronx cannot compile for 2 x 1: .*aten::sort.*\n.*neuron-lstm analyze"):
        small(SORTED, tmp_path)
    with pytest.raises(CompileError, match="unrecognized arguments: --no-such-option"):
        small(DOUBLED, tmp_path, CompileSettings(args=("--target", "inf2", "--no-such-option")))
    with pytest.raises(CompileError, match="neuronx cannot compile a program without inputs"):
        NeuronX().compile(torch.export.export(Constant(), ()), Bucket(2, 1), tmp_path, TARGET)


def test_operators_are_refused_as_the_compiler_refuses_them() -> None:
    program = torch.export.export(SORTED, (torch.zeros(5, 3),))
    told = {str(node.target): NeuronX().refusal(node) for node in program.graph.nodes}

    assert {name: why for name, why in told.items() if why} == {
        "aten.sort.default": "neuronx-cc does not support aten::sort"
    }


@pytest.mark.ci
def test_another_interpreter_without_the_toolchain_is_told(tmp_path: Path) -> None:
    bare = neuron_doubles.interpreter(tmp_path, tmp_path)
    with pytest.raises(CompileError, match=r"compiler_python: .* has no working torch_neuronx .*amazonaws"):
        small(DOUBLED, tmp_path, CompileSettings(python=bare))
    with pytest.raises(CompileError, match=r"compiler_python: /no/such/python cannot be started"):
        small(DOUBLED, tmp_path, CompileSettings(python=Path("/no/such/python")))
    neuron_doubles.placeholder(tmp_path, "torch_neuronx")
    with pytest.raises(CompileError, match="empty placeholder"):
        small(DOUBLED, tmp_path, CompileSettings(python=bare))


def test_a_toolchain_of_another_line_is_refused(double: pytest.MonkeyPatch, doubled: Path, tmp_path: Path) -> None:
    """A program needs the torch and the runtime of its compilation."""
    other = tmp_path / "other"
    shutil.copytree(doubled, other)
    facts = json.loads((other / "compiled.json").read_text())
    facts["made_by"]["version"] = "2.8.0.1"
    (other / "compiled.json").write_text(json.dumps(facts))

    with pytest.raises(LoadError, match=r"compiled with torch_neuronx 2\.8\.0\.1, here is 2\.9"):
        NeuronX().load(other, {}, {}, 1)


@pytest.mark.parametrize("victim", ["program.pt", "compiled.json", "signature.json", "program.py"])
def test_damaged_programs_are_refused(double: pytest.MonkeyPatch, doubled: Path, tmp_path: Path, victim: str) -> None:
    shutil.copytree(doubled, tmp_path / "copy")
    (tmp_path / "copy" / victim).unlink()

    with pytest.raises(LoadError):
        NeuronX().load(tmp_path / "copy", {}, {}, 1)
