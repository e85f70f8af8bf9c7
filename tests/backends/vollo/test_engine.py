"""Vollo with the real compiler and its VM: skipped unless a user has installed them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recurrent import exported
from torch import nn
from vollo_models import BATCH, TIME, Answers, batch, program_of, real

from torchserve_neuron_lstm.archiver_ext.cli import main
from torchserve_neuron_lstm.backends.interface import CompileError, CompileSettings
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.backends.signature import WrongInput
from torchserve_neuron_lstm.backends.vollo.compiler import accelerator_configs
from torchserve_neuron_lstm.backends.vollo.engine import Vollo
from torchserve_neuron_lstm.backends.vollo.streaming import StreamingProgram
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.inference.reader import ArchiveReader

pytest.importorskip("vollo_compiler", reason="under Myrtle.ai's EULA: docs/vollo.md")
pytest.importorskip("vollo_torch")

CONFIG = "bittware_ia840f_c3b64"
SETTINGS = CompileSettings("bfloat16", args=("--config", CONFIG))
TOLERANCE: dict[str, Any] = {"atol": 1e-2, "rtol": 1e-2}

pytestmark = pytest.mark.xdist_group("vollo")


class Net(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=batch_first)
        self.linear = nn.Linear(256, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm(x)
        answer: torch.Tensor = self.linear(x)
        return answer


class Abstract(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeros = x.new_zeros(2, x.shape[0], 256)
        weights = [getattr(self.lstm, name) for name in self.lstm._flat_weights_names]
        y, _, _ = torch.ops.neuron_lstm.lstm(x, None, zeros, zeros, weights, True, 2, False, False)
        answer: torch.Tensor = self.linear(y)
        return answer


@torch.no_grad()
def test_a_whole_sequence_is_near_and_has_an_estimate(tmp_path: Path) -> None:
    module = Abstract(batch_first=True).eval()
    Vollo().compile(exported(module, torch.randn(3, 7, 128)), Bucket(1, 20), tmp_path, SETTINGS)
    x = torch.randn(1, 20, 128)
    run = Vollo().load(tmp_path, module.state_dict(), {}, 1)

    torch.testing.assert_close(run([x])[0], module(x), **TOLERANCE)
    torch.testing.assert_close(run([x])[0], module(x), **TOLERANCE)  # no state remains from the call before
    assert len(list(tmp_path.rglob("program.vollo"))) == 1
    assert Vollo().estimate_us(tmp_path) == pytest.approx(6.9, abs=0.1)


@torch.no_grad()
def test_a_stream_step_by_step_keeps_its_state_until_it_restarts(tmp_path: Path) -> None:
    module, x = Net(batch_first=False).eval(), torch.randn(20, 128)
    StreamingProgram.compile(module, x, "ia_840f_c3b64").save(tmp_path)
    program = StreamingProgram.load(tmp_path)
    for _ in range(2):
        answers = torch.stack([program.step(step) for step in x])
        program.restart()

        torch.testing.assert_close(answers, module(x), **TOLERANCE)
    assert program.estimate_us == pytest.approx(0.7, abs=0.1)
    assert program.simulation is not None
    with pytest.raises(WrongInput, match=r"a timestep is float32 \[1, 128\], but .* float32 \[128\]"):
        program.step(x[:1])


@torch.no_grad()
@pytest.mark.parametrize(
    "module",
    [Answers(2), Answers(2, both=True), Answers(2, cells=True), Answers(given=True)],
    ids=["two layers", "both directions", "cells", "given states"],
)
def test_ragged_rows_are_near_whatever_the_padding_holds(module: Answers, tmp_path: Path) -> None:
    Vollo().compile(program_of(module), Bucket(BATCH, TIME), tmp_path, SETTINGS)
    run = Vollo().load(tmp_path, module.state_dict(), {}, 1)
    for garbage in (0.0, 1e4, float("nan")):
        inputs = batch(module, garbage)
        ours = run(inputs)

        for mine, right in zip((real(ours[0], inputs[1]), *ours[1:]), module.alone(*inputs), strict=True):
            torch.testing.assert_close(mine, right, **TOLERANCE)


def test_what_does_not_fit_the_accelerator_is_refused(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4096, 4096)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.linear(x)
            return answer

    program = torch.export.export(Wide(), (torch.randn(1, 4096),), strict=False)
    with pytest.raises(CompileError, match=f"the program does not fit {CONFIG}: "):
        Vollo().compile(program, Bucket(1, 1), tmp_path, SETTINGS)


def test_every_accelerator_goes_by_its_name_of_now() -> None:
    """The compiler's own list, without former names, at which it warns."""
    names = accelerator_configs()

    assert CONFIG in names
    assert "ia_840f_c3b64" not in names
    assert not {"load", "save", "ip_core"} & set(names)


MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 8, batch_first=True)
    def forward(self, x):
        return self.lstm(x)[0]
"""

YAML = """
neuron_lstm:
  inputs:
    x: {dtype: float32, shape: [batch, time, 4]}
  buckets: {batch: [1, 2], length: [1, 3]}
  backend: vollo
  precision: bfloat16
  compiler_args: [--config, ia_840f_c3b64]
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("streaming", ["", "  streaming: {}\n"])
def test_an_archive_tells_estimates_of_every_bucket(
    streaming: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL, encoding="utf-8")
    Path("model-config.yaml").write_text(YAML + streaming, encoding="utf-8")
    torch.save({f"lstm.{name}": weight for name, weight in nn.LSTM(4, 8).state_dict().items()}, "weights.pt")
    flags = "--model-name m --version 1 --model-file model.py --serialized-file weights.pt --handler neuron_lstm"
    assert main(["archive", *flags.split(), "--config-file", "model-config.yaml"]) == 0
    packaged = capfd.readouterr()
    assert main(["inspect", "m.mar"]) == 0
    inspected = capfd.readouterr().out

    manifest = json.loads(ArchiveReader(Path("m.mar")).manifest_json())
    assert manifest["kind"] == ("chunk" if streaming else "sequence")
    assert len(manifest["variants"]) == 4
    assert all(0.1 < variant["estimate_us"] < 10 for variant in manifest["variants"])
    assert all(check["max_error"] < 1e-2 for check in manifest["checks"])
    for told in (packaged.out + packaged.err, inspected):
        assert "estimate" in told
    assert "emulated by the VM" in packaged.out + packaged.err


def test_it_is_found_by_its_name() -> None:
    assert isinstance(get_backend("vollo"), Vollo)
