"""variants.json: the manifest of an archive, as serving reads it. Standard library only."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple, Optional

from ..bucketing.shapes import Bucket, BucketGrid, CarriedValue, ProgramRole, TensorSpec, role_buckets
from ..sessions.settings import SessionSettings
from .json_codec import REPACKAGE, JsonError, abbreviate, from_json, parse_json, read_text, relative_path
from .manifest_values import (
    RequestLimits,
    distribution_name,
    duration,
    module_name,
    named_apart,
    positive,
    positive_sizes,
    reference,
    valid_carry,
    valid_grid,
    valid_spec,
)
from .own_model import OwnModel, Shadow, ShortSequences

FILE_NAME = "variants.json"
FORMAT = 1


class ManifestError(RuntimeError):
    """An archive that must not be served.

    The message names the file, what is wrong with it, and what to do. A RuntimeError, because TorchServe reports no
    other exception while it loads a model.
    """


ProgramBucket = Annotated[Bucket, positive_sizes]
RelativePath = Annotated[str, relative_path]
"""A path below the archive's root."""


class RequiredPackage(NamedTuple):
    """A package that the host needs."""

    distribution: Annotated[str, distribution_name]
    module: Annotated[str, module_name]
    version: str
    """The lowest version that runs the programs, or the one that they were compiled for."""


class ErrorTolerance(NamedTuple):
    """Allowed difference from eager mode: |output - eager| <= atol + rtol x |eager|."""

    atol: float
    rtol: float


_TOLERANCE = ErrorTolerance(atol=1e-5, rtol=1e-5)
_LIMITS = RequestLimits()


class _Header(NamedTuple):
    format: int


@dataclass(frozen=True)
class Variant:
    """A compiled program."""

    part: ProgramRole
    bucket: Optional[ProgramBucket]
    """The bucket it is compiled for; None: it takes every shape."""
    directory: RelativePath
    estimate_us: Optional[float] = None
    """Duration of one call on the device in microseconds, as the compiler estimates it. None where it does not."""


@dataclass(frozen=True)
class MeasuredCost:
    """Measured duration of one call; `start` and `head` have buckets of length 1."""

    part: ProgramRole
    bucket: ProgramBucket
    milliseconds: Annotated[float, duration]


@dataclass(frozen=True)
class CostMeasurement:
    """The conditions under which the costs were measured."""

    threads: Annotated[int, positive]
    """Threads that each call could use."""
    spread: float = 1.0
    """Ratio of the shortest call of a usual round to that of all, which is the cost: 1 on an idle machine."""
    device: Optional[str] = None
    """Name of the GPU that ran the calls; None: they ran on the CPU."""

    @property
    def was_busy(self) -> bool:
        """Whether other work made most calls longer."""
        return self.spread > 1.25


@dataclass(frozen=True)
class MeasuredError:
    """Largest |output - eager| of the whole model, with all calls made in one bucket."""

    bucket: ProgramBucket
    max_error: float


@dataclass(frozen=True)
class AcceptedRange:
    """The least and the largest value of an input, both included."""

    input: str
    least: float
    largest: float


@dataclass(frozen=True)
class Manifest:
    """Everything that serving needs to know about an archive. The fields are the keys of variants.json, in order."""

    backend: str
    requires: tuple[RequiredPackage, ...]
    host: dict[str, str]
    """The machine that compiled code is for, with the versions of its symbols (GLIBC); empty: any."""
    inputs: Annotated[tuple[Annotated[TensorSpec, valid_spec], ...], named_apart]
    takes_lengths: bool
    """Whether the programs take lengths[B] after the declared inputs."""
    outputs: Annotated[tuple[Annotated[TensorSpec, valid_spec], ...], named_apart]
    overflow: Literal["reject", "truncate"]
    kind: Literal["sequence", "chunk"]
    """Execution mode: whole sequences, or chunks of time."""
    kind_reason: str
    """The reason for the mode, for people: the line that needs a whole sequence, or the carried values."""
    carried: tuple[Annotated[CarriedValue, valid_carry], ...]
    """Values carried from chunk to chunk, in the order of the programs' arguments."""
    grid: Annotated[BucketGrid, valid_grid]
    shapes: Literal["grid", "any"]
    """Whether the programs run in the grid's buckets only, or in every shape up to its largest."""
    longest: Annotated[int, positive]
    """Timesteps of the longest sequence that is served."""
    variants: tuple[Variant, ...]
    checks: tuple[MeasuredError, ...]
    costs: tuple[MeasuredCost, ...]
    """Measured on one host; `neuron-lstm calibrate` measures again on another."""
    padding_costs: tuple[MeasuredCost, ...] = ()
    """Costs of padding, for a backend that stops each row at its own end.

    They are of calls in which one row has all the timesteps and every other row has one. Empty: padding costs as much
    as data.
    """
    measurement: Optional[CostMeasurement] = None
    """Conditions of the measured costs; None: they are a compiler's estimates."""
    weights: Optional[RelativePath] = None
    """The user's serialized file: the only copy of the weights."""
    constants: Optional[RelativePath] = None
    """A .pt file of tensors that programs need beside the state dict."""
    codec: Optional[Annotated[str, reference]] = None
    kernel: Optional[Annotated[str, reference]] = None
    """The bucket selector, `module:function`, which chooses the bucket length of a sequence. None: the least cost."""
    placement: Optional[Literal["cores"]] = None
    """`cores`: each worker is pinned to cores that no other one has."""
    device: Optional[str] = None
    """The GPU that serves, e.g. cuda:1; None: the one that the server gives to the worker, else the first."""
    threads: Optional[Annotated[int, positive]] = None
    """Threads per worker; None: the host's cores divided by maxWorkers."""
    streaming: Optional[SessionSettings] = None
    """None: each request is a whole sequence; else each request is a chunk of a session."""
    shortest: Annotated[int, positive] = 1
    """Timesteps of the shortest sequence that the programs take."""
    short: Optional[ShortSequences] = None
    """Those that the model's own code answers because they are shorter. None: there are none."""
    accepted: tuple[AcceptedRange, ...] = ()
    """Ranges of inputs outside of which requests are refused: the programs hold within them only."""
    limits: RequestLimits = _LIMITS
    """Bounds of one request."""
    model: Optional[OwnModel] = None
    """The model that answers by its own code, each request alone. None: the programs of `variants` answer."""
    shadow: Optional[Shadow] = None
    """The comparison of the programs' answers with those of the model's own code. None: there is none."""
    precision: str = "float32"
    tolerance: ErrorTolerance = _TOLERANCE
    produced_by: dict[str, str] = field(default_factory=dict)
    """Versions at packaging time, by distribution."""

    @cached_property
    def shortest_accepted(self) -> int:
        """Timesteps of the shortest sequence that is answered."""
        return self.shortest if self.short is None else self.short.shortest

    @cached_property
    def programs_from(self) -> int:
        """Timesteps of the shortest sequence that programs answer; more than all, where there are none."""
        return self.shortest if self.model is None else self.longest + 1

    @cached_property
    def input_names(self) -> frozenset[str]:
        """Names of the inputs."""
        return frozenset(spec.name for spec in self.inputs)


