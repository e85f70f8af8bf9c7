"""Selection of engines, and their use without side effects on the caller's process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from ..backends.interface import Backend, CompileError, LoadedProgram, Weights
from ..backends.partitioning.backend import PartitionedBackend
from ..backends.partitioning.partitioned_program import Load, load_compiled
from ..backends.registry import auto_engines, get_backend
from ..config.partitioner import PartitionerConfig
from .options import TraceOptions, unsupported_options

AUTO = "auto"


def select_engines(name: str, options: TraceOptions) -> list[Backend]:
    """Return the engine of this name, or for `auto` the installed engines that support the options.

    Raises `LoadError`: there is no engine of this name.
    Raises `CompileError`: the engine cannot be used here; says what to install.
    Raises `ValueError`: the engine does not support an option.
    Raises `TypeError`: `partitioner_config` is not a `PartitionerConfig`.
    """
    config = options.partitioner_config
    if config is not None and not isinstance(config, PartitionerConfig):
        raise TypeError(f"partitioner_config: expected a PartitionerConfig, got {config!r}")
    if name != AUTO:
        usable = [_named(name, options)]
    else:
        candidates = [get_backend(one) for one in auto_engines("trace")]
        usable = [one for one in candidates if one.unavailable() is None and not unsupported_options(one, options)]
        if not usable:
            raise ValueError(f"no engine that {AUTO} tries supports these options: name one in backend=")
    return usable if config is None else [PartitionedBackend(engine, config) for engine in usable]


def _named(name: str, options: TraceOptions) -> Backend:
    engine = get_backend(name)
    if unsupported := unsupported_options(engine, options):
        raise ValueError(f"{' and '.join(unsupported)}: not supported by {name}; remove it")
    if not options.inline_weights_to_neff and engine.inlines_weights:
        raise ValueError(f"inline_weights_to_neff=False: {name} compiles the weights into its programs; remove it")
    has_target = any(word.partition("=")[0] == "--target" for word in options.arguments)
    if options.cpu_backend and engine.cores() is not None and not has_target:
        raise ValueError("cpu_backend=True compiles for a device that is not here: add compiler_args='--target NAME'")
    if options.compiler_python is None and (reason := engine.unavailable()) is not None:
        raise CompileError(f"{name} cannot be used here: {reason}")
    return engine


def load_program(
    engine: Backend, directory: Path, weights: Weights, host: Mapping[str, str], threads: int, core: int | None
) -> LoadedProgram:
    """Load a compiled program on the given core of the device; torch keeps its number of threads.

    Raises `LoadError`: this host cannot run the program.
    """
    load: Load = engine.load if engine.cores() is None or core is None else partial(engine.load_on, core)
    with preserve_torch_threads():
        return load_compiled(load, directory, weights, host, threads)


@contextmanager
def preserve_torch_threads() -> Iterator[None]:
    """Restore torch's number of threads, which engines set for a worker."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
