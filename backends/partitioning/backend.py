"""An engine and the CPU together: a program in segments, and one model from outside.

Packaging divides the program of each bucket and compiles the engine's segments; the others lie beside them as eager has
them. To serve, the values go from one segment to the next by name. All segments read the one copy of the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...bucketing.shapes import Bucket
from ..exported_program import load_weight_stripped, save_weight_stripped
from ..interface import (
    DEFAULTS,
    Backend,
    CompileError,
    CompilerOption,
    CompileSettings,
    Estimating,
    LoadedProgram,
    LoadError,
    Precision,
    Requirement,
    Weights,
)
from ..signature import Signature, read_signature, signature_of, write_signature
from ..weights import copy_if_aliased, storage_ptrs

if TYPE_CHECKING:
    from ...config.partitioner import PartitionerConfig
    from .partition import Segment, Segments

_FILE = "segments.json"
_PROGRAM = "program.pt2"
_MORE = ("whole_sequences", "inlines_weights", "simulation")
"""What some engines say of themselves beside what all do."""


class PartitionedBackend:
    """An engine that leaves operators to the CPU, one program for each bucket."""

    polymorphic = False
    any_shape = False

    def __init__(self, engine: Backend, config: PartitionerConfig | None = None) -> None:
        """`config` says how programs are divided; None for the defaults, and where they are only loaded."""
        self.engine, self.config = engine, config
        self.name = engine.name
        self.precisions: tuple[Precision, ...] = engine.precisions
        self.options: tuple[CompilerOption, ...] = engine.options
        for name in _MORE:
            if hasattr(engine, name):
                setattr(self, name, getattr(engine, name))
        if isinstance(engine, Estimating):
            self.estimate_us = self._estimate_us

    def unavailable(self) -> str | None:
        """Why the engine is."""
        return self.engine.unavailable()

    def requirements(self) -> tuple[Requirement, ...]:
        """What the engine needs. All engines need torch."""
        return self.engine.requirements()

    def host(self) -> Mapping[str, str]:
        """The engine's kind of machine."""
        return self.engine.host()

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Divide the program for one bucket and write every segment into a folder of its own.

        Raises:
            CompileError: no bucket is named, the options of the partitioner cannot be kept, or the engine refuses a
                segment after all.
        """
        from ...config.partitioner import PartitionerConfig
        from .operator_support import unsupported_operators
        from .partition import PartitionError, at_sizes, partition

        if bucket is None:
            raise CompileError("a divided program is compiled for one bucket at a time")
        config = self.config or PartitionerConfig()
        fixed = at_sizes(program, bucket)
        found = unsupported_operators(self.engine, fixed, bucket, config, settings)
        refused = {node.name for node, reason in found.items() if reason is not None}
        try:
            segments = partition(fixed, lambda node: node.name not in refused, config)
        except PartitionError as error:
            raise CompileError(f"partitioner_config.{error}") from error
        write_signature(signature_of(program, bucket), directory)
        (directory / _FILE).write_text(json.dumps(_written(segments)), encoding="utf-8")
        own = _of_segments(settings, config)
        for index, segment in enumerate(segments.segments):
            self._compile(segment, bucket, directory / _folder(index, segment.target), _numbered(own, index))

    def _compile(self, segment: Segment, bucket: Bucket, directory: Path, settings: CompileSettings) -> None:
        directory.mkdir()
        if segment.target == "cpu":
            self._write_for_cpu(segment, bucket, directory)
            return
        try:
            self.engine.compile(segment.program, None if self.engine.polymorphic else bucket, directory, settings)
        except CompileError as error:
            operators = ", ".join(dict.fromkeys(segment.operators))
            raise CompileError(
                f"{error} (a segment of {operators}; name those that are to stay on the CPU in "
                f"partitioner_config.ops_to_partition)"
            ) from error

    def _write_for_cpu(self, segment: Segment, bucket: Bucket, directory: Path) -> None:
        """As this torch exports it, or where another one will serve, in text that every torch reads."""
        if _torch_of(self.engine) == _minor(torch.__version__):
            write_signature(signature_of(segment.program, None), directory)
            save_weight_stripped(segment.program, directory / _PROGRAM)
        else:
            from ..aws_neuron.device import write_artifact
            from ..aws_neuron.source_program import export_source

            write_artifact(directory, export_source(segment.program, bucket), {})

    def _estimate_us(self, directory: Path) -> float | None:
        """Of the engine's segments together; the CPU's cannot be told."""
        assert isinstance(self.engine, Estimating)
        steps = enumerate(_read(directory / _FILE).steps)
        folders = [directory / _folder(index, step.place) for index, step in steps if step.place == "device"]
        estimates = [estimate for folder in folders if (estimate := self.engine.estimate_us(folder)) is not None]
        return sum(estimates) if len(estimates) == len(folders) else None

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load every segment, those of the CPU last: they set the threads that torch has.

        Raises:
            LoadError: a segment cannot be loaded on this host, a file is damaged, or the weights are others.
        """
        signature = read_signature(directory)
        plan = _read(directory / _FILE)
        runs: dict[int, LoadedProgram] = {}
        for index in sorted(range(len(plan.steps)), key=lambda index: plan.steps[index].place == "cpu"):
            place = plan.steps[index].place
            folder = directory / _folder(index, place)
            on_cpu = place == "cpu"
            runs[index] = (
                _on_cpu(folder, weights, threads) if on_cpu else self.engine.load(folder, weights, host, threads)
            )
        return _run(signature, plan, [runs[index] for index in range(len(runs))])


