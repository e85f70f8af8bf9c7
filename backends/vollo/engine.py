"""Vollo: LSTMs on Myrtle.ai's FPGA accelerators, or on the compiler's bit-accurate VM where there is none.

The device computes in bfloat16. It gets what `vollo_program.py` leaves in one piece of a program; masks and gathers by
length, ids and embeddings run on the CPU around that. The weights are inside the device's programs, in its own format,
so each program knows them by a digest, and no others can be put in their place.

The software is under a proprietary licence and is not installed by anything but its user: docs/vollo.md.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...bucketing.shapes import Bucket
from ..eager import Eager
from ..interface import (
    DEFAULTS,
    CompileError,
    CompilerOption,
    CompileSettings,
    LoadedProgram,
    LoadError,
    Precision,
    Requirement,
    Weights,
)
from ..partitioning.partitioned_program import load_compiled
from ..signature import Signature, read_signature, signature_of, weights_of, write_signature
from . import operators as _operators  # noqa: F401  the programs beside the device's call them

if TYPE_CHECKING:
    from .compiler import VolloBuild

INSTALL_HINT = (
    "pip install 'torchserve-neuron-lstm[vollo]' installs software under Myrtle.ai's proprietary EULA; read it first "
    "(docs/vollo.md says where it is)"
)

_PROGRAM = "program.vollo"
_FACTS = "vollo.json"

_log = logging.getLogger(__name__)
_accelerators = count()
"""The next one that no program of this process is on: each holds one program."""


class Vollo:
    """One program for each bucket, over whole sequences."""

    name = "vollo"
    polymorphic = False
    any_shape = False
    precisions: tuple[Precision, ...] = ("bfloat16",)
    options: tuple[CompilerOption, ...] = ("compiler_args",)
    inlines_weights = True
    whole_sequences = "Vollo's LSTMs cannot be handed a state, so they run over whole sequences"

    def unavailable(self) -> str | None:
        """What is missing of the compiler, and under which terms it comes."""
        missing = [name for name in ("vollo_compiler", "vollo_torch") if find_spec(name) is None]
        return f"{' and '.join(missing)} not installed. {INSTALL_HINT}" if missing else None

    def requirements(self) -> tuple[Requirement, ...]:
        """Torch. Whether the accelerator or the VM is there is found out while loading."""
        return Eager().requirements()

    def host(self) -> Mapping[str, str]:
        """Any machine."""
        return {}

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Write the device's programs, and beside them what runs on the CPU.

        Raises:
            CompileError: no bucket or no accelerator is named, the program has an operator that Vollo cannot take, or
                does not fit the accelerator.
        """
        from ...config.partitioner import PartitionerConfig
        from ..partitioning.backend import PartitionedBackend
        from ..partitioning.partition import at_sizes
        from .compiler import accelerator_config
        from .rewrite import reject_operators, reject_recurrences, rewrite_program

        if bucket is None:
            raise CompileError("Vollo compiles for one bucket at a time")
        if settings.precision != "bfloat16":
            raise CompileError(
                f"Vollo computes in bfloat16, not in {settings.precision}: write precision: bfloat16 if that will do"
            )
        accelerator_config(settings.args)
        reject_recurrences(program)
        fixed = rewrite_program(at_sizes(program, bucket))
        reject_operators(fixed, program)
        config = PartitionerConfig(model_support_percentage_threshold=0)
        try:
            PartitionedBackend(_Device(), config).compile(fixed, bucket, directory, settings)
        except CompileError as error:
            # Without the advice for operators that the user can leave to the CPU: these are ours.
            raise error.__cause__ if isinstance(error.__cause__, CompileError) else error from None

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Put the programs on accelerators, or on the VM where there is none.

        Raises:
            LoadError: there is neither, there are fewer accelerators than programs, or the weights are others.
        """
        return load_compiled(_Device(), directory, weights, host, threads)

    def estimate_us(self, directory: Path) -> float | None:
        """Microseconds that the device computes for one call, by the compiler's own count."""
        return sum(_facts(path)["estimate_us"] for path in sorted(directory.rglob(_FACTS))) or None

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Why it can take an operator of an exported program neither on the device nor on the CPU beside it."""
        from .rewrite import operator_refusal, recurrence_refusal

        return recurrence_refusal(node) or operator_refusal(node)

    def simulation(self) -> str | None:
        """What runs programs on this host in place of an accelerator; None where there is one."""
        problem = no_accelerator_reason()
        if problem is None:
            return None
        return f"simulated by the VM of vollo-compiler, bit for bit but slowly: {problem}"


class _Device:
    """The parts of a rewritten program that can be on the device: as `PartitionedBackend` hands them over."""

    name = Vollo.name
    polymorphic = False
    any_shape = False
    precisions = Vollo.precisions
    options = Vollo.options

    def unavailable(self) -> str | None:
        return Vollo().unavailable()

    def requirements(self) -> tuple[Requirement, ...]:
        return Vollo().requirements()

    def host(self) -> Mapping[str, str]:
        return {}

    def refusal(self, node: torch.fx.Node) -> str | None:
        from .translate import refusal

        return refusal(node)

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Write the device's program; what only moves numbers stays on the CPU."""
        from .compiler import accelerator_config, build_program
        from .translate import does_arithmetic, to_vollo_module

        if not does_arithmetic(program):
            Eager().compile(program, None, directory)
            return
        signature = signature_of(program, None)
        inputs = [torch.zeros([int(size) for size in kind.shape]) for kind in signature.inputs.values()]
        config = accelerator_config(settings.args)
        built = build_program(to_vollo_module(program), inputs, config)
        _write(built, config, signature, weights_of(program), directory)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load what `compile` wrote."""
        if not (directory / _PROGRAM).is_file():
            return Eager().load(directory, weights, host, threads)
        signature, facts = read_signature(directory), _facts(directory / _FACTS)
        if _digest(signature.pick_weights(weights)) != facts["weights"]:
            raise LoadError(
                "the weights are not those that Vollo's programs were compiled with, which are inside them: package "
                "the model again"
            )
        call = _on_vm(directory, facts) if no_accelerator_reason() else VolloContext(str(directory / _PROGRAM)).call
        return _run(signature, call)


def _write(
    built: VolloBuild, config: str, signature: Signature, weights: Mapping[str, torch.Tensor], directory: Path
) -> None:
    write_signature(signature, directory)
    (directory / _PROGRAM).write_bytes(built.program.save_bytes())
    facts = {
        "config": config,
        "compiler": version("vollo-compiler"),
        "estimate_us": built.estimate_us,
        "weights": _digest(weights),
    }
    (directory / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _facts(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise LoadError(f"{path} cannot be read ({error}): package the model again") from error


def _digest(weights: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


VolloCall = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""A program on the device or its stand-in: float32 in, float32 out."""


