"""Vollo with test doubles of its compiler and its runtime: messages, accelerators, other weights."""

import warnings
from pathlib import Path

import fake_vollo
import pytest
import torch
from fake_vollo import ESTIMATE_US, Fakes
from torch.export import ExportedProgram
from vollo_models import BATCH, TIME, Answers, InTime, batch, program_of, real

from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings, LoadError
from torchserve_neuron_lstm.backends.vollo import engine as vollo
from torchserve_neuron_lstm.backends.vollo.compiler import accelerator_config
from torchserve_neuron_lstm.backends.vollo.engine import Vollo
from torchserve_neuron_lstm.bucketing.shapes import Bucket

BUCKET = Bucket(BATCH, TIME)
FORMER, CURRENT = "ia_840f_c3b64", "bittware_ia840f_c3b64"


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return fake_vollo.install(monkeypatch)


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return program_of(InTime())


def compiled(program: ExportedProgram, directory: Path) -> Path:
    Vollo().compile(program, BUCKET, directory, CompileSettings("bfloat16", args=("--config", FORMER)))
    return directory


def test_it_says_what_differs_from_other_engines() -> None:
    assert Vollo().inlines_weights
    assert Vollo().whole_sequences is not None


@pytest.mark.ci
def test_a_former_name_is_taken_without_a_warning(program: ExportedProgram, tmp_path: Path, fakes: Fakes) -> None:
    """The compiler itself would warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = accelerator_config(("--config", FORMER))

    assert found == CURRENT
    compiled(program, tmp_path)
    assert set(fakes.asked) == {CURRENT}


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name the accelerator, e.g. .*; the compiler has amd_v80_c6b32, bittware_ia840f_c3b64"),
        (("--config", "v81"), "unknown accelerator --config v81; the compiler has amd_v80_c6b32, bittware_ia840f"),
        (("--config", "load"), "unknown accelerator --config load"),
        (("--config",), "expected one argument"),
        (("--fast",), "unrecognized arguments: --fast; Vollo supports only --config NAME"),
    ],
)
def test_a_wrong_argument_is_answered_with_what_there_is(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(CompileError, match=f"compiler_args: .*{said}"):
        accelerator_config(arguments)


@pytest.mark.usefixtures("fakes")
def test_float32_is_refused(program: ExportedProgram, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="computes in bfloat16, not in float32: write precision: bfloat16"):
        Vollo().compile(program, BUCKET, tmp_path, CompileSettings("float32", args=("--config", CURRENT)))
    assert Vollo().precisions == ("bfloat16",)


def test_what_does_not_fit_is_refused(program: ExportedProgram, tmp_path: Path, fakes: Fakes) -> None:
    fakes.most_weights = 1
    with pytest.raises(CompileError, match=rf"does not fit {CURRENT}: not enough weight store: needs 2, has 1$"):
        compiled(program, tmp_path)


def test_what_the_compiler_does_not_take_is_named(program: ExportedProgram, tmp_path: Path, fakes: Fakes) -> None:
    fakes.unsupported = "unsupported function 'fft_fft'"
    with pytest.raises(CompileError, match=r"NNIR: unsupported function 'fft_fft': found 1$"):
        compiled(program, tmp_path)


@pytest.mark.ci
@pytest.mark.usefixtures("fakes")
def test_an_operator_that_it_lacks_is_named_with_its_line(tmp_path: Path) -> None:
    class Logs(InTime):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (torch.log_softmax(super().forward(x, lengths)[0], -1),)

    with pytest.raises(CompileError, match=r"log_softmax.int \(at test_without_compiler.py:\d+\): .*partitioner_"):
        compiled(program_of(Logs()), tmp_path)


def test_the_licence_is_named_before_anything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing means accepting it."""
    monkeypatch.setattr(vollo, "find_spec", lambda name: None)

    reason = Vollo().unavailable()
    assert reason is not None
    assert reason.startswith(
        "vollo_compiler and vollo_torch not installed. pip install 'torchserve-neuron-lstm[vollo]'"
    )
    assert "proprietary EULA; read it first" in reason


@torch.no_grad()
@pytest.mark.usefixtures("fakes")
def test_on_the_vm_where_there_is_no_accelerator(
    program: ExportedProgram, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says it once."""
    module, inputs = InTime(), batch(InTime(), float("nan"))
    compiled(program, tmp_path)
    for _ in range(2):
        ours = Vollo().load(tmp_path, module.state_dict(), {}, 1)(inputs)

    for mine, right in zip((real(ours[0], inputs[1]), *ours[1:]), module.alone(*inputs), strict=True):
        torch.testing.assert_close(mine, right, atol=1e-2, rtol=1e-2)
    assert [record.message for record in caplog.records] == [f"vollo: {Vollo().simulation()}"]
    assert Vollo().estimate_us(tmp_path) == ESTIMATE_US * len(list(tmp_path.rglob("program.vollo")))


@pytest.mark.ci
@torch.no_grad()
def test_on_accelerators_where_there_are_enough(tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs = Answers(), batch(Answers())
    compiled(program_of(module), tmp_path)
    needed = len(list(tmp_path.rglob("program.vollo")))
    fake_vollo.install_runtime(monkeypatch, fakes, needed)
    run = Vollo().load(tmp_path, module.state_dict(), {}, 1)

    assert Vollo().simulation() is None
    for mine, right in zip(run(inputs)[1:], module.alone(*inputs)[1:], strict=True):
        torch.testing.assert_close(mine, right, atol=2e-2, rtol=2e-2)
    with pytest.raises(LoadError, match=f"this host has only {needed} accelerators .*package fewer buckets"):
        Vollo().load(tmp_path, module.state_dict(), {}, 1)


@pytest.mark.usefixtures("fakes")
def test_other_weights_are_refused(program: ExportedProgram, tmp_path: Path) -> None:
    """The weights are embedded in the device's programs, which have a digest of them."""
    state = InTime().state_dict()
    state["linear.bias"] = state["linear.bias"] + 1
    with pytest.raises(LoadError, match=r"embedded in Vollo.s programs: package the model again"):
        Vollo().load(compiled(program, tmp_path), state, {}, 1)


@pytest.mark.usefixtures("fakes")
def test_another_release_of_the_compiler_is_refused(
    program: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its VM may read programs differently."""
    compiled(program, tmp_path)
    monkeypatch.setattr(vollo, "version", lambda name: "30.0.0")
    with pytest.raises(LoadError, match=r"compiled by vollo-compiler 29\.0\.0, and the VM here is of 30\.0\.0"):
        Vollo().load(tmp_path, InTime().state_dict(), {}, 1)


@pytest.mark.ci
@pytest.mark.usefixtures("fakes")
def test_a_damaged_file_is_named(program: ExportedProgram, tmp_path: Path) -> None:
    compiled(program, tmp_path)
    next(tmp_path.rglob("vollo.json")).write_text("[", encoding="utf-8")
    with pytest.raises(LoadError, match=r"vollo.json cannot be read .*package the model again"):
        Vollo().load(tmp_path, InTime().state_dict(), {}, 1)