_DISTRIBUTION = "torchserve-neuron-lstm"


def read_manifest(directory: Path) -> Manifest:
    """Read and check variants.json in the archive's root.

    Raises `ManifestError`: it is missing, malformed, of another format, or names files outside the archive.
    """
    path = directory / FILE_NAME
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path} cannot be read ({error}): {REPACKAGE}") from error
    return parse_manifest(text)


def parse_manifest(text: str) -> Manifest:
    """Parse and check the text of variants.json.

    Raises `ManifestError`: it is malformed, of another format, or names files outside the archive.
    """
    try:
        written = parse_json(text)
    except ValueError as error:
        raise ManifestError(f"{FILE_NAME} is not JSON ({error}): {REPACKAGE}") from error
    try:
        _check_format(written)
        manifest = from_json(Manifest, written)
        _check_consistency(manifest)
    except JsonError as error:
        raise ManifestError(f"{FILE_NAME}: {error}; {REPACKAGE}") from error
    ranges = {one.input: (one.least, one.largest) for one in manifest.accepted}
    inputs = tuple(replace(spec, value_range=ranges.get(spec.name)) for spec in manifest.inputs) if ranges else None
    return manifest if inputs is None else replace(manifest, inputs=inputs)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return digest_of(file)


def digest_of(data: IO[bytes]) -> str:
    """Return the sha256 of what is left to read of an open file, in hexadecimal digits."""
    digest = hashlib.sha256()
    while block := data.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _check_format(written: Any) -> None:
    found = from_json(_Header, written).format
    if found == FORMAT:
        return
    makers = written.get("produced_by")
    version = makers.get(_DISTRIBUTION) if isinstance(makers, dict) else None
    writer = f"{_DISTRIBUTION} {version}" if isinstance(version, str) else f"another version of {_DISTRIBUTION}"
    raise ManifestError(
        f"{FILE_NAME} has format {found}, and this code reads format {FORMAT}: serve the archive with {writer}, "
        f"which wrote it, or {REPACKAGE} with the version that is installed here"
    )


def _check_consistency(manifest: Manifest) -> None:
    if manifest.streaming is not None and manifest.kind != "chunk":
        raise _invalid("streaming", "a model that runs in chunks of time", manifest.kind)
    if manifest.kernel is not None and (manifest.kind, manifest.shapes) != ("sequence", "grid"):
        raise _invalid("kernel", "none except for whole sequences in the grid's buckets", manifest.kernel)
    padded = {cost.part for cost in manifest.padding_costs}
    if padded and (padded, manifest.kind, manifest.shapes) != ({"sequence"}, "sequence", "any"):
        raise _invalid("padding_costs", "none except for whole sequences in every shape", sorted(padded))
    counts = Counter((variant.part, variant.bucket) for variant in manifest.variants)
    duplicates = [shape for shape, count in counts.items() if count > 1]
    if duplicates:
        raise _invalid("variants", "each bucket of a part once", list(duplicates[0]))
    if manifest.model is not None and (manifest.kind, manifest.grid.batches) != ("sequence", (1,)):
        raise _invalid("model", "none except for one whole sequence in each call", manifest.model.name)
    for part in _needed_parts(manifest):
        for bucket in [None] if manifest.shapes == "any" else role_buckets(part, manifest.grid):
            if (part, None) not in counts and (part, bucket) not in counts:
                wanted = "every shape" if bucket is None else f"{bucket.batch} x {bucket.length}"
                raise _invalid("variants", f"a {part} program for {wanted}", [bucket for _, bucket in counts])


def _invalid(path: str, expected: str, found: Any) -> JsonError:
    return JsonError(f"{path}: expected {expected}, got {abbreviate(found)}")


def _needed_parts(manifest: Manifest) -> tuple[ProgramRole, ...]:
    if manifest.model is not None:
        return ()
    if manifest.kind == "sequence":
        return ("sequence",)
    starts = any(value.fill is None for value in manifest.carried)
    ends = any(spec.time_dim is None for spec in manifest.outputs)
    return ("chunk", *(("start",) if starts else ()), *(("head",) if ends else ()))
