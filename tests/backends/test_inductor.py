import os
import subprocess
from pathlib import Path

import pytest
import torch
from recurrent import BATCH, TIME, Case, Recurrent, exported, largest_error, ragged_batch

from torchserve_neuron_lstm.backends import cpp_compiler, inductor_compiler, target_machine
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.inductor import Inductor
from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings, LoadError
from torchserve_neuron_lstm.bucketing.shapes import Bucket

pytestmark = [pytest.mark.xdist_group("inductor"), pytest.mark.timeout(300), pytest.mark.ci]

HOST = Inductor().host()


@pytest.fixture(scope="module")
def module() -> Recurrent:
    """A GRU, which compiles fast because it stays a call of the operator."""
    torch.manual_seed(0)
    return Recurrent(Case("gru", given_state=True)).eval()


@pytest.fixture(scope="module")
def directory(module: Recurrent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program for BATCH x TIME; the compiler's commands are in the file `commands` beside the folder."""
    folder = tmp_path_factory.mktemp("gru")
    compiler = folder / "logging-g++"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {folder}/commands\nexec {cpp_compiler.compiler()} "$@"\n')
    compiler.chmod(0o755)
    target = folder / "program"
    target.mkdir()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CXX", str(compiler))
        Inductor().compile(exported(module, *ragged_batch(0.0)), Bucket(BATCH, TIME), target)
    return target


def test_this_machine_can_compile() -> None:
    assert Inductor().unavailable() is None
    assert {"system", "machine", "isa", "torch"} == set(HOST)


def test_a_torch_that_compiles_for_this_cpu_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its programs might end the process on a host with another CPU."""
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")

    assert "torch 2.12.1 compiles for the CPU of the packaging machine alone" in str(Inductor().unavailable())


def test_another_kind_of_machine_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "this is linux on riscv64" in str(Inductor().unavailable())


def test_another_length_is_refused(module: Recurrent, directory: Path) -> None:
    """Compiled code would silently give wrong answers, so the loader checks."""
    run = Inductor().load(directory, module.state_dict(), HOST, 1)
    x, lengths = ragged_batch(0.0, time=TIME + 1)

    with pytest.raises(ValueError, match=r"'x' is float32 \[4, 10, 5\], but .* \[4, 9, 5\]"):
        run([x, lengths])


@pytest.mark.parametrize(("what", "value"), [("machine", "riscv64"), ("torch", "1.13")])
def test_another_host_is_refused(module: Recurrent, directory: Path, what: str, value: str) -> None:
    with pytest.raises(LoadError, match=rf"compiled for .*{value}.*package the model again.*onnxruntime"):
        Inductor().load(directory, module.state_dict(), {**HOST, what: value}, 1)


@torch.no_grad()
def test_code_in_noexec_folders_is_loaded_from_a_copy(
    module: Recurrent, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(target_machine, "_is_noexec", lambda place: place == directory)
    run = Inductor().load(directory, module.state_dict(), HOST, 1)

    assert largest_error(run(ragged_batch(0.0)), module.alone(*ragged_batch(0.0))) <= 1e-5
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_compiled_for_other_instruction_sets(directory: Path) -> None:
    """Each test program of inductor takes a second of every process that compiles."""
    commands = (directory.parent / "commands").read_text()

    assert target_machine.cpu_target().isa in commands
    assert "avx512" not in commands
    assert "amx" not in commands


def test_the_library_is_stripped(directory: Path) -> None:
    library = directory / "program.so"
    sections = subprocess.run(["readelf", "-S", str(library)], capture_output=True, text=True, check=True).stdout

    assert ".debug" not in sections
    assert library.stat().st_size < 350_000


def test_loading_gives_the_process_its_threads(module: Recurrent, directory: Path) -> None:
    before = torch.get_num_threads()
    try:
        Inductor().load(directory, module.state_dict(), HOST, 3)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_compiler_error_names_the_bucket(module: Recurrent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported(module, *ragged_batch(0.0))  # for torch adds to the environment, the first time
    before = dict(os.environ)
    monkeypatch.setattr(inductor_compiler, "_compile", lambda *_: (_ for _ in ()).throw(OSError("disk full")))

    with pytest.raises(CompileError, match="cannot compile for 4 x 9: disk full"):
        Inductor().compile(program, Bucket(BATCH, TIME), tmp_path)
    assert before == dict(os.environ)


class WithConstants(Recurrent):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        few = torch.tensor([0.5, -1.5, 2.0, 3.0, 4.0])
        many = torch.tensor([[float(row), 1.0, 2.0, 3.0, 4.0] for row in range(9)])
        return x * few + many[0] * torch.tensor(0.25) + many.sum(0), *super().forward(x, lengths)


@torch.no_grad()
def test_constants_of_the_code_are_taken_at_load(tmp_path: Path) -> None:
    module, inputs = WithConstants(Case("gru")).eval(), ragged_batch(0.0)
    program = exported(module, *inputs)
    Inductor().compile(program, Bucket(BATCH, TIME), tmp_path)
    weights = weights_of(program)
    run = Inductor().load(tmp_path, weights, HOST, 1)
    none = Inductor().load(tmp_path, {name: torch.zeros_like(one) for name, one in weights.items()}, HOST, 1)

    torch.testing.assert_close(run(inputs)[0], module(*inputs)[0])
    assert len(program.constants) == 3
    assert [answer.abs().max() for answer in none(inputs)] == [0, 0, 0]


def compiled(module: Recurrent, folder: Path, settings: CompileSettings) -> Path:
    target = folder / "program"
    target.mkdir()
    Inductor().compile(exported(module, *ragged_batch(0.0)), Bucket(BATCH, TIME), target, settings)
    return target


@pytest.mark.long
@torch.no_grad()
def test_the_workdir_keeps_what_the_compiler_was_given(module: Recurrent, tmp_path: Path) -> None:
    workdir = tmp_path / "work"
    (workdir / "inductor").mkdir(parents=True)
    (workdir / "inductor" / "of-last-time.cpp").write_text("")
    (workdir / "mine.txt").write_text("kept")
    program = compiled(module, tmp_path, CompileSettings(workdir=workdir, args=("-DNAME=a b", "-O1")))
    commands = (workdir / "inductor" / "commands.txt").read_text().splitlines()

    assert any("neuron_lstm" in source.read_text() for source in workdir.rglob("*.cpp"))
    assert not (workdir / "inductor" / "of-last-time.cpp").exists()
    assert (workdir / "mine.txt").read_text() == "kept"
    assert len(commands) >= 2
    assert all(" 'g++' " in command and command.endswith(" '-DNAME=a b' '-O1'") for command in commands)
    (again,) = (command for command in commands if ".kernel.cpp'" in command)
    subprocess.run(["sh", "-c", again], check=True, cwd="/")
    run = Inductor().load(program, module.state_dict(), HOST, 1)
    assert largest_error(run(ragged_batch(0.0)), module.alone(*ragged_batch(0.0))) <= 1e-5


def test_a_workdir_that_inductor_cannot_use_is_refused(module: Recurrent, tmp_path: Path) -> None:
    """Inductor's commands would be split at the space."""
    (tmp_path / "my work").mkdir()
    with pytest.raises(CompileError, match=r"compiler_workdir: inductor cannot work .* a space in its path: .*my work"):
        compiled(module, tmp_path, CompileSettings(workdir=tmp_path / "my work"))


def test_an_unknown_argument_is_refused_in_the_compilers_words(module: Recurrent, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"4 x 9: .*error: unrecognized command-line option .*-fno-such-thing"):
        compiled(module, tmp_path, CompileSettings(args=("-fno-such-thing",)))


def test_other_instructions_are_refused(module: Recurrent, tmp_path: Path) -> None:
    """The recorded host would have fewer instructions than the code needs."""
    with pytest.raises(CompileError, match="compiler_args: -march=native chooses an instruction set"):
        compiled(module, tmp_path, CompileSettings(args=("-O3", "-march=native")))


@pytest.mark.long
@torch.no_grad()
def test_double_precision_is_left_to_torch(tmp_path: Path) -> None:
    """The layer of oneDNN is for float32; an LSTM in float64 calls torch's own layer and is as exact."""
    module = Recurrent(Case()).double().eval()
    x, lengths = ragged_batch(0.0)
    program = exported(module, x.double(), lengths)
    Inductor().compile(program, Bucket(BATCH, TIME), tmp_path)
    run = Inductor().load(tmp_path, weights_of(program), HOST, 1)

    assert largest_error(run([x.double(), lengths]), module.alone(x.double(), lengths)) <= 1e-12
