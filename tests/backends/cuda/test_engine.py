"""The engine for NVIDIA GPUs is exact, on a double that holds captures to the rules of CUDA graphs."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from graph_device import GraphDevice
from graph_programs import BUCKETS, captured_model, compiled, rehearsals
from recurrent import BATCH, CASES, GARBAGE, Case, Recurrent, exported, largest_error, ragged_batch
from torch import nn
from torch_kernel import TorchKernel

from torchserve_neuron_lstm.backends import masked, versions
from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device, placed_source
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import LoadError


@pytest.mark.ci
@pytest.mark.few(7)
@pytest.mark.parametrize("own_kernel", [True, False], ids=["own kernel", "layers of the device"])
@pytest.mark.parametrize("case", CASES, ids=str)
@torch.no_grad()
def test_equals_every_row_alone_whatever_the_padding_holds(case: Case, own_kernel: bool, tmp_path: Path) -> None:
    kernel = TorchKernel()
    module, device = Recurrent(case).eval(), GraphDevice(kernel=kernel if own_kernel else None)
    run = captured_model(module, tmp_path, device)
    captured = len(device.captured)

    for bucket in BUCKETS:
        for garbage in GARBAGE if case.ragged else (0.0,):
            x, lengths = ragged_batch(garbage, *bucket)
            assert largest_error(run([x, lengths]), module.alone(x, lengths)) <= 1e-5
    assert len(device.captured) == captured == len(BUCKETS)
    assert {*kernel.cells} == ({case.cell} if own_kernel and not case.projected else set())


@torch.no_grad()
def test_states_reach_layers_in_the_form_that_cudnn_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, (x, lengths), state = masked.aten_layer("lstm"), ragged_batch(0.0), torch.randn(BATCH, 2, 6)
    module = BatchFirstState().eval()
    program, expected = exported(module, x, lengths, state), list(module(x, lengths, state))

    def picky(
        x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        assert all(state.is_contiguous() for state in states), "rnn: hx is not contiguous"
        return plain(x, states, weights)

    monkeypatch.setattr(masked, "aten_layer", lambda cell: picky)
    directory = compiled(program, tmp_path / "program")
    run = load_on_device(GraphDevice(), {"chunk": directory}, weights_of(program))["chunk"]

    assert largest_error(run([x, lengths, state]), expected) <= 1e-5


class BatchFirstState(nn.Module):
    """Layers whose h[B, L, H] is carried batch first, and whose c is one learned row for all."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(5, 6, 2, batch_first=True)
        self.c_0 = nn.Parameter(torch.randn(2, 1, 6))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states = h.transpose(0, 1), self.c_0.expand(-1, x.shape[0], -1)
        weights = list(self.core._flat_weights)
        y, h_n, c_n = torch.ops.neuron_lstm.lstm(x, lengths, *states, weights, True, 2, False, True)
        return y, c_n, h_n.transpose(0, 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core = Recurrent(Case("gru", bidirectional=True))
        self.score = nn.Linear(12, 1)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, _ = self.core(x, lengths)
        padding = torch.arange(x.shape[1])[None, :] >= lengths[:, None]
        share = self.score(y).squeeze(2).masked_fill(padding, float("-inf")).softmax(1)
        return (share[:, :, None] * y).sum(1), y.masked_fill(padding[:, :, None], float("-inf")).amax(1)


@torch.no_grad()
def test_attention_and_pooling_around_a_recurrence_are_exact(tmp_path: Path) -> None:
    """Masks are made on the device."""
    module = Attention().eval()
    run = captured_model(module, tmp_path)
    inputs = ragged_batch(0.0)

    assert largest_error(run(inputs), list(module(*inputs))) <= 1e-5


@torch.no_grad()
def test_without_a_gpu_the_source_runs_on_the_cpu_while_packaging_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packaging verifies it so; a host refuses to serve, and says why."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    module = Recurrent(CASES[0]).eval()
    program = exported(module, *ragged_batch(0.0))
    directory, weights = compiled(program, tmp_path / "program"), weights_of(program)
    inputs = ragged_batch(1.0)
    with versions.enable_emulation():
        run = Cuda().load(directory, weights, {}, 1)
        assert "emulated by torch on this CPU" in str(Cuda().simulation())
        assert largest_error(run(inputs), module.alone(*inputs)) <= 1e-5
    with pytest.raises(LoadError, match=r"run on an NVIDIA GPU.*another backend"):
        Cuda().load(directory, weights, {}, 1)


class Making(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[1], device="cpu").to("cpu")
        return x + torch.ones(5) + steps[None, :, None] + torch.full((5,), 2, dtype=torch.int64)


def test_tensors_that_a_program_makes_are_made_on_the_gpu(tmp_path: Path) -> None:
    directory = compiled(exported(Making(), *ragged_batch(0.0)), tmp_path / "program")
    source = placed_source((directory / "program.py").read_text("utf-8"), torch.device("cuda", 1))
    made = [
        line for line in source.splitlines() if any(f"= aten_{name}" in line for name in ("arange", "ones", "full"))
    ]

    assert len([line for line in made if "torch.device('cuda:1')" in line]) == 3
    assert "'cpu'" not in source


class TwoWidths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = Recurrent(Case()), Recurrent(Case("gru"), hidden=8)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*self.narrow(x, lengths), *self.wide(x, lengths))


