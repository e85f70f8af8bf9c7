"""Which engines are tried, and using one without a lasting effect on the caller's process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..backends.interface import Backend, CompileError, Inlining, LoadedProgram, Placing, Weights
from ..backends.partitioning.backend import PartitionedBackend
from ..backends.partitioning.partitioned_program import load_compiled
from ..backends.registry import auto_engines, get_backend
from ..config.partitioner import PartitionerConfig
from .options import TraceOptions, split_arguments, unsupported_options

AUTO = "auto"


def select_engines(name: str, options: TraceOptions) -> list[Backend]:
    """The engines to try: the one of this name, or under `auto` those that are here and take the options.

    Raises:
        LoadError: there is none of this name.
        CompileError: it cannot be used here, and what to install.
        ValueError: it does not take an option.
        TypeError: `partitioner_config` is none.
    """
    given = options.partitioner_config
    if given is not None and not isinstance(given, PartitionerConfig):
        raise TypeError(f"partitioner_config: expected a PartitionerConfig, got {given!r}")
    if name != AUTO:
        return [_divided(_named(name, options), options)]
    here = [get_backend(one) for one in auto_engines("trace")]
    fit = [engine for engine in here if engine.unavailable() is None and not unsupported_options(engine, options)]
    if not fit:
        raise ValueError(f"no engine that {AUTO} tries takes these options: name one in backend=")
    return [_divided(engine, options) for engine in fit]


def _divided(engine: Backend, options: TraceOptions) -> Backend:
    """The engine, or where a partitioner's options are given, the engine and the CPU together."""
    return engine if options.partitioner_config is None else PartitionedBackend(engine, options.partitioner_config)


def _named(name: str, options: TraceOptions) -> Backend:
    engine = get_backend(name)
    if lacking := unsupported_options(engine, options):
        raise ValueError(f"{' and '.join(lacking)}: {name} has no compiler that takes it; leave it out")
    if not options.inline_weights_to_neff and isinstance(engine, Inlining) and engine.inlines_weights:
        raise ValueError(f"inline_weights_to_neff=False: {name} keeps the weights inside its programs; leave it out")
    if options.cpu_backend and isinstance(engine, Placing) and not _has_target(options):
        raise ValueError("cpu_backend=True compiles for a device that is not here: add compiler_args='--target NAME'")
    if options.compiler_python is None and (reason := engine.unavailable()) is not None:
        raise CompileError(f"{name} cannot be used here: {reason}")
    return engine


def _has_target(options: TraceOptions) -> bool:
    return any(word == "--target" or word.startswith("--target=") for word in split_arguments(options.compiler_args))


def load_program(
    engine: Backend, directory: Path, weights: Weights, host: Mapping[str, str], threads: int, core: int | None
) -> LoadedProgram:
    """Load what the engine compiled, on a core of its own if it has them; torch keeps the number of threads it had.

    Raises:
        LoadError: this host cannot run it.
    """
    placed: Any = _OnCore(engine, core) if isinstance(engine, Placing) and core is not None else engine
    with preserve_torch_threads():
        return load_compiled(placed, directory, weights, host, threads)


class _OnCore:
    """An engine that loads onto one of its cores."""

    def __init__(self, engine: Placing, core: int) -> None:
        self._engine, self._core = engine, core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """As the engine does, elsewhere."""
        return self._engine.load_on(self._core, directory, weights, host, threads)


@contextmanager
def preserve_torch_threads() -> Iterator[None]:
    """Engines set how many threads torch has, as a worker wants it; a process that traces is no worker."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def combined_error(errors: Sequence[CompileError]) -> CompileError:
    """What to raise when none of the engines took a program."""
    return CompileError("\n".join(str(error) for error in errors))
