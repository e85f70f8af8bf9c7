"""Target of a tuning: its engine, batches, lengths and costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ....bucketing.bucket_lengths import CostOfLength
from ....bucketing.cost import CostModel
from ....bucketing.shapes import Bucket
from ....config.engine_choice import AUTO
from ....config.manifest import Manifest
from ....config.schema import ServingConfig
from ...errors import PackagingError
from .time_padding import UNKNOWN, EnginePadding, padding_of_archive, padding_of_config


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
    configured = Target(
        padding_of_config(config),
        config.grid.lengths,
        config.grid.batches,
        config.longest,
        config.overflow == "truncate",
    )
    if manifest is None:
        return configured
    packaged = _of_archive(manifest)
    engine = packaged.engine
    if config.engine not in (AUTO, engine.engine):
        other = f"the figures are those of {engine.engine}, as in the archive; the configuration names {config.engine}"
        engine = replace(engine, detail=f"{engine.detail}; {other}" if engine.detail else other)
    return replace(configured, engine=engine, costs=packaged.costs, batches=packaged.batches)


def _of_archive(manifest: Manifest) -> Target:
    return Target(
        padding_of_archive(manifest),
        manifest.grid.lengths,
        manifest.grid.batches,
        manifest.longest,
        manifest.overflow == "truncate",
        {cost.bucket: cost.milliseconds for cost in manifest.costs if cost.part == manifest.kind},
    )
