"""Options of a trace, by name or (with a warning) by position, and their compiler settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..backends.interface import Backend, CompilerOption, CompileSettings, precision_of
from ..config.partitioner import PartitionerConfig, shell_words

_POSITIONS = 6


@dataclass(frozen=True)
class TraceOptions:
    """Options of `trace`, in the documented order."""

    input_output_aliases: Mapping[Any, int] | None = None
    compiler_workdir: str | Path | None = None
    compiler_args: str | Sequence[str] | None = None
    partitioner_config: PartitionerConfig | None = None
    inline_weights_to_neff: bool = True
    cpu_backend: bool = False
    compiler_python: str | Path | None = None
    """Python interpreter of the engine's compiler; by name only, because NeuronX has no such option."""

    def __post_init__(self) -> None:
        split_arguments(self.compiler_args)

    def with_positional(self, given: Sequence[Any]) -> TraceOptions:
        """Add options that were given by position, with a warning.

        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     TraceOptions().with_positional([None, "work"]).compiler_workdir
        'work'
        >>> print(caught[0].message)
        options of trace() given by position are deprecated: write input_output_aliases=..., compiler_workdir=...

        Raises:
            TypeError: there are too many of them, or one is also given by name.
        """
        if not given:
            return self
        names = [field.name for field in fields(self)][:_POSITIONS]
        if len(given) > len(names):
            raise TypeError(f"{len(given)} options by position, but trace() has {len(names)}: {', '.join(names)}")
        positional = dict(zip(names, given, strict=False))
        twice = [name for name in positional if getattr(self, name) != getattr(TraceOptions, name)]
        if twice:
            raise TypeError(f"{' and '.join(twice)} given by position and by name: remove the position")
        keywords = ", ".join(f"{name}=..." for name in positional)
        warnings.warn(
            f"options of trace() given by position are deprecated: write {keywords}", FutureWarning, stacklevel=3
        )
        return replace(self, **positional)


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
