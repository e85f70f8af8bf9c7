"""Vollo engine: LSTMs on Myrtle.ai's FPGA accelerators, or on the compiler's bit-accurate VM.

The device computes in bfloat16. It runs the segments of a program that `rewrite.py` made for it; masks and gathers by
length, ids and embeddings run on the CPU. The weights are embedded in the device's programs in its own format, so each
program has their digest and cannot be refitted.

The software has a proprietary licence, and only users install it: docs/vollo.md.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ...bucketing.shapes import Bucket
from ...config.json_codec import write_json
from ..eager import Eager
from ..interface import (
    DEFAULTS,
    Backend,
    CompileError,
    CompilerOption,
    CompileSettings,
    LoadedProgram,
    LoadError,
    Precision,
    Requirement,
    Weights,
)
from ..module_program import ModuleProgram
from ..partitioning.partitioned_program import load_compiled
from ..signature import read_program_file, read_signature, signature_of, write_signature
from ..versions import torch_requirement
from . import operators as _operators  # noqa: F401  registers the operators of the programs on the CPU

INSTALL_HINT = (
    "pip install 'torchserve-neuron-lstm[vollo]' installs software under Myrtle.ai's proprietary EULA; read it first "
    "(docs/vollo.md says where it is)"
)

_PROGRAM = "program.vollo"
_FACTS = "vollo.json"

_log = logging.getLogger(__name__)
_accelerators = count()
"""Index of the next accelerator that this process does not use yet: each holds one program."""


class Vollo(Backend):
    """Engine with one program for each bucket, over whole sequences."""

    name = "vollo"
    precisions: tuple[Precision, ...] = ("bfloat16",)
    options: tuple[CompilerOption, ...] = ("compiler_args",)
    inlines_weights = True
    whole_sequences = "Vollo's LSTMs have no initial state as an input, so they run over whole sequences"

    def unavailable(self) -> str | None:
        """Return the missing packages of the compiler, and its licence; None if all are installed."""
        missing = [name for name in ("vollo_compiler", "vollo_torch") if find_spec(name) is None]
        return f"{' and '.join(missing)} not installed. {INSTALL_HINT}" if missing else None

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch. The accelerator and the VM are checked when a program is loaded."""
        return (torch_requirement(),)

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the device's programs and the segments of the CPU."""
        from ...config.partitioner import PartitionerBlock
        from ..exported_program import specialize
        from ..partitioning.backend import PartitionedBackend
        from .compiler import accelerator_config
        from .rewrite import reject_operators, reject_recurrences, rewrite_program

        assert bucket is not None  # it is not polymorphic
        if settings.precision != "bfloat16":
            raise CompileError(
                f"Vollo computes in bfloat16, not in {settings.precision}: write precision: bfloat16 if that suffices"
            )
        accelerator_config(settings.args)
        reject_recurrences(program)
        fixed = rewrite_program(specialize(program, bucket))
        reject_operators(fixed, program)
        config = PartitionerBlock(model_support_percentage_threshold=0)
        try:
            PartitionedBackend(_Device(), config).compile(fixed, bucket, directory, settings)
        except CompileError as error:
            # Without the advice on ops_to_partition: users cannot name the operators of a rewritten program.
            raise error.__cause__ if isinstance(error.__cause__, CompileError) else error from None

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load the programs onto accelerators, or onto the VM if there is none."""
        return load_compiled(_Device().load, directory, weights, host, threads)

    def estimate_us(self, directory: Path) -> float | None:
        """Return the compiler's estimate of the device's compute time of one call, in microseconds."""
        return sum(read_program_file(_Facts, path).estimate_us for path in sorted(directory.rglob(_FACTS))) or None

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return why an operator can run neither on the device nor on the CPU beside it; None if it can."""
        from .rewrite import operator_refusal, recurrence_refusal

        return recurrence_refusal(node) or operator_refusal(node)

    def simulation(self) -> str | None:
        """Return what emulates the accelerator on this host, and why; None if there is an accelerator."""
        reason = no_accelerator_reason()
        if reason is None:
            return None
        return f"emulated by the VM of vollo-compiler, bit for bit but slowly: {reason}"


