"""A candidate: an engine with the programs that it is given, and its result or rejection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ...backends.compilation.job import CompileResult
from ...backends.interface import Backend
from ...bucketing.cost import CostModel
from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import Bucket
from ...config.manifest import Manifest
from ...config.schema import ServingConfig
from ...lowering.program import LoweredModel
from .verify import VerificationResult


@dataclass(frozen=True)
class Candidate:
    """An engine, and the model's programs as that engine is given them."""

    engine: Backend
    program: LoweredModel

    @property
    def backend(self) -> str:
        """The engine's name."""
        return self.engine.name


@dataclass(frozen=True)
class CandidateResult:
    """A candidate that compiled every program and agrees with eager mode in every bucket."""

    candidate: Candidate
    compiled: tuple[CompileResult, ...]
    verified: Mapping[Bucket, VerificationResult]
    manifest: Manifest
    """The manifest of an archive with this candidate, with its costs and errors."""
    total_ms: float
    """Milliseconds that `auto` compares: a batch of every size, lengths spread evenly up to the longest."""
    simulation: str | None = None
    """Description of the emulated device, where costs are the compiler's estimates. None: measured."""
    beyond: tuple[str, ...] = ()
    """Kinds of values for which an engine of a lower precision exceeds its tolerance."""

    @property
    def backend(self) -> str:
        """The engine's name."""
        return self.candidate.backend

    @property
    def milliseconds(self) -> CostModel:
        """Calls of the program over time, measured or interpolated."""
        kind, costs = self.manifest.kind, self.manifest.costs
        return CostModel({cost.bucket: cost.milliseconds for cost in costs if cost.part == kind})

    @property
    def padding(self) -> CostModel | None:
        """Calls with as much padding as possible; None unless the engine stops each row at its own end."""
        costs = {cost.bucket: cost.milliseconds for cost in self.manifest.padding_costs}
        return CostModel(costs) if costs else None

    @property
    def estimates(self) -> dict[Bucket, float]:
        """Microseconds of a call on the engine's device, as its compiler estimates them."""
        own = (variant for variant in self.manifest.variants if variant.part == self.manifest.kind)
        return {variant.bucket: variant.estimate_us for variant in own if variant.bucket and variant.estimate_us}


@dataclass(frozen=True)
class RejectedEngine:
    """An engine that cannot be used, and the reason."""

    backend: str
    reason: str


def make_candidate(engine: Backend, program: LoweredModel, *, streams: bool, beyond_grid: bool = False) -> Candidate:
    """Pair an engine with its programs.

    These run over whole sequences where chunks of time are no faster, or the engine cannot run them, and where neither
    sessions (`streams`) nor sequences longer than the grid's buckets (`beyond_grid`) need them.
    """
    if program.chunked is None or streams:
        return Candidate(engine, program)
    reason = engine.whole_sequences or (None if beyond_grid else program.chunked.reason_for_whole)
    whole = program if reason is None else replace(program, chunked=None, chunking_reason=reason)
    return Candidate(engine, whole)


def check_max_length(candidate: Candidate, config: ServingConfig) -> RejectedEngine | None:
    """Reject an engine that cannot serve the longest sequences; None where it can."""
    engine, program = candidate.engine, candidate.program
    if config.longest == config.grid.lengths[-1] or program.chunked is not None or has_dynamic_shape(engine, program):
        return None
    return RejectedEngine(
        engine.name,
        f"buckets.longest: {config.longest} timesteps are more than {engine.name}'s largest bucket holds "
        f"({config.grid.lengths[-1]}), and the model runs over whole sequences ({program.chunking_reason}): add that "
        "length to buckets.length",
    )


def check_integers(candidate: Candidate) -> RejectedEngine | None:
    """Reject an engine that would compute integers of a request by rounding; None where it would not."""
    most = candidate.engine.largest_integer
    for spec in candidate.program.inputs:
        dtype = torch_dtype(spec)
        if most is None or spec.vocabulary is not None or dtype.is_floating_point or dtype is torch.bool:
            continue
        if max(map(abs, spec.value_range or (torch.iinfo(dtype).max,))) > most:
            return RejectedEngine(
                candidate.backend,
                f"{candidate.backend} rounds integers beyond {most}, and requests may have such in {spec.name}: "
                "declare those that they have by `range: [least, largest]` under `inputs`, or use another backend, "
                "such as native",
            )
    return None


def has_dynamic_shape(engine: Backend, program: LoweredModel) -> bool:
    """Whether an engine runs a program in every shape, not only in the grid's."""
    return engine.polymorphic and engine.any_shape and program.any_shape and program.takes_lengths
