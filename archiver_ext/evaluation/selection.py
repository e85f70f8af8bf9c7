"""Selection of the engines to try, and of the fastest one.

One archive holds one engine, so that it holds the weights once. `auto` tries the engines that this machine has, or
those that the YAML names. It selects the one with the fewest measured milliseconds for batches of every size, with
lengths spread evenly, as they will be planned; of engines that take about the same time, the first one. An engine that
is named is the only one tried.

If the YAML allows a lower precision, `auto` tries the engines that compute in it and those in float32, whose outputs
are within its tolerance too. An engine by name must compute in the precision that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from ...backends.interface import (
    Backend,
    CompilerOption,
    Precision,
    precision_of,
)
from ...backends.registry import SERVING, auto_engines, get_backend
from ...config.engine_choice import AUTO
from ...config.schema import ServingConfig
from ..errors import PackagingError
from .candidate import CandidateResult, RejectedEngine

MARGIN = 0.15
"""Share of the time that an engine must save to be preferred to one before it."""


def candidate_engines(config: ServingConfig) -> tuple[list[Backend], list[RejectedEngine]]:
    """Choose the engines to compile for, and report those that this machine cannot compile for.

    Raises:
        PackagingError: the engine asked for by name is unknown, or cannot be used here or with these options.
    """
    if config.engine != AUTO:
        return [_by_name(config)], []
    names = config.auto.engines
    tried = _auto_engines(config) if names is None else [_to_compare(name, config) for name in names]
    rejected = [
        RejectedEngine(engine.name, reason) for engine in tried if (reason := _not_comparable(engine)) is not None
    ]
    unavailable = {engine.backend for engine in rejected}
    available = [engine for engine in tried if engine.name not in unavailable] or fallback_engines(config, ())
    if not available:
        raise PackagingError(
            "\n".join(
                f"neuron_lstm.backend.auto.try: {one.backend} cannot be used here: {one.reason}" for one in rejected
            )
        )
    return available, rejected


def _auto_engines(config: ServingConfig) -> list[Backend]:
    return [get_backend(name) for name in auto_engines(SERVING[config.precision])]


def _not_comparable(engine: Backend) -> str | None:
    """The reason why this machine cannot compile for an engine, or cannot measure it; None if it can."""
    return engine.unavailable() or engine.device_missing()


def _to_compare(name: str, config: ServingConfig) -> Backend:
    """An engine that the YAML names for `auto`.

    Raises:
        PackagingError: it is unknown, or its time cannot be compared with that of others.
    """
    path = "neuron_lstm.backend.auto.try"
    try:
        engine = get_backend(name)
    except Exception as error:
        raise PackagingError(f"{path}: {error}") from error
    if precision_of(engine, config.precision) not in (config.precision, "float32"):
        raise PackagingError(f"{path}: {_other_precision(engine, config.precision)}")
    if (emulated := engine.simulation()) is not None:
        raise PackagingError(
            f"{path}: {name} is {emulated}, so its time cannot be compared: leave it out, or write backend: {name}"
        )
    return engine


def fallback_engines(config: ServingConfig, tried: Sequence[str]) -> list[Backend]:
    """Return the engines to try if all others rejected the program; none if the YAML names engines."""
    if config.engine != AUTO or config.auto.engines is not None:
        return []
    return [get_backend(name) for name in auto_engines("fallback") if name not in tried]


def _by_name(config: ServingConfig) -> Backend:
    name, precision = config.engine, config.precision
    try:
        engine = get_backend(name)
    except Exception as error:
        raise PackagingError(f"neuron_lstm.backend: {error}") from error
    elsewhere = config.compiler_python is not None and "compiler_python" in engine.options
    if config.device is not None and not engine.shares_device:
        raise PackagingError(f"neuron_lstm.device: {name} runs on no GPU: leave device out")
    reason = None if elsewhere else engine.unavailable()
    if reason is not None:
        raise PackagingError(f"neuron_lstm.backend: {name} cannot be used here: {reason}")
    if precision not in engine.precisions:
        raise PackagingError(f"neuron_lstm.precision: {_other_precision(engine, precision)}")
    unsupported = [path for path, option in _given_options(config) if option not in engine.options]
    if unsupported:
        raise PackagingError(
            "\n".join(
                f"neuron_lstm.{path}: {name} does not support this option"
                + (f"; it supports {', '.join(engine.options)}" if engine.options else ": leave it out")
                for path in unsupported
            )
        )
    return engine


def _given_options(config: ServingConfig) -> Iterator[tuple[str, CompilerOption]]:
    """The compiler options in the YAML: the path and the name of each."""
    trace = None if config.partitioner_config is None else config.partitioner_config.trace_kwargs
    for option in get_args(CompilerOption):
        if getattr(config, option) is not None:
            yield option, option
        if getattr(trace, option, None) is not None:
            yield f"partitioner_config.trace_kwargs.{option}", option


def _other_precision(engine: Backend, requested: Precision) -> str:
    known = " or ".join(engine.precisions)
    if "float32" not in engine.precisions:
        return f"{engine.name} computes only in {known}, not in {requested}: write precision: {known} if that suffices"
    others = [name for name in auto_engines(SERVING[requested]) if requested in get_backend(name).precisions]
    return (
        f"{engine.name} computes only in {known}, not in {requested}: leave precision out, or write backend: {AUTO} to "
        f"compare it with engines that do ({', '.join(others)})"
    )


def select_fastest(results: Sequence[CandidateResult]) -> CandidateResult:
    """Select the candidate with the fewest milliseconds in all, in the order of preference."""
    name = fastest({result.backend: result.total_ms for result in results})
    return next(result for result in results if result.backend == name)


def fastest(totals: Mapping[str, float]) -> str:
    """Return the engine to select, by milliseconds in the order of preference.

    An engine replaces those before it only if it saves more than `MARGIN`, so that neither a repetition of the
    measurement nor other work on the machine decides between engines that take about the same time.

    >>> fastest({"native": 10.0, "onnxruntime": 9.0}), fastest({"native": 10.0, "onnxruntime": 8.0})
    ('native', 'onnxruntime')
    """
    chosen = next(iter(totals))
    for engine, milliseconds in totals.items():
        if milliseconds < (1 - MARGIN) * totals[chosen]:
            chosen = engine
    return chosen