class _Device(Vollo):
    """The same engine, of the device segments of a rewritten program, as `PartitionedBackend` compiles them."""

    def refusal(self, node: torch.fx.Node) -> str | None:
        from .translate import refusal

        return refusal(node)

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the device's program, or one for the CPU if the segment only moves data."""
        from ..exported_tensors import weights_of
        from .compiler import accelerator_config, build_program
        from .translate import does_arithmetic, to_vollo_module

        if not does_arithmetic(program):
            Eager().compile(program, None, directory)
            return
        signature = signature_of(program, None)
        inputs = [torch.zeros([int(size) for size in kind.shape]) for kind in signature.inputs.values()]
        config = accelerator_config(settings.args)
        built = build_program(to_vollo_module(program), inputs, config)
        write_signature(signature, directory)
        (directory / _PROGRAM).write_bytes(built.save_bytes())
        estimate_us = float(built.compute_duration_per_inference_us())
        facts = _Facts(config, version("vollo-compiler"), estimate_us, _digest(weights_of(program)))
        write_json(_Facts, facts, directory / _FACTS)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load a program that `compile` wrote."""
        if not (directory / _PROGRAM).is_file():
            return Eager().load(directory, weights, host, threads)
        signature, facts = read_signature(directory), read_program_file(_Facts, directory / _FACTS)
        if _digest(signature.pick_weights(weights)) != facts.weights:
            raise LoadError(
                "the weights are not those that are embedded in Vollo's programs: package the model again with the new "
                "weights"
            )
        call = _on_vm(directory, facts) if no_accelerator_reason() else VolloContext(str(directory / _PROGRAM)).call
        return ModuleProgram(signature, lambda *inputs: call([tensor.detach() for tensor in inputs]))


@dataclass(frozen=True)
class _Facts:
    config: str
    compiler: str
    """Release of vollo-compiler."""
    estimate_us: float
    """The compiler's: compute time of one inference in microseconds, without data transfers."""
    weights: str
    """Digest of the embedded weights."""


def _digest(weights: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


VolloCall = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""Call of a program on the device or the VM; inputs and outputs are float32."""


@cache
def no_accelerator_reason() -> str | None:
    """Return why there is no usable accelerator here; None if there is one."""
    if find_spec("vollo_rt") is None:
        return "Vollo's runtime (vollo_rt) is not installed"
    import vollo_rt

    try:
        with vollo_rt.VolloRTContext() as context:
            context.add_accelerator(0)
    except Exception as error:  # noqa: BLE001 - any exception of the runtime is the reason
        return f"there is no Vollo accelerator here ({error})"
    return None


@cache
def _warn_once() -> None:
    _log.warning("vollo: %s", Vollo().simulation())


def _on_vm(directory: Path, facts: _Facts) -> VolloCall:
    try:
        here = version("vollo-compiler")
    except PackageNotFoundError as error:
        raise LoadError(f"{no_accelerator_reason()}, nor is the compiler with its VM: {INSTALL_HINT}") from error
    if here != facts.compiler:
        raise LoadError(
            f"the program was compiled by vollo-compiler {facts.compiler}, and the VM here is of {here}: "
            f"install that release, or package the model again"
        )
    from vollo_compiler import Program

    _warn_once()
    return call_of_vm(Program.load_bytes((directory / _PROGRAM).read_bytes()))


def call_of_vm(program: Any) -> VolloCall:
    """Return the call of a `vollo_compiler.Program` on the compiler's VM."""
    vm = program.to_vm()

    def call(inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        outputs = vm.run([tensor.numpy() for tensor in inputs])
        return [torch.from_numpy(one) for one in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return call


class VolloContext:
    """A program on its own accelerator while the object exists. Not run on hardware by this project."""

    def __init__(self, program: Any) -> None:
        """Load `program`, a `vollo_compiler.Program` or the path of one, onto the next accelerator.

        Raises `LoadError`: there is no further accelerator.
        """
        import vollo_rt

        index = next(_accelerators)
        self._stack = ExitStack()
        self._context = self._stack.enter_context(vollo_rt.VolloRTContext())
        try:
            self._context.add_accelerator(index)
        except Exception as error:
            raise LoadError(
                f"an accelerator holds one program at a time, and this host has only {index} accelerators "
                f"({error}): package fewer buckets"
            ) from error
        self._context.load_program(program)

    def call(self, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run one inference."""
        rounded = [tensor.bfloat16() for tensor in inputs]
        outputs = self._context.run(rounded[0] if len(rounded) == 1 else rounded)
        return [one.float() for one in (outputs if isinstance(outputs, (list, tuple)) else (outputs,))]
