"""The kernel of recurrent layers on a real GPU, against the same contract on the CPU.

Without a GPU, each test is skipped as not run.
"""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch_kernel import TorchKernel

from torchserve_neuron_lstm.backends.cuda.kernels import nvrtc_kernel
from torchserve_neuron_lstm.backends.cuda.kernels.interface import GATES, LayerCall
from torchserve_neuron_lstm.backends.cuda.kernels.nvrtc_kernel import WIDEST, Geometry, NvrtcKernel, too_old
from torchserve_neuron_lstm.backends.cuda.torch_device import gpu_missing

_GPU = torch.device("cuda", 0)
_MISSING = gpu_missing() or too_old(_GPU)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_MISSING is not None, reason=f"not run: {_MISSING}")]

SIZES = (1, 6, 16, 20, 32, 33, 64, 100, 130, WIDEST)
"""Hidden units: clusters of 1, 2, 4 and 8 blocks, also with blocks and warps that have no unit."""
SHAPES = ((1, 12, 1), (3, 12, 2), (40, 7, 1), (80, 7, 1), (150, 5, 2))
"""Rows, timesteps and directions."""


def drawn(cell: str, hidden: int, batch: int, time: int, directions: int) -> LayerCall:
    """A call on the CPU, with NaN on its padding, and one row without a timestep if there are several."""
    torch.manual_seed(hidden * batch)
    lengths = torch.randint(1, time + 1, (batch,))
    lengths[-1] = 0 if batch > 1 else time
    gates = torch.randn(batch, time, directions, GATES[cell] * hidden)
    gates[torch.arange(time) >= lengths[:, None]] = float("nan")
    has_cell = cell == "lstm"
    return LayerCall(
        cell,
        gates,
        torch.randn(directions, GATES[cell] * hidden, hidden) / hidden**0.5,
        torch.randn(directions, hidden) if cell == "gru" else None,
        lengths,
        torch.randn(directions, batch, hidden),
        torch.randn(directions, batch, hidden) if has_cell else None,
        torch.zeros(batch, time, directions * hidden),
        torch.full((directions, batch, hidden), 7.0),
        torch.full((directions, batch, hidden), 7.0) if has_cell else None,
    )


def copied(call: LayerCall, device: str) -> LayerCall:
    values: dict[str, Any] = {field.name: getattr(call, field.name) for field in fields(call)}
    moved = {k: v.to(device, copy=True) for k, v in values.items() if isinstance(v, torch.Tensor)}
    return LayerCall(**(values | moved))


def results(call: LayerCall) -> list[torch.Tensor]:
    return [tensor.cpu() for tensor in (call.y, call.h_n, call.c_n) if tensor is not None]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("cell", GATES)
@torch.no_grad()
def test_equals_the_contract_on_the_cpu(cell: str, shape: tuple[int, int, int]) -> None:
    kernel = NvrtcKernel(0)
    for hidden in SIZES:
        assert kernel.computes(hidden)
        call = drawn(cell, hidden, *shape)
        for given in (call, replace(call, lengths=None, gates=call.gates.nan_to_num(0.5))):
            there, here = copied(given, "cuda"), copied(given, "cpu")
            kernel.enqueue(there)
            TorchKernel().enqueue(here)
            for ours, theirs in zip(results(there), results(here), strict=True):
                assert torch.allclose(ours, theirs, atol=3e-6, rtol=3e-6), (hidden, (ours - theirs).abs().max())


def test_the_kernel_runs_on_this_gpu() -> None:
    """Without this test a kernel that fails would leave all others to cuDNN."""
    assert nvrtc_kernel.kernel_missing(_GPU) is None


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize(("hidden", "units", "cluster"), [(7, 8, 1), (16, 8, 2), (20, 8, 4), (31, 8, 4), (70, 10, 8)])
@torch.no_grad()
def test_every_geometry_is_right(
    hidden: int, units: int, cluster: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc_kernel, "geometry", lambda *_: Geometry(units, cluster, rows))
    call = drawn("lstm", hidden, 37, 100, 2)
    there, here = copied(call, "cuda"), copied(call, "cpu")
    NvrtcKernel(0).enqueue(there)
    TorchKernel().enqueue(here)

    for ours, theirs in zip(results(there), results(here), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_row_has_equal_bits_in_any_batch() -> None:
    kernel, call = NvrtcKernel(0), copied(drawn("lstm", 100, 150, 9, 2), "cuda")
    kernel.enqueue(call)
    for row in (0, 77):
        own = slice(row, row + 1)
        alone = copied(drawn("lstm", 100, 1, 9, 2), "cuda")
        assert call.lengths is not None
        assert call.c_0 is not None
        alone = replace(
            alone, gates=call.gates[own].contiguous(), lengths=call.lengths[own], w_hh=call.w_hh,
            h_0=call.h_0[:, own].contiguous(), c_0=call.c_0[:, own].contiguous(),
        )  # fmt: skip
        kernel.enqueue(alone)

        assert torch.equal(alone.y[0], call.y[row])


def test_wider_layers_are_left_to_the_device() -> None:
    """Their weights do not fit into the registers of a cluster."""
    assert not NvrtcKernel(0).computes(WIDEST + 1)
