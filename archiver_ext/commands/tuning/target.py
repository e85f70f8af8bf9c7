"""Target of a tuning: its engine, batches, lengths and costs.

Bucket lengths matter for an engine that pads to them. An engine with dynamic shapes pads a call to its longest
sequence, and an engine that stops each row at its own end pads no row: for both, the bucket lengths are limits only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ....backends.interface import LoadError
from ....backends.registry import get_backend
from ....bucketing.bucket_lengths import CostOfLength
from ....bucketing.cost import CostModel
from ....bucketing.shapes import Bucket
from ....config.engine_choice import AUTO
from ....config.manifest import Manifest
from ....config.schema import ServingConfig
from ...errors import PackagingError

TimePadding = Literal["bucket", "call", "none"]
"""Length to which a sequence is padded.

`bucket`: the bucket length that holds it; `call`: the longest sequence of its call; `none`: the sequence is not padded.
"""


@dataclass(frozen=True)
class EnginePadding:
    """An engine, and the length to which it pads a sequence."""

    engine: str | None
    """Name of the engine; None if packaging has yet to choose it, or nothing names one."""
    padding: TimePadding
    detail: str = ""
    """Assumption of the figures, in one sentence; empty where nothing is assumed."""

    @property
    def lengths_matter(self) -> bool:
        """Whether other bucket lengths change what is computed."""
        return self.padding == "bucket"


UNKNOWN = EnginePadding(
    None,
    "bucket",
    "the figures are those of an engine with a program for each bucket; one with dynamic shapes pads no sequence to a "
    "bucket length. --archive, or --config with the name of an engine, says which one serves",
)
"""The assumption where nothing names the engine, or packaging has yet to choose it."""


def padding_of_archive(manifest: Manifest) -> EnginePadding:
    """Read from an archive how its engine pads."""
    if manifest.shapes == "grid":
        chunks = "this model runs in chunks of time: a sequence takes several calls, with less padding than shown"
        return EnginePadding(manifest.backend, "bucket", chunks if manifest.kind == "chunk" else "")
    # Packaging measures the cost of padding for engines that stop each row at its own end, and for no other.
    return EnginePadding(manifest.backend, "none" if manifest.padding_costs else "call")


def padding_of_config(config: ServingConfig) -> EnginePadding:
    """Derive from a configuration how the engine that it names will pad."""
    if config.engine == AUTO:
        return UNKNOWN
    try:
        engine = get_backend(config.engine)
    except LoadError:
        return EnginePadding(
            config.engine,
            "bucket",
            f"{config.engine} is not installed here: the figures are those of an engine with a program for each bucket",
        )
    if config.buckets.kernel is not None or not (engine.polymorphic and engine.any_shape):
        return EnginePadding(config.engine, "bucket")
    model = "a model that cannot take every length is padded to its buckets all the same: --archive says whether it is"
    return EnginePadding(config.engine, "none" if engine.ragged and config.streaming is None else "call", model)


@dataclass(frozen=True)
class Target:
    """Everything about the served model that lengths are tuned by."""

    engine: EnginePadding = UNKNOWN
    lengths: tuple[int, ...] = ()
    """Current bucket lengths; empty if they are not known, as are `batches`."""
    batches: tuple[int, ...] = ()
    """Rows of the buckets, ascending."""
    longest: int = 0
    """Timesteps of the longest sequence that is served; 0 if it is not known."""
    truncate: bool = False
    """Whether longer sequences are cut, not refused."""
    costs: Mapping[Bucket, float] = field(default_factory=dict)
    """Measured milliseconds of a call with full rows; empty without an archive."""

    @property
    def serves_longer(self) -> bool:
        """Whether sequences beyond the largest length are served, in chunks or in dynamic shapes."""
        return bool(self.lengths) and self.longest > self.lengths[-1]

    @property
    def cost_of_length(self) -> CostOfLength | None:
        """Milliseconds of a sequence in a full call of the largest batch size; None if nothing was measured."""
        if not self.costs:
            return None
        cost, rows = CostModel(self.costs), self.batches[-1]
        return lambda length: cost.of(Bucket(rows, length)) / rows

    def notes(self) -> Iterator[str]:
        """Yield what the figures leave out or assume."""
        if self.serves_longer and self.engine.lengths_matter:
            yield f"sequences of up to {self.longest} timesteps are served too; they are not counted here"
        if self.engine.detail:
            yield self.engine.detail


def find_target(config: ServingConfig | None, archive: tuple[Path, Manifest] | None, file: Path | None) -> Target:
    """Find what is tuned: the lengths of the configuration, or else of the archive.

    The archive, if there is one, has the engine and the costs. `file` is that of the configuration, for messages.

    Raises `PackagingError`: there are no lengths to tune, or they are the user's to choose.
    """
    if config is not None and config.buckets.length is None:
        raise PackagingError(f"{file}: no input has a time dimension, so there are no lengths to tune")
    path, manifest = archive or (None, None)
    if manifest is not None and all(spec.time_dim is None for spec in manifest.inputs):
        raise PackagingError(f"{path}: no input has a time dimension, so there are no lengths to tune")
    if config is None:
        return Target() if manifest is None else _of_archive(manifest)
    grid, truncate = config.grid, config.overflow == "truncate"
    configured = Target(padding_of_config(config), grid.lengths, grid.batches, config.longest, truncate)
    if manifest is None:
        return configured
    packaged = _of_archive(manifest)
    engine = packaged.engine
    if config.engine not in (AUTO, engine.engine):
        other = f"the figures are those of {engine.engine}, as in the archive; the configuration names {config.engine}"
        engine = replace(engine, detail=f"{engine.detail}; {other}" if engine.detail else other)
    return replace(configured, engine=engine, costs=packaged.costs, batches=packaged.batches)


def _of_archive(manifest: Manifest) -> Target:
    grid, truncate = manifest.grid, manifest.overflow == "truncate"
    costs = {cost.bucket: cost.milliseconds for cost in manifest.costs if cost.part == manifest.kind}
    return Target(padding_of_archive(manifest), grid.lengths, grid.batches, manifest.longest, truncate, costs)
