"""Length to which an engine pads a sequence, as far as a configuration or an archive determines it.

Bucket lengths matter for an engine that pads to them. An engine with dynamic shapes pads a call to its longest
sequence, and an engine that stops each row at its own end pads no row: for both, the bucket lengths are limits only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ....backends.interface import LoadError
from ....backends.registry import get_backend
from ....config.engine_choice import AUTO
from ....config.manifest import Manifest
from ....config.schema import ServingConfig

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
