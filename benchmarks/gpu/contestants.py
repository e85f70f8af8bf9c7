"""Contestants on a GPU: from the host and back, and the same with tensors on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchserve_neuron_lstm.backends.cuda.device import Device
from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device
from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileSettings, Precision
from torchserve_neuron_lstm.backends.registry import get_backend

from .cases import Case, Masked, Packed, Padded

Call = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class Contestant:
    """Two ways to call a program."""

    call: Call
    """From the host and back."""
    enqueue: Callable[[], object] | None = None
    """Its work on the current stream, without copies; None: it has none that can be had alone."""


class LaunchedDevice(TorchDevice):
    """A GPU that keeps the launch of the last graph."""

    launch: Callable[[], None]

    def __init__(self, index: int, *, own_kernel: bool = True) -> None:
        """Use cuDNN for all recurrent layers, unless `own_kernel` is set."""
        super().__init__(index, own_kernel=own_kernel)
        self.wants_kernel = own_kernel

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """Record a function."""
        self.launch = super().capture(body)
        return self.launch


class NotRun(RuntimeError):
    """A contestant that is not here, or that would be wrong."""


def engine(case: Case, device: Device, folder: Path, precision: Precision = "float32") -> Contestant:
    """Return the engine `cuda`, with its graph captured.

    Raises:
        NotRun: the device has no kernel of this project, although it was asked for one.
    """
    if isinstance(device, LaunchedDevice) and device.wants_kernel and device.kernel is None:
        raise NotRun("the kernel for recurrent layers cannot run on this GPU")
    inputs, program = case.inputs(), exported(case)
    Cuda().compile(program, None, folder, CompileSettings(precision))
    run = load_on_device(device, {"sequence": folder}, weights_of(program))["sequence"]
    run(inputs)
    return Contestant(lambda: run(inputs), device.launch if isinstance(device, LaunchedDevice) else None)


def native(case: Case, folder: Path) -> Contestant:
    """Return the engine `native` on two cores.

    Raises:
        NotRun: there is no C++ compiler.
    """
    own = get_backend("native")
    if (reason := own.unavailable()) is not None:
        raise NotRun(reason)
    inputs, program = case.inputs(), exported(case)
    own.compile(program, None, folder)
    run = own.load(folder, weights_of(program), own.host(), 2)
    return Contestant(lambda: run(inputs))


def packed(case: Case, device: torch.device) -> Contestant:
    """Return eager mode over packed rows."""
    return _from_host(Packed(case.layer()).to(device), case, device, keep_lengths=True)


def padded(case: Case, device: torch.device) -> Contestant:
    """Return eager mode over padded rows.

    Raises:
        NotRun: it would be wrong.
    """
    return _from_host(_padded(case, device), case, device)


def compiled(case: Case, device: torch.device) -> Contestant:
    """Return the padded model under `torch.compile`, whose own graphs it uses.

    Raises:
        NotRun: it would be wrong.
    """
    model: Any = torch.compile(_padded(case, device), mode="reduce-overhead")
    return _from_host(model, case, device)


def onnxruntime(case: Case, folder: Path) -> Contestant:
    """Return ONNX Runtime's CUDA provider over padded rows.

    Raises:
        NotRun: it is not installed, or it would be wrong.
    """
    try:
        import onnxruntime as engine_package
    except ImportError:
        raise NotRun("onnxruntime is not installed") from None
    if "CUDAExecutionProvider" not in engine_package.get_available_providers():
        raise NotRun("onnxruntime is installed without its CUDA provider")
    x, lengths = case.inputs()
    file = folder / "padded.onnx"
    model = _padded(case, torch.device("cpu"))
    try:
        torch.onnx.export(model, (x, lengths), str(file), input_names=["x", "lengths"], dynamo=False)
    except Exception as error:
        raise NotRun(f"torch cannot export the model here: {type(error).__name__}") from error
    provider = ("CUDAExecutionProvider", {"use_tf32": "0"})
    session = engine_package.InferenceSession(str(file), providers=[provider])
    if session.get_providers()[0] != provider[0]:  # it falls back to the CPU, with a line in the log only
        raise NotRun("onnxruntime cannot load its CUDA provider here")
    feeds = {"x": x.numpy(), "lengths": lengths.numpy()}
    return Contestant(lambda: [torch.from_numpy(value) for value in session.run(None, feeds)])


def exported(case: Case) -> torch.export.ExportedProgram:
    """Return the lowered layers as an exported program of the batch's sizes."""
    with torch.no_grad():
        return torch.export.export(Masked(case.layer()), case.inputs(), strict=False)


def _padded(case: Case, device: torch.device) -> nn.Module:
    if case.bidirectional:
        raise NotRun("wrong: padding comes first in the reverse direction")
    return Padded(case.layer()).to(device)


def _from_host(
    model: Callable[..., Any], case: Case, device: torch.device, *, keep_lengths: bool = False
) -> Contestant:
    x, lengths = case.inputs()
    x_there, lengths_there = x.to(device), lengths if keep_lengths else lengths.to(device)

    @torch.no_grad()
    def call() -> Sequence[Tensor]:
        outputs = model(x.to(device), lengths if keep_lengths else lengths.to(device))
        return [tensor.cpu() for tensor in outputs]

    @torch.no_grad()
    def enqueue() -> None:
        model(x_there, lengths_there)

    return Contestant(call, enqueue)
