"""Selection of the engines to try, and of the preferred one.

One archive holds one engine, so that it holds the weights once. `auto` tries the engines that this machine has, or
those that the YAML names. It selects the one with the fewest measured milliseconds for batches of every size, with
lengths spread evenly, as they will be planned; of engines that take about the same time, the first one. An engine that
is named is the only one tried.

If the YAML allows a lower precision, `auto` tries the engines that compute in it and those in float32, whose outputs
are within its tolerance too. An engine by name must compute in the precision that is asked for.

Engines are compared by one batch of each size, in rounds in which they take turns, until several calls of each took
about as long as its shortest one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

from ...backends.interface import Backend, CompilerOption, Precision, precision_of
from ...backends.registry import auto_engines, get_backend
from ...bucketing.padding import padding_tensor
from ...config.engine_choice import AUTO
from ...config.schema import ServingConfig
from ...handlers.runtime.measurement import Call, Effort, measure
from ..errors import PackagingError, refusing
from ..torch_threads import on_threads
from .candidate import CandidateResult, RejectedEngine
from .evaluate import EvaluatedEngine, compared_batches

MARGIN = 0.15
"""Largest share of an engine's time that the fastest one may save, for both to count as equally fast."""
_TRY = "neuron_lstm.backend.auto.try"


def candidate_engines(config: ServingConfig) -> tuple[list[Backend], list[RejectedEngine]]:
    """Choose the engines to compile for, and report those that this machine cannot compile for.

    Raises `PackagingError`: the engine asked for by name is unknown, or cannot be used here or with these options.
    """
    if config.engine != AUTO:
        return [_by_name(config)], []
    names = config.auto.engines
    if names is None:
        tried = [get_backend(name) for name in auto_engines(config.precision)]
    else:
        tried = [_to_compare(name, config) for name in names]
    reasons = {engine.name: engine.unavailable() or engine.device_missing() for engine in tried}
    missing = {engine.name for engine in tried if names is None and engine.device_missing() is not None}  # no fault
    rejected = [RejectedEngine(name, why) for name, why in reasons.items() if why is not None and name not in missing]
    available = [engine for engine in tried if reasons[engine.name] is None] or fallback_engines(config, ())
    if not available:
        raise PackagingError("\n".join(f"{_TRY}: {one.backend} cannot be used here: {one.reason}" for one in rejected))
    return available, rejected


def _to_compare(name: str, config: ServingConfig) -> Backend:
    """An engine that the YAML names for `auto`."""
    with refusing(Exception, f"{_TRY}: "):
        engine = get_backend(name)
    if precision_of(engine, config.precision) not in (config.precision, "float32"):
        raise PackagingError(f"{_TRY}: {_other_precision(engine, config.precision)}")
    if (emulated := engine.simulation()) is not None:
        raise PackagingError(
            f"{_TRY}: {name} is {emulated}, so its time cannot be compared: leave it out, or write backend: {name}"
        )
    return engine


def fallback_engines(config: ServingConfig, tried: Sequence[str]) -> list[Backend]:
    """Return the engines to try if all others rejected the program; none if the YAML names engines."""
    if config.engine != AUTO or config.auto.engines is not None:
        return []
    return [get_backend(name) for name in auto_engines("fallback") if name not in tried]


def _by_name(config: ServingConfig) -> Backend:
    name, precision = config.engine, config.precision
    with refusing(Exception, "neuron_lstm.backend: "):
        engine = get_backend(name)
    elsewhere = config.compiler_python is not None and "compiler_python" in engine.options
    if config.device is not None and not engine.shares_device:
        raise PackagingError(f"neuron_lstm.device: {name} runs on no GPU: leave device out")
    if not elsewhere and (reason := engine.unavailable()) is not None:
        raise PackagingError(f"neuron_lstm.backend: {name} cannot be used here: {reason}")
    if precision not in engine.precisions:
        raise PackagingError(f"neuron_lstm.precision: {_other_precision(engine, precision)}")
    if unsupported := [path for path, option in _given_options(config) if option not in engine.options]:
        advice = f"; it supports {', '.join(engine.options)}" if engine.options else ": leave it out"
        told = (f"neuron_lstm.{path}: {name} does not support this option{advice}" for path in unsupported)
        raise PackagingError("\n".join(told))
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
    others = [name for name in auto_engines(requested) if requested in get_backend(name).precisions]
    return (
        f"{engine.name} computes only in {known}, not in {requested}: leave precision out, or write backend: {AUTO} to "
        f"compare it with engines that do ({', '.join(others)})"
    )


def preferred(totals: Mapping[str, float]) -> str:
    """Return the first engine, in the order of preference, whose time no other one undercuts by more than `MARGIN`.

    So neither a repetition of the measurement nor other work on the machine decides between engines that take about the
    same time.

    >>> preferred({"native": 10.0, "onnxruntime": 9.0}), preferred({"native": 10.0, "onnxruntime": 8.0})
    ('native', 'onnxruntime')
    """
    least = min(totals.values())
    return next(engine for engine, milliseconds in totals.items() if least >= (1 - MARGIN) * milliseconds)


_LIMIT_MS = 20_000
"""Most milliseconds of further rounds, for all batches."""
_EFFORT = Effort(budget_ms=0, fewest=5, repeated=1e9, agreement=1.1, agreeing=5, wakes=True, together=True)


def compare(engines: Sequence[EvaluatedEngine]) -> tuple[CandidateResult, ...]:
    """Replace the planned totals of engines by measured ones, if there are several to compare."""
    results = tuple(engine.result for engine in engines)
    if len(results) == 1:
        return results
    totals = measured_totals(engines)
    return tuple(replace(result, total_ms=totals[result.backend]) for result in results)


def measured_totals(engines: Sequence[EvaluatedEngine]) -> dict[str, float]:
    """Measure one batch of each size; returns the milliseconds of each engine."""
    sizes = len(engines[0].archive.manifest.grid.batches)
    batches = [{engine.result.backend: _batch_call(engine, index) for engine in engines} for index in range(sizes)]
    return total_ms(batches)


def total_ms(batches: Sequence[Mapping[str, Call]], clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return the milliseconds of each engine for all batches, each by its shortest call."""
    effort = replace(_EFFORT, repeated_ms=_LIMIT_MS / len(batches))
    measured = [measure(calls, effort, clock) for calls in batches]
    return {engine: sum(min(turns[engine]) for turns in measured) for engine in batches[0]}


def _batch_call(engine: EvaluatedEngine, index: int) -> Call:
    """One batch as it is planned; its measured time differs from the sum of its plan."""
    archive = engine.archive
    lengths = compared_batches(archive.manifest)[index]
    requests = [[padding_tensor(spec, length) for spec in archive.manifest.inputs] for length in lengths]
    return on_threads(engine.torch_threads, partial(archive.run_plan, archive.plan(lengths), requests, lengths))