def _on_cpu(directory: Path, weights: Weights, threads: int) -> LoadedProgram:
    """A segment that torch itself runs, operator by operator."""
    if not (directory / _PROGRAM).is_file():
        from ..aws_neuron.device import load_on_cpu, read_artifact

        return load_on_cpu(read_artifact(directory), weights, threads)
    from .. import masked  # noqa: F401  what is exported calls its operators, which want this torch

    real = read_signature(directory).pick_weights(weights)
    module = load_weight_stripped(directory / _PROGRAM, real)
    places = storage_ptrs(real.values())
    torch.set_num_threads(threads)

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return [copy_if_aliased(output.contiguous(), places) for output in module(*inputs)]

    return run


def _torch_of(engine: Backend) -> str | None:
    """The line of torch that hosts of the engine have."""
    return next((_minor(need.version) for need in engine.requirements() if need.module == "torch"), None)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def select_loader(engine: Backend, directory: Path) -> Backend:
    """What loads a variant of `engine`: itself, or where it left operators to the CPU, both together."""
    if (directory / _FILE).is_file():
        return PartitionedBackend(engine)
    return engine


def cpu_operators(directory: Path) -> tuple[str, ...]:
    """The operators, each once, that the CPU computes of a variant beside its engine; empty where there are none.

    Raises:
        LoadError: the file that says so is damaged.
    """
    if not (directory / _FILE).is_file():
        return ()
    steps = _read(directory / _FILE).steps
    return tuple(dict.fromkeys(name for step in steps if step.place == "cpu" for name in step.operators))


@dataclass(frozen=True)
class _Step:
    """One segment as the file has it."""

    place: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    """All of them, first to last."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[_Step, ...]


def _folder(index: int, place: str) -> str:
    return f"{index}_{place}"


def _numbered(settings: CompileSettings, index: int) -> CompileSettings:
    """With a folder of the segment's own."""
    if settings.workdir is None:
        return settings
    workdir = settings.workdir.resolve() / str(index)  # compilers may run elsewhere
    workdir.mkdir(parents=True, exist_ok=True)
    return replace(settings, workdir=workdir)


def _of_segments(settings: CompileSettings, config: PartitionerConfig) -> CompileSettings:
    """What `trace_kwargs` says stands in place of what is said for the whole."""
    return replace(
        settings,
        workdir=config.compiler_workdir or settings.workdir,
        args=settings.args if config.compiler_args is None else config.compiler_args,
    )


def _written(segments: Segments) -> dict[str, Any]:
    return {
        "inputs": segments.inputs,
        "outputs": segments.outputs,
        "segments": [
            {"place": one.target, "takes": one.inputs, "gives": one.outputs, "operators": one.operators}
            for one in segments.segments
        ],
    }


def _read(path: Path) -> _Plan:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        steps = tuple(
            _Step(one["place"], *(tuple(one[key]) for key in ("takes", "gives", "operators")))
            for one in written["segments"]
        )
        return _Plan(tuple(written["inputs"]), tuple(written["outputs"]), steps)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{path} cannot be read ({error}): package the model again") from error


def _run(signature: Signature, plan: _Plan, runs: Sequence[LoadedProgram]) -> LoadedProgram:
    last = {name: index for index, step in enumerate(plan.steps) for name in step.takes}
    kept = {*plan.outputs}

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        signature.check_inputs(inputs)
        values = dict(zip(plan.inputs, inputs, strict=True))
        for index, (step, segment) in enumerate(zip(plan.steps, runs, strict=True)):
            values.update(zip(step.gives, segment([values[name].contiguous() for name in step.takes]), strict=True))
            for name in step.takes:  # a large value between two segments need not outlive its last reader
                if last[name] == index and name not in kept:
                    values.pop(name, None)
        return [values[name] for name in plan.outputs]

    return run
