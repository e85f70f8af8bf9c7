"""Which engines are tried, and which one is kept.

One archive holds one engine, so that it holds the weights once. `auto` tries every engine that this machine has and
keeps the one that spends the fewest measured milliseconds on batches of every size, with lengths spread evenly, as they
will be planned. An engine by name is the only one tried.

Where the YAML allows bfloat16, `auto` tries the engines that compute in it beside those in float32, whose answers are
within every tolerance that bfloat16's are. An engine by name must compute in the precision that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from ...backends.interface import Backend, CompilerOption, Precision, WholeSequences
from ...backends.registry import auto_engines, get_backend
from ...bucketing.shapes import Bucket
from ...config.schema import ServingConfig
from ..errors import PackagingError
from ...lowering.program import LoweredModel
from .calibrate import Costs
from ...backends.compile_pool import CompileResult
from .verify import VerificationResult

AUTO = "auto"


@dataclass(frozen=True)
class CandidateResult:
    """An engine that compiled every program and agrees with eager in every bucket."""

    backend: str
    precision: Precision
    """What the engine computes in, which is float32 or what the YAML asks for."""
    compiled: tuple[CompileResult, ...]
    verified: Mapping[Bucket, VerificationResult]
    costs: Costs
    milliseconds: Mapping[Bucket, float]
    """One call of the program over time in each bucket of the grid, measured or between measurements."""
    total_ms: float
    """What `auto` goes by: a batch of every size of the grid, lengths spread evenly up to the longest, as served."""
    estimates: Mapping[Bucket, float] = field(default_factory=dict)
    """Microseconds of the same on the engine's device by its compiler's count, where it has one."""
    padding: Mapping[Bucket, float] = field(default_factory=dict)
    """Milliseconds of calls with as much padding as can be, of an engine that stops each row at its own end."""
    simulation: str | None = None
    """What stood in for the device here, so that `milliseconds` are the compiler's count; None: they are measured."""


@dataclass(frozen=True)
class RejectedEngine:
    """An engine that is out, and why."""

    backend: str
    reason: str


def candidate_engines(config: ServingConfig) -> tuple[list[Backend], list[RejectedEngine]]:
    """The engines to compile for, and those that this machine cannot compile for.

    Raises:
        PackagingError: the engine asked for by name is unknown, cannot be used here or not so.
    """
    if config.backend != AUTO:
        return [_by_name(config)], []
    names = auto_engines("serve_float32" if config.precision == "float32" else "serve_bfloat16")
    fast = [get_backend(name) for name in names]
    dropped = [RejectedEngine(engine.name, reason) for engine in fast if (reason := engine.unavailable()) is not None]
    out = {engine.backend for engine in dropped}
    return [engine for engine in fast if engine.name not in out] or fallback_engines(AUTO, ()), dropped


def program_for_engine(program: LoweredModel, engine: Backend, *, streams: bool) -> LoweredModel:
    """Over whole sequences where an engine is no faster, or not at all, in pieces, and no stream asks for them."""
    if not isinstance(engine, WholeSequences) or program.chunked is None or streams:
        return program
    return replace(program, chunked=None, chunking_reason=engine.whole_sequences)


def check_max_length(engine: Backend, program: LoweredModel, config: ServingConfig) -> RejectedEngine | None:
    """Why an engine cannot serve the longest sequences; None where it can."""
    if config.longest == config.grid.lengths[-1] or program.chunked is not None or has_dynamic_shape(engine, program):
        return None
    return RejectedEngine(
        engine.name,
        f"buckets.longest: {config.longest} timesteps are more than {engine.name}'s largest bucket will hold "
        f"({config.grid.lengths[-1]}), for the model runs over whole sequences ({program.chunking_reason}): add that "
        "length to buckets.length",
    )


def has_dynamic_shape(engine: Backend, program: LoweredModel) -> bool:
    """Whether an engine will run a program in every shape, not only in the grid's."""
    free = engine.polymorphic and engine.any_shape
    return free and program.any_shape and program.takes_lengths and program.padding == "masked"


def fallback_engines(wanted: str, tried: Sequence[str]) -> list[Backend]:
    """Return the engines to try if every engine rejected the program: under `auto` the fallback, else none."""
    return [get_backend(name) for name in auto_engines("fallback") if name not in tried] if wanted == AUTO else []


def _by_name(config: ServingConfig) -> Backend:
    name, precision = config.backend, config.precision
    try:
        engine = get_backend(name)
    except Exception as error:
        raise PackagingError(f"neuron_lstm.backend: {error}") from error
    elsewhere = config.compiler_python is not None and "compiler_python" in engine.options
    reason = None if elsewhere else engine.unavailable()
    if reason is not None:
        raise PackagingError(f"neuron_lstm.backend: {name} cannot be used here: {reason}")
    if precision not in engine.precisions:
        raise PackagingError(f"neuron_lstm.precision: {_other_precision(engine, precision)}")
    untaken = [path for path, key in _given_options(config) if key not in engine.options]
    if untaken:
        raise PackagingError(
            "\n".join(
                f"neuron_lstm.{path}: {name} has nothing to do with it"
                + (f", but takes {', '.join(engine.options)}" if engine.options else ": leave it out")
                for path in untaken
            )
        )
    return engine


def _given_options(config: ServingConfig) -> Iterator[tuple[str, CompilerOption]]:
    """What the YAML says to a compiler: where it stands, and the option."""
    trace = None if config.partitioner_config is None else config.partitioner_config.trace_kwargs
    for option in get_args(CompilerOption):
        if getattr(config, option) is not None:
            yield option, option
        if getattr(trace, option, None) is not None:
            yield f"partitioner_config.trace_kwargs.{option}", option


def _other_precision(engine: Backend, wanted: Precision) -> str:
    if "float32" not in engine.precisions:
        known = " or ".join(engine.precisions)
        return f"{engine.name} computes in {known} alone, not in {wanted}: write precision: {known} if that will do"
    others = [name for name in auto_engines("serve_bfloat16") if wanted in get_backend(name).precisions]
    return (
        f"{engine.name} computes in float32 alone, not in {wanted}: leave precision out, or write backend: {AUTO} to "
        f"have it compete with engines that do ({', '.join(others)})"
    )


def select_fastest(trials: Sequence[CandidateResult]) -> CandidateResult:
    """The engine with the fewest planned milliseconds; the first of several equal ones."""
    return min(trials, key=lambda trial: trial.total_ms)