def _run(signature: Signature, call: VolloCall) -> LoadedProgram:
    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        signature.check_inputs(inputs)
        return call([tensor.detach().contiguous() for tensor in inputs])

    return run


@cache
def no_accelerator_reason() -> str | None:
    """Why programs cannot be put on an accelerator here; None where there is one."""
    if find_spec("vollo_rt") is None:
        return "Vollo's runtime (vollo_rt) is not installed"
    import vollo_rt

    try:
        with vollo_rt.VolloRTContext() as context:
            context.add_accelerator(0)
    except Exception as error:  # noqa: BLE001 - whatever the runtime says there is none with
        return f"there is no Vollo accelerator here ({error})"
    return None


@cache
def _tell_once() -> None:
    _log.warning("vollo: %s", Vollo().simulation())


def _on_vm(directory: Path, facts: Mapping[str, Any]) -> VolloCall:
    """The program on the compiler's VM."""
    try:
        here = version("vollo-compiler")
    except PackageNotFoundError as error:
        raise LoadError(f"{no_accelerator_reason()}, nor is the compiler with its VM: {INSTALL_HINT}") from error
    if here != facts["compiler"]:
        raise LoadError(
            f"the program was compiled by vollo-compiler {facts['compiler']}, and the VM here is that of {here}: "
            f"install that release, or package the model again"
        )
    from vollo_compiler import Program

    _tell_once()
    program = Program.load_bytes((directory / _PROGRAM).read_bytes())
    vm = program.to_vm()

    def call(inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        answers = vm.run([tensor.numpy() for tensor in inputs])
        return [torch.from_numpy(one) for one in (answers if isinstance(answers, tuple) else (answers,))]

    return call


class VolloContext:
    """A program on an accelerator of its own, for as long as the object lives. Not run on hardware by us."""

    def __init__(self, program: Any) -> None:
        """Take the next accelerator of the host. `program` is a `vollo_compiler.Program` or the path of its file.

        Raises:
            LoadError: there is no further one.
        """
        import vollo_rt

        index = next(_accelerators)
        self._stack = ExitStack()
        self._context = self._stack.enter_context(vollo_rt.VolloRTContext())
        try:
            self._context.add_accelerator(index)
        except Exception as error:
            raise LoadError(
                f"an accelerator holds one program at a time, and this host has {index}, fewer than are needed "
                f"({error}): package fewer buckets"
            ) from error
        self._context.load_program(program)

    def call(self, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """One inference."""
        given = [tensor.bfloat16() for tensor in inputs]
        answers = self._context.run(given[0] if len(given) == 1 else given)
        return [one.float() for one in (answers if isinstance(answers, (list, tuple)) else (answers,))]
