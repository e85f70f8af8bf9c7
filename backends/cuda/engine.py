"""CUDA engine: one program as source, and a CUDA graph of it for each bucket.

An archive is packaged without a GPU: graphs exist in memory only, and are captured when the archive is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import torch

from ...bucketing.shapes import Bucket
from ...config.json_codec import write_json
from ..cores import set_torch_threads
from ..interface import (
    DEFAULTS,
    Backend,
    CompileSettings,
    Key,
    LoadedProgram,
    LoadError,
    Precision,
    Rehearsal,
    Requirement,
    Weights,
)
from ..module_program import ModuleProgram
from ..program_source.read import FILE_NAME, load_source, read_source
from ..signature import read_program_file, read_signature, signature_of, write_signature
from ..versions import LOWEST_TORCH_REQUIREMENT, emulation_enabled
from .graph_program import GraphProgram, Module, WarmShape
from .kernels.interface import KernelError, RecurrenceKernel
from .recurrences import DerivedWeights, DeviceRecurrences, Flatten
from .torch_device import OutOfMemory, TorchDevice, gpu_index, gpu_missing, gpu_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_LOG = logging.getLogger(__name__)

_FACTS = "cuda.json"


@dataclass(frozen=True)
class _Facts:
    precision: str


class Cuda(Backend):
    """One program for every bucket, captured in the shapes of the grid."""

    name = "cuda"
    polymorphic = True
    shares_device = True
    precisions: tuple[Precision, ...] = ("float32", "bfloat16", "float16")

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch, of any release that has the operators of the programs."""
        return (LOWEST_TORCH_REQUIREMENT,)

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return why a call cannot be part of a CUDA graph; None if it can."""
        from .capturable import capture_refusal

        return capture_refusal(node)

    def simulation(self) -> str | None:
        """Return why the programs run on this CPU; None if they do not."""
        missing = gpu_missing() if emulation_enabled() else None
        if missing is None:
            return None
        return (
            f"emulated by torch on this CPU ({missing}): the outputs are the model's, the times are not a GPU's, and "
            f"no graph was captured"
        )

    def device_missing(self) -> str | None:
        """Return why this process has no NVIDIA GPU; None if it has one."""
        return gpu_missing()

    def device_name(self, device: str | None) -> str | None:
        """Return the name of the GPU that `device` names, or of the first; None if there is none."""
        return gpu_name(device)

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the program's source."""
        from ..program_source.write import program_source
        from .capturable import check_capturable, place_factories

        check_capturable(program.graph_module)
        place_factories(program.graph_module)
        write_signature(signature_of(program, None), directory)
        write_json(_Facts, _Facts(settings.precision), directory / _FACTS)
        (directory / FILE_NAME).write_text(program_source(program), encoding="utf-8")

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load one program onto the first GPU; its graphs are captured when their shapes are first seen."""
        set_torch_threads(threads)
        return self.load_together({"sequence": directory}, weights, None)["sequence"]

    def load_together(
        self,
        programs: Mapping[Key, Path],
        weights: Weights,
        device: str | None,
        rehearsals: Sequence[Rehearsal[Key]] = (),
    ) -> Mapping[Key, LoadedProgram]:
        """Move the weights to the GPU once, and capture the programs as the rehearsals call them.

        Without a GPU, if emulation is enabled, the same source runs on the CPU.

        Raises `LoadError`: there is no such GPU, or its memory does not suffice; the message says for what.
        Or this torch lacks an operator, or the weights do not match.
        """
        if self.simulation() is not None:
            return {key: _on_cpu(directory, weights) for key, directory in programs.items()}
        if (missing := gpu_missing()) is not None:
            raise LoadError(f"the programs run on an NVIDIA GPU: {missing}. Or package the model with another backend")
        found = TorchDevice(gpu_index(device, torch.cuda.device_count()))
        return load_on_device(found, programs, weights, rehearsals)


def load_on_device(
    device: TorchDevice, programs: Mapping[Key, Path], weights: Weights, rehearsals: Sequence[Rehearsal[Key]] = ()
) -> Mapping[Key, LoadedProgram]:
    """Load programs onto a device, and capture them as the rehearsals call them.

    Raises `LoadError`: as `Cuda.load_together`.
    """
    if device.kernel is not None:
        try:
            return _load(device, programs, weights, rehearsals, device.kernel)
        except KernelError as error:
            reason = str(error)  # the error itself would keep the memory of this attempt
        _LOG.warning("recurrent layers run in cuDNN, because the kernel of neuron_lstm failed: %s", reason)
    return _load(device, programs, weights, rehearsals, None)


def _load(
    device: TorchDevice,
    programs: Mapping[Key, Path],
    weights: Weights,
    rehearsals: Sequence[Rehearsal[Key]],
    kernel: RecurrenceKernel | None,
) -> Mapping[Key, LoadedProgram]:
    signatures = {key: read_signature(directory) for key, directory in programs.items()}
    wanted = {name: tensor for one in signatures.values() for name, tensor in one.pick_weights(weights).items()}
    try:
        with device.current():
            uploaded = {name: device.upload(tensor) for name, tensor in wanted.items()}
    except OutOfMemory as error:
        raise LoadError(f"the weights do not fit into the memory of {device.name}: {error}") from error
    turn, derived = Lock(), DerivedWeights(uploaded.values())
    loaded = {}
    for key, directory in programs.items():
        own = signatures[key].pick_weights(uploaded)
        module = _module(directory, own, derived, device.flatten, kernel, device.torch_device)
        loaded[key] = GraphProgram(device, signatures[key], module, turn)
    _capture_all(device, loaded, rehearsals)
    return loaded


def _capture_all(device: TorchDevice, loaded: Mapping[Key, GraphProgram], rehearsals: Sequence[Rehearsal[Key]]) -> None:
    """Capture all calls of the rehearsals. The largest bucket comes first, so that its memory serves all others.

    All run before the first is captured: the memory of graphs is theirs, so a run beside them would need memory twice.
    """
    with device.current():
        free = device.free_bytes()
    failing: list[Bucket] = []
    warm: list[tuple[Bucket, list[tuple[GraphProgram, WarmShape]]]] = []
    for rehearsal in sorted(rehearsals, key=lambda one: one.bucket.batch * one.bucket.length, reverse=True):
        try:
            warm.append((rehearsal.bucket, _rehearse(rehearsal, loaded)))
        except OutOfMemory:  # noqa: PERF203 - a run takes far longer
            failing.append(rehearsal.bucket)
    for bucket, called in warm:
        try:
            for program, shape in called:
                program.capture(shape)
        except OutOfMemory:  # noqa: PERF203 - so does a capture
            failing.append(bucket)
    if failing:
        named = ", ".join(f"{bucket.batch} x {bucket.length}" for bucket in dict.fromkeys(failing))
        raise LoadError(
            f"the graphs of these buckets do not fit into the memory of {device.name} ({free >> 20} MiB free after "
            f"loading the weights): {named}. Serve smaller buckets; or leave more memory free: fewer workers on this "
            f"GPU, no other process on it"
        )


def _rehearse(rehearsal: Rehearsal[Key], loaded: Mapping[Key, GraphProgram]) -> list[tuple[GraphProgram, WarmShape]]:
    called: list[tuple[GraphProgram, WarmShape]] = []

    def noted(program: GraphProgram) -> LoadedProgram:
        def call(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            shape, outputs = program.warm_up(inputs)
            called.append((program, shape))
            return outputs

        return call

    rehearsal.run({key: noted(program) for key, program in loaded.items()})
    return called


def _on_cpu(directory: Path, weights: Weights) -> LoadedProgram:
    signature = read_signature(directory)
    own = signature.pick_weights(weights)
    derived = DerivedWeights(own.values())
    module = _module(directory, own, derived, lambda cell, weights: weights, None, torch.device("cpu"))
    return ModuleProgram(signature, module, own.values())


def _module(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    derived: DerivedWeights,
    flatten: Flatten,
    kernel: RecurrenceKernel | None,
    device: torch.device,
) -> Module:
    source = placed_source(read_source(directory), device)
    precision = read_program_file(_Facts, directory / _FACTS).precision
    operators = DeviceRecurrences(derived, flatten, kernel, getattr(torch, precision))
    return load_source(source, tensors, {"lstm": operators.lstm, "rnn": operators.rnn}, directory / FILE_NAME)


def placed_source(source: str, device: torch.device) -> str:
    """Return a program's source with its tensors on a device.

    >>> placed_source("torch.ops.aten.arange.default(4, device=torch.device('cpu'))", torch.device("cuda", 1))
    "torch.ops.aten.arange.default(4, device=torch.device('cuda:1'))"
    """
    return source.replace("torch.device('cpu')", f"torch.device({str(device)!r})")
