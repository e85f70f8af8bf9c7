"""Options of a trace, and their compiler settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..backends.interface import Backend, CompilerOption, CompileSettings, precision_of
from ..config.partitioner import PartitionerConfig, shell_words


@dataclass(frozen=True)
class TraceOptions:
    """Options of `trace`."""

    input_output_aliases: Mapping[Any, int] | None = None
    compiler_workdir: str | Path | None = None
    compiler_args: str | Sequence[str] | None = None
    partitioner_config: PartitionerConfig | None = None
    inline_weights_to_neff: bool = True
    cpu_backend: bool = False
    compiler_python: str | Path | None = None
    """Python interpreter of the engine's compiler; NeuronX has no such option."""

    def __post_init__(self) -> None:
        split_arguments(self.compiler_args)


def split_arguments(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the compiler's arguments: a list unchanged, a string split as a shell would.

    >>> split_arguments("--target trn1 -O2"), split_arguments(["--target", "trn1"]), split_arguments(None)
    (('--target', 'trn1', '-O2'), ('--target', 'trn1'), ())

    Raises:
        ValueError: a quotation is not closed.
    """
    return shell_words(given, "compiler_args") if isinstance(given, str) else tuple(given or ())


def unsupported_options(engine: Backend, options: TraceOptions) -> list[str]:
    """Return the names of the given compiler options that the engine does not support."""
    requested: dict[CompilerOption, object] = {
        "compiler_workdir": options.compiler_workdir,
        "compiler_args": split_arguments(options.compiler_args),
        "compiler_python": options.compiler_python,
    }
    unsupported: list[str] = [name for name, value in requested.items() if value and name not in engine.options]
    trace_kwargs = (options.partitioner_config and options.partitioner_config.trace_kwargs) or {}
    return unsupported + [
        f"partitioner_config.trace_kwargs.{name}"
        for name, value in trace_kwargs.items()
        if value and name not in engine.options
    ]


def compile_settings(engine: Backend, options: TraceOptions, part: str = "") -> CompileSettings:
    """Build the compiler settings of one program; its working directory is `part` below the given one.

    The directory is created. Inputs and outputs keep their dtypes; an engine without float32 computes in its own type.
    """
    workdir = None
    if options.compiler_workdir is not None:
        workdir = Path(options.compiler_workdir).resolve() / part
        workdir.mkdir(parents=True, exist_ok=True)
    return CompileSettings(
        precision=precision_of(engine, "float32"),
        workdir=workdir,
        args=split_arguments(options.compiler_args),
        python=None if options.compiler_python is None else Path(options.compiler_python),
    )
