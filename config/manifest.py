"""variants.json: what packaging wrote down and serving reads back. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..bucketing.grid import Bucket, BucketGrid
from ..bucketing.spec import TensorSpec

FORMAT = 1
FILE_NAME = "variants.json"


@dataclass(frozen=True)
class Variant:
    """A program compiled for one bucket, with what packaging measured of it."""

    bucket: Bucket
    directory: str
    """Relative to the archive's root; a polymorphic program has the same for all its buckets."""
    milliseconds: float
    max_error: float


@dataclass(frozen=True)
class Manifest:
    """Everything the serving half needs to know about one archive."""

    backend: str
    requires: tuple[tuple[str, str, str], ...]
    """(distribution, module, version compiled against) for each package the host needs."""
    host: dict[str, str]
    """The kind of machine the compiled code is for; empty: any."""
    inputs: tuple[TensorSpec, ...]
    takes_lengths: bool
    """Whether the programs take lengths[B] after the declared inputs."""
    outputs: tuple[TensorSpec, ...]
    padding: Literal["masked", "exact_lengths"]
    padding_reason: str
    overflow: Literal["reject", "truncate"]
    grid: BucketGrid
    variants: tuple[Variant, ...]
    weights: str | None
    """The user's serialized file, relative to the archive's root: the only copy of the weights."""
    constants: str | None
    """A .pt file of tensors that programs need beside the state dict, relative to the archive's root."""
    codec: str | None = None
    threads: int | None = None
    """Threads per worker; None: the host's cores shared out over maxWorkers."""
    precision: str = "float32"
    tolerance: tuple[float, float] = (1e-5, 1e-5)
    """(atol, rtol): |ours - eager| <= atol + rtol x |eager|."""
    files: dict[str, str] = field(default_factory=dict)
    """sha256 of every file of the archive but this one and MANIFEST.json, by path relative to its root."""
    produced_by: dict[str, str] = field(default_factory=dict)
    """Versions at packaging time, by distribution."""