@torch.no_grad()
def test_a_layer_that_the_kernel_does_not_compute_is_left_to_the_device(tmp_path: Path) -> None:
    module, kernel = TwoWidths().eval(), TorchKernel(widest=6)
    run = captured_model(module, tmp_path, GraphDevice(kernel=kernel))
    x, lengths = ragged_batch(0.0)

    assert largest_error(run([x, lengths]), list(module(x, lengths))) <= 1e-5
    assert {*kernel.cells} == {"lstm"}


@torch.no_grad()
def test_a_kernel_that_fails_leaves_the_layers_to_the_device(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = Recurrent(Case(layers=2)).eval()
    run = captured_model(module, tmp_path, GraphDevice(kernel=TorchKernel(broken=True)))
    x, lengths = ragged_batch(0.0)

    assert largest_error(run([x, lengths]), module.alone(x, lengths)) <= 1e-5
    assert "recurrent layers run in cuDNN" in caplog.text
    assert "CUDA_ERROR_INVALID_CLUSTER_SIZE" in caplog.text


@pytest.mark.ci
@torch.no_grad()
def test_programs_share_the_weights_that_the_kernel_reads(tmp_path: Path) -> None:
    module, kernel = Recurrent(Case(layers=2, bidirectional=True)).eval(), TorchKernel()
    program = exported(module, *ragged_batch(0.0))
    directories = {key: compiled(program, tmp_path / key) for key in ("one", "other")}
    load_on_device(GraphDevice(kernel=kernel), directories, weights_of(program), rehearsals("one", "other"))

    assert len(kernel.weights) == 2
    assert len(kernel.cells) > 2 * len(BUCKETS)


@pytest.mark.few(3)
@pytest.mark.parametrize(("precision", "error"), [("bfloat16", 3e-2), ("float16", 4e-3)])
@pytest.mark.parametrize("case", [Case(layers=2), Case(projected=True, bidirectional=True), Case("gru")], ids=str)
@torch.no_grad()
def test_a_lower_precision_computes_recurrences_in_it(case: Case, precision: str, error: float, tmp_path: Path) -> None:
    module = Recurrent(case).eval()
    run = captured_model(module, tmp_path, precision=precision)
    for garbage in GARBAGE:
        x, lengths = ragged_batch(garbage)
        outputs = run([x, lengths])

        assert {output.dtype for output in outputs} == {torch.float32}
        assert 1e-6 < largest_error(outputs, module.alone(x, lengths)) < error


@torch.no_grad()
def test_packaging_computes_in_the_precision_that_the_gpu_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    module, inputs = Recurrent(Case(layers=2)).eval(), ragged_batch(0.0)
    program, errors = exported(module, *inputs), {}
    for precision in Cuda.precisions:
        directory = compiled(program, tmp_path / precision, precision=precision)
        with versions.enable_emulation():
            run = Cuda().load(directory, weights_of(program), {}, 1)
        errors[precision] = largest_error(run(inputs), module.alone(*inputs))

    assert errors["float32"] < 1e-6 < errors["float16"] < errors["bfloat16"]
