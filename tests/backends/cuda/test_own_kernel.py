from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graph_device import GraphDevice
from graph_programs import BUCKETS, captured_model, compiled, rehearsals
from recurrent import Case, Recurrent, exported, largest_error, ragged_batch
from torch import nn
from torch_kernel import TorchKernel

from torchserve_neuron_lstm.backends.cuda.engine import load_on_device
from torchserve_neuron_lstm.backends.exported_tensors import weights_of


class TwoWidths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = Recurrent(Case()), Recurrent(Case("gru"), hidden=8)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*self.narrow(x, lengths), *self.wide(x, lengths))


@torch.no_grad()
def test_a_layer_that_the_kernel_does_not_compute_is_left_to_the_device(tmp_path: Path) -> None:
    """A narrower one of the same program is not."""
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
