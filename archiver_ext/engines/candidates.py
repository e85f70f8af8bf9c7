"""Which engines are tried, and which one is kept.

One archive holds one engine, so that it holds the weights once. `auto` tries every engine that this machine has and
keeps the one that spends the fewest measured milliseconds on batches of every size, with lengths spread evenly, as they
will be planned. An engine by name is the only one tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...backends.interface import Backend
from ...backends.registry import backend_names, get_backend
from ...bucketing.grid import Bucket
from ...config.schema import ServingConfig
from ..errors import PackagingError
from ..lowering.program import Program
from .calibrate import Costs
from .compile import Compiled
from .verify import Checked

AUTO = "auto"
_FAST = ("inductor", "onnxruntime")
_LAST_RESORT = "eager"


@dataclass(frozen=True)
class Trial:
    """An engine that compiled every program and agrees with eager in every bucket."""

    backend: str
    compiled: tuple[Compiled, ...]
    checked: Mapping[Bucket, Checked]
    costs: Costs
    milliseconds: Mapping[Bucket, float]
    """One call of the program over time in each bucket of the grid, measured or between measurements."""
    total_ms: float
    """What `auto` goes by: a batch of every size of the grid, lengths spread evenly up to the longest, as planned."""


@dataclass(frozen=True)
class Dropped:
    """An engine that is out, and why."""

    backend: str
    reason: str


def to_try(wanted: str) -> tuple[list[Backend], list[Dropped]]:
    """The engines to compile for, and those that this machine cannot compile for.

    Raises:
        PackagingError: the engine asked for by name is unknown or cannot be used here.
    """
    if wanted != AUTO:
        return [_by_name(wanted)], []
    fast = [get_backend(name) for name in _FAST if name in backend_names()]
    dropped = [Dropped(engine.name, reason) for engine in fast if (reason := engine.unavailable()) is not None]
    out = {engine.backend for engine in dropped}
    return [engine for engine in fast if engine.name not in out] or [get_backend(_LAST_RESORT)], dropped


def too_short(engine: Backend, program: Program, config: ServingConfig) -> Dropped | None:
    """Why an engine cannot serve the longest sequences; None where it can."""
    if config.longest == config.grid.lengths[-1] or program.split is not None or takes_any_shape(engine, program):
        return None
    return Dropped(
        engine.name,
        f"buckets.longest: {config.longest} timesteps are more than {engine.name}'s largest bucket will hold "
        f"({config.grid.lengths[-1]}), for the model runs over whole sequences ({program.split_reason}): add that "
        "length to buckets.length",
    )


def takes_any_shape(engine: Backend, program: Program) -> bool:
    """Whether an engine will run a program in every shape, not only in the grid's."""
    return engine.polymorphic and program.any_shape and program.takes_lengths and program.padding == "masked"


def last_resort(wanted: str, tried: Sequence[str]) -> list[Backend]:
    """What to try when every engine refused the program: eager under `auto`, else nothing."""
    return [get_backend(_LAST_RESORT)] if wanted == AUTO and _LAST_RESORT not in tried else []


def _by_name(name: str) -> Backend:
    try:
        engine = get_backend(name)
    except Exception as error:
        raise PackagingError(f"neuron_lstm.backend: {error}") from error
    reason = engine.unavailable()
    if reason is not None:
        raise PackagingError(f"neuron_lstm.backend: {name} cannot be used here: {reason}")
    return engine


def fastest(trials: Sequence[Trial]) -> Trial:
    """The engine with the fewest planned milliseconds; the first of several equal ones."""
    return min(trials, key=lambda trial: trial.total_ms)
