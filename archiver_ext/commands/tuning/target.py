"""Target of a tuning: its engine, batches and costs, and the text of the configuration that gets the lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ....bucketing.bucket_lengths import CostOfLength
from ....bucketing.cost import CostModel
from ....bucketing.shapes import Bucket
from ....config.diagnostics import ConfigError, Diagnostic
from ....config.engine_choice import AUTO
from ....config.load import parse_config
from ....config.manifest import Manifest
from ....config.schema import BLOCK, ServingConfig
from ....config.yaml_text import SourceSpan, find_span
from ...errors import PackagingError
from .time_padding import UNKNOWN, EnginePadding, padding_of_archive, padding_of_config

_LENGTH = (BLOCK, "buckets", "length")
_CHANGING: dict[str, Any] = {"buckets": {"length"}, "histogram": True}


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
    configured = _of_config(config)
    if manifest is None:
        return configured
    packaged = _of_archive(manifest)
    return replace(
        configured,
        engine=_with_other_engine(packaged.engine, config.engine),
        costs=packaged.costs,
        batches=packaged.batches,
    )


def _with_other_engine(packaged: EnginePadding, configured: str) -> EnginePadding:
    """Say so if the configuration names another engine than the one whose costs are known."""
    if configured in (AUTO, packaged.engine):
        return packaged
    other = f"the figures are those of {packaged.engine}, as in the archive; the configuration names {configured}"
    return replace(packaged, detail=f"{packaged.detail}; {other}" if packaged.detail else other)


def _of_config(config: ServingConfig) -> Target:
    return Target(
        padding_of_config(config),
        config.grid.lengths,
        config.grid.batches,
        config.longest,
        config.overflow == "truncate",
    )


def _of_archive(manifest: Manifest) -> Target:
    return Target(
        padding_of_archive(manifest),
        manifest.grid.lengths,
        manifest.grid.batches,
        manifest.longest,
        manifest.overflow == "truncate",
        {cost.bucket: cost.milliseconds for cost in manifest.costs if cost.part == manifest.kind},
    )


def replace_lengths(text: str, source: str, lengths: Sequence[int], folder: Path = Path()) -> str:
    r"""Replace the bucket lengths in the text of a configuration; `source` names the file in messages.

    >>> text = "neuron_lstm: {inputs: {x: {dtype: bool, shape: [time]}}, buckets: {length: [8]}}  # mine\n"
    >>> print(replace_lengths(text, "model-config.yaml", (4, 16)), end="")
    neuron_lstm: {inputs: {x: {dtype: bool, shape: [time]}}, buckets: {length: [4, 16]}}  # mine

    Raises `ConfigError`: something in the text cannot be used, it has no lengths, or they cannot be changed without
    changing something else.
    """
    before = parse_config(text, source, folder)
    place = find_span(text, _LENGTH)
    if place is None:
        raise _refusal(source, "is missing: no input has a time dimension")
    changed = _replaced(text, place, f"[{', '.join(map(str, lengths))}]")
    try:
        after = parse_config(changed, source, folder)
    except ConfigError as error:
        raise _refusal(source, _by_hand(lengths)) from error
    if after.grid.lengths != tuple(lengths) or _rest(after) != _rest(before):
        raise _refusal(source, _by_hand(lengths))
    return changed


def _by_hand(lengths: Sequence[int]) -> str:
    return f"cannot be changed by itself (is it an alias, or the anchor of one?): write {list(lengths)} there"


def _refusal(source: str, message: str) -> ConfigError:
    return ConfigError(source, [Diagnostic(".".join(_LENGTH), 1, message)])


def _rest(config: ServingConfig) -> dict[str, Any]:
    return config.model_dump(exclude=_CHANGING)


def _replaced(text: str, place: SourceSpan, value: str) -> str:
    # A value that begins below its key moves up beside it; comments in between and after it stay.
    first, *between = text[place.key_end : place.start].split("\n")
    if not between:
        return text[: place.start] + value + text[place.end :]
    colon = first.index(":") + 1
    rest, newline, following = text[place.end :].partition("\n")
    comment = [between[-1] + rest.strip()] if rest.strip() else []
    lines = [text[: place.key_end] + first[:colon] + " " + value + first[colon:], *between[:-1], *comment]
    return "\n".join(lines) + newline + following
