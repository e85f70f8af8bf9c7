import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from native_layers import isas_here
from recurrent import Case, Recurrent, exported, largest_error, ragged_batch

from torchserve_neuron_lstm.backends import target_machine
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError, LoadError
from torchserve_neuron_lstm.backends.native.engine import Native
from torchserve_neuron_lstm.backends.native.instruction_sets import instruction_sets

pytestmark = pytest.mark.xdist_group(f"kernel-{isas_here()[0]}")

HOST = Native().host()


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def module() -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(Case(layers=2, bidirectional=True, given_state=True)).eval()


@pytest.fixture(scope="module")
def directory(module: Recurrent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("lstm")
    Native().compile(exported(module, *ragged_batch(0.0)), None, target)
    return target


def test_this_machine_can_compile() -> None:
    assert Native().unavailable() is None
    assert {"system", "machine", "isa"} == set(HOST)


def test_another_kind_of_machine_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "this is linux on riscv64" in str(Native().unavailable())


def test_a_compiler_that_fails_is_quoted(module: Recurrent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")

    with pytest.raises(CompileError, match=r"false does not compile the recurrent library for .*: exit code 1"):
        Native().compile(exported(module, *ragged_batch(0.0)), None, tmp_path)


def test_another_host_is_refused(module: Recurrent, directory: Path) -> None:
    with pytest.raises(LoadError, match=r"compiled for machine riscv64.*package the model again.*onnxruntime"):
        Native().load(directory, module.state_dict(), {**HOST, "machine": "riscv64"}, 1)


@torch.no_grad()
def test_a_host_of_the_least_kind_is_served(
    module: Recurrent, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_machine, "cpu_flags", lambda: target_machine.cpu_target().cpu_flags)
    for file in directory.iterdir():
        if file.suffix != ".so" or file.name == instruction_sets()[-1].library:
            shutil.copy(file, tmp_path)
    run = Native().load(tmp_path, module.state_dict(), HOST, 2)
    inputs = ragged_batch(float("nan"))

    assert largest_error(run(inputs), module.alone(*inputs)) <= 1e-5


@torch.no_grad()
def test_code_in_noexec_folders_is_loaded_from_a_copy(
    module: Recurrent, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(target_machine, "_is_noexec", lambda place: place == directory)
    run = Native().load(directory, module.state_dict(), HOST, 1)

    assert largest_error(run(ragged_batch(0.0)), module.alone(*ragged_batch(0.0))) <= 1e-5
    assert list(tmp_path.iterdir()) == []


def test_new_weights_of_the_same_shapes_are_taken(module: Recurrent, directory: Path) -> None:
    torch.manual_seed(7)
    other = Recurrent(module.case).eval()
    run = Native().load(directory, other.state_dict(), HOST, 1)

    with torch.no_grad():
        assert largest_error(run(ragged_batch(0.0)), other.alone(*ragged_batch(0.0))) <= 1e-5


def test_loading_leaves_torch_one_thread(module: Recurrent, directory: Path) -> None:
    """Its other threads would spin on the cores of the recurrent library's threads."""
    torch.set_num_threads(2)
    Native().load(directory, module.state_dict(), HOST, 3)

    assert torch.get_num_threads() == 1


@torch.no_grad()
def test_constants_of_the_code_are_taken_at_load(tmp_path: Path) -> None:
    class WithConstants(Recurrent):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return super().forward(x * torch.tensor([0.5, -1.5, 2.0, 3.0, 4.0]), lengths)

    module, inputs = WithConstants(Case("gru")).eval(), ragged_batch(0.0)
    program = exported(module, *inputs)
    Native().compile(program, None, tmp_path)
    weights = weights_of(program)
    constants = {name: torch.ones_like(one) if name in program.constants else one for name, one in weights.items()}
    plain = Recurrent(Case("gru"))
    plain.load_state_dict(module.state_dict())

    assert program.constants
    for given, wanted in ((weights, module(*inputs)), (constants, plain(*inputs))):
        assert largest_error(Native().load(tmp_path, given, HOST, 1)(inputs), list(wanted)) <= 1e-5


class Sums(torch.nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(5, outputs)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.linear(x.cumsum(1)[:, -1])
        return answer


@pytest.mark.parametrize(("outputs", "libraries"), [(3, 0), (10_000, len(instruction_sets()))])
@torch.no_grad()
def test_the_kernel_is_loaded_only_for_recurrences(outputs: int, libraries: int, tmp_path: Path) -> None:
    module, inputs = Sums(outputs).eval(), ragged_batch(0.0)
    program = exported(module, *inputs)
    Native().compile(program, None, tmp_path)
    before = _threads_here()
    run = Native().load(tmp_path, weights_of(program), HOST, 4)

    assert len(list(tmp_path.glob("*.so"))) == libraries
    assert len(_threads_here() - before) == (3 if libraries else 0)
    assert largest_error(run(inputs), [module(*inputs)]) <= 1e-5


def _threads_here() -> set[str]:
    return {thread.name for thread in Path("/proc/self/task").iterdir()}
