"""variants.json: what packaging wrote down and serving reads back. Standard library only."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from ..bucketing.shapes import Axis, Bucket, BucketGrid, CarriedValue, DType, ProgramRole, TensorSpec
from .json_codec import (
    FILE_NAME,
    REPACKAGE,
    JsonReader,
    ManifestError,
    invalid_value,
    reject_duplicate_keys,
    reject_nan,
    relative_path,
)
from .session_settings import SessionSettings, read_session_settings

__all__ = ["FILE_NAME", "ManifestError"]

FORMAT = 5


@dataclass(frozen=True)
class Variant:
    """A program compiled for one bucket."""

    part: ProgramRole
    bucket: Bucket | None
    """None: it serves every bucket."""
    directory: str
    """Relative to the archive's root."""
    estimate_us: float | None = None
    """Microseconds of one call on the engine's device by its compiler's count, where it has one."""


@dataclass(frozen=True)
class MeasuredCost:
    """The milliseconds of one call, as measured; `start` and `head` have buckets of length 1."""

    part: ProgramRole
    bucket: Bucket
    milliseconds: float


@dataclass(frozen=True)
class MeasuredError:
    """The largest |ours - eager| of the whole model, with its runs made in one bucket."""

    bucket: Bucket
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
    kind: Literal["sequence", "chunk"]
    """Whether the model runs over whole sequences or in pieces of time."""
    kind_reason: str
    """Why, for people: which line needs a whole sequence, or what goes on from piece to piece."""
    carried: tuple[CarriedValue, ...]
    """What goes on from piece to piece, in the order of the programs' arguments."""
    grid: BucketGrid
    shapes: Literal["grid", "any"]
    """Whether the programs run in the grid's buckets alone, or in every shape up to its largest."""
    longest: int
    """Timesteps of the longest sequence that is served."""
    variants: tuple[Variant, ...]
    checks: tuple[MeasuredError, ...]
    costs: tuple[MeasuredCost, ...]
    """Measured on one host; `neuron-lstm calibrate` measures again on another."""
    weights: str | None
    """The user's serialized file, relative to the archive's root: the only copy of the weights."""
    constants: str | None
    """A .pt file of tensors that programs need beside the state dict, relative to the archive's root."""
    padding_costs: tuple[MeasuredCost, ...] = ()
    """Of an engine that stops each row at its own end: calls in which one row has all the timesteps and the others one.
    What padding costs, by which plans are made. Empty: it costs as much as data."""
    codec: str | None = None
    kernel: str | None = None
    """`module:function` that chooses the length of the bucket for a sequence; None: whatever costs least."""
    placement: Literal["cores"] | None = None
    """Whether each worker keeps to cores of its own."""
    threads: int | None = None
    """Threads per worker; None: the host's cores shared out over maxWorkers."""
    streaming: SessionSettings | None = None
    """None: a request is a whole sequence; else a piece of a session's."""
    precision: str = "float32"
    tolerance: tuple[float, float] = (1e-5, 1e-5)
    """(atol, rtol): |ours - eager| <= atol + rtol x |eager|."""
    files: dict[str, str] = field(default_factory=dict)
    """sha256 of every file of the archive but this one and MANIFEST.json, by path relative to its root."""
    produced_by: dict[str, str] = field(default_factory=dict)
    """Versions at packaging time, by distribution."""


_NOT_DIGESTED = frozenset({FILE_NAME, "MAR-INF/MANIFEST.json"})
_DISTRIBUTION = "torchserve-neuron-lstm"


def manifest_text(manifest: Manifest) -> str:
    """The text of variants.json. Equal manifests give equal texts.

    Raises:
        ManifestError: a number in it is not finite, or it holds what `read_manifest` would refuse.
    """
    try:
        text = json.dumps(_as_json(manifest), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        text.encode()
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest cannot be written: {error}") from error
    parse_manifest(text)
    return text


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Write variants.json into the archive's root.

    Raises:
        ManifestError: as `manifest_text`.
    """
    (directory / FILE_NAME).write_text(manifest_text(manifest), encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """Read and check variants.json in the archive's root.

    Raises:
        ManifestError: it is missing, malformed, of another format, or names files outside the archive.
    """
    path = directory / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read ({error}): {REPACKAGE}") from error
    return parse_manifest(text)


def digest_files(directory: Path) -> dict[str, str]:
    """The sha256 of every file that goes into the archive, by its path relative to the archive's root, in order.

    Left out are the two manifests themselves and what torch-model-archiver leaves out: hidden folders and caches.
    """
    paths = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    return {name: _sha256(paths[name]) for name in sorted(paths) if _is_archived(PurePosixPath(name))}


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Compare every file that the manifest lists with its digest. Files besides are none of our business.

    Raises:
        ManifestError: files are missing or changed; all of them are named.
    """
    needed = [name for name in (manifest.weights, manifest.constants) if name is not None]
    complaints = [f"{name} has no digest" for name in needed if name not in manifest.files]
    for name, digest in sorted(manifest.files.items()):
        path = directory / relative_path(name, "files")
        if not path.is_file():
            complaints.append(f"{name} is missing")
        elif _sha256(path) != digest:
            complaints.append(f"{name} was changed")
    if complaints:
        raise ManifestError(f"the archive is not as it was packaged: {', '.join(complaints)}; {REPACKAGE}")


def _is_archived(path: PurePosixPath) -> bool:
    folders = path.parts[:-1]
    hidden = any(folder in {"__pycache__", "__MACOSX"} or folder.startswith(".") for folder in folders)
    return not hidden and str(path) not in _NOT_DIGESTED


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _as_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "backend": manifest.backend,
        "requires": [
            {"distribution": distribution, "module": module, "version": version}
            for distribution, module, version in manifest.requires
        ],
        "host": dict(sorted(manifest.host.items())),
        "inputs": [asdict(spec) for spec in manifest.inputs],
        "takes_lengths": manifest.takes_lengths,
        "outputs": [asdict(spec) for spec in manifest.outputs],
        "padding": manifest.padding,
        "padding_reason": manifest.padding_reason,
        "overflow": manifest.overflow,
        "kind": manifest.kind,
        "kind_reason": manifest.kind_reason,
        "carried": [asdict(value) | {"fill": _fill_as_json(value.fill)} for value in manifest.carried],
        "grid": asdict(manifest.grid),
        "shapes": manifest.shapes,
        "longest": manifest.longest,
        "variants": [asdict(variant) | {"bucket": _bucket_as_json(variant.bucket)} for variant in manifest.variants],
        "checks": [asdict(check) | {"bucket": _bucket_as_json(check.bucket)} for check in manifest.checks],
        "costs": [asdict(cost) | {"bucket": _bucket_as_json(cost.bucket)} for cost in manifest.costs],
        "padding_costs": [asdict(cost) | {"bucket": _bucket_as_json(cost.bucket)} for cost in manifest.padding_costs],
        "weights": manifest.weights,
        "constants": manifest.constants,
        "codec": manifest.codec,
        "kernel": manifest.kernel,
        "placement": manifest.placement,
        "threads": manifest.threads,
        "streaming": None if manifest.streaming is None else asdict(manifest.streaming),
        "precision": manifest.precision,
        "tolerance": {"atol": manifest.tolerance[0], "rtol": manifest.tolerance[1]},
        "produced_by": dict(sorted(manifest.produced_by.items())),
        "files": dict(sorted(manifest.files.items())),
    }


def _bucket_as_json(bucket: Bucket | None) -> dict[str, int] | None:
    return None if bucket is None else bucket._asdict()


def _fill_as_json(fill: float | None) -> float | str | None:
    """JSON has no infinity: what a maximum begins with is written as a text."""
    return fill if fill is None or isfinite(fill) else str(fill)


def parse_manifest(text: str) -> Manifest:
    """Check the text of a variants.json.

    Raises:
        ManifestError: it is malformed, of another format, or names files outside the archive.
    """
    try:
        written = json.loads(text, object_pairs_hook=reject_duplicate_keys, parse_constant=reject_nan)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{FILE_NAME} is not JSON ({error}): {REPACKAGE}") from error
    record = JsonReader(written, "")
    _check_format(record)
    manifest = Manifest(
        backend=record.text("backend"),
        requires=tuple((e.text("distribution"), e.text("module"), e.text("version")) for e in record.each("requires")),
        host=record.texts("host"),
        inputs=tuple(_spec(entry) for entry in record.each("inputs")),
        takes_lengths=record.get("takes_lengths", bool),
        outputs=tuple(_spec(entry) for entry in record.each("outputs")),
        padding=record.one_of("padding", ("masked", "exact_lengths")),
        padding_reason=record.text("padding_reason"),
        overflow=record.one_of("overflow", ("reject", "truncate")),
        kind=record.one_of("kind", ("sequence", "chunk")),
        kind_reason=record.text("kind_reason"),
        carried=tuple(_carried(entry) for entry in record.each("carried")),
        grid=_grid(record.inner("grid")),
        shapes=record.one_of("shapes", ("grid", "any")),
        longest=record.whole("longest"),
        variants=tuple(_variant(entry) for entry in record.each("variants")),
        checks=tuple(MeasuredError(_bucket(entry), entry.number("max_error")) for entry in record.each("checks")),
        costs=tuple(_cost(entry) for entry in record.each("costs")),
        padding_costs=tuple(_cost(entry) for entry in record.each("padding_costs")),
        weights=record.optional("weights", record.path),
        constants=record.optional("constants", record.path),
        codec=record.optional("codec", record.text),
        kernel=record.optional("kernel", record.text),
        placement=record.optional("placement", lambda key: record.one_of(key, ("cores",))),
        threads=record.optional("threads", record.whole),
        streaming=record.optional("streaming", lambda key: read_session_settings(record.inner(key))),
        precision=record.text("precision"),
        tolerance=(record.inner("tolerance").number("atol"), record.inner("tolerance").number("rtol")),
        produced_by=record.texts("produced_by"),
        files=record.texts("files"),
    )
    _check_whole(manifest)
    return manifest


def _check_format(record: JsonReader) -> None:
    found = record.whole("format")
    if found != FORMAT:
        makers = record.values.get("produced_by")
        version = makers.get(_DISTRIBUTION) if isinstance(makers, dict) else None
        writer = f"{_DISTRIBUTION} {version}" if isinstance(version, str) else f"another version of {_DISTRIBUTION}"
        raise ManifestError(
            f"{FILE_NAME} has format {found}, and this code reads format {FORMAT}: serve the archive with {writer}, "
            f"which wrote it, or {REPACKAGE} with the version that is installed here"
        )


def _check_whole(manifest: Manifest) -> None:
    """What no single value shows."""
    for name in manifest.files:
        relative_path(name, "files")
    if manifest.longest < 1:
        raise invalid_value("longest", "a positive number", manifest.longest)
    if manifest.streaming is not None and manifest.kind != "chunk":
        raise invalid_value("streaming", "a model that runs in pieces of time", manifest.kind)
    if manifest.kernel is not None and (manifest.kind, manifest.shapes) != ("sequence", "grid"):
        raise invalid_value("kernel", "none but for whole sequences in the grid's buckets", manifest.kernel)
    padded = {cost.part for cost in manifest.padding_costs}
    if padded and (padded, manifest.kind, manifest.shapes) != ({"sequence"}, "sequence", "any"):
        raise invalid_value("padding_costs", "none but of whole sequences in every shape", sorted(padded))
    shapes = [(variant.part, variant.bucket) for variant in manifest.variants]
    twice = [shape for shape in shapes if shapes.count(shape) > 1]
    if twice:
        raise invalid_value("variants", "each bucket of a part once", list(twice[0]))
    for part in _parts(manifest):
        for bucket in [None] if manifest.shapes == "any" else _buckets(part, manifest.grid):
            if (part, None) not in shapes and (part, bucket) not in shapes:
                wanted = "every shape" if bucket is None else f"{bucket.batch} x {bucket.length}"
                raise invalid_value("variants", f"a {part} program for {wanted}", [bucket for _, bucket in shapes])


def _parts(manifest: Manifest) -> tuple[ProgramRole, ...]:
    """The programs without which the model cannot be run."""
    if manifest.kind == "sequence":
        return ("sequence",)
    starts = any(value.fill is None for value in manifest.carried)
    ends = any(spec.time_dim is None for spec in manifest.outputs)
    return ("chunk", *(("start",) if starts else ()), *(("head",) if ends else ()))


def _buckets(part: ProgramRole, grid: BucketGrid) -> tuple[Bucket, ...]:
    """The buckets in which a part is run."""
    return tuple(Bucket(batch, 1) for batch in grid.batches) if part in ("start", "head") else grid.buckets


def _carried(record: JsonReader) -> CarriedValue:
    endless = record.get_any("fill") in ("inf", "-inf")
    fill = float(record.text("fill")) if endless else record.optional("fill", record.number)
    spec = _spec(record.inner("spec"))
    if spec.batch_dim != 0 or spec.time_dim is not None:
        raise invalid_value(f"{record.at}spec.shape", "batch, then sizes", list(spec.shape))
    return CarriedValue(spec, fill)


def _bucket(record: JsonReader) -> Bucket:
    inner = record.inner("bucket")
    bucket = Bucket(inner.whole("batch"), inner.whole("length"))
    if min(bucket) < 1:
        raise invalid_value(f"{record.at}bucket", "positive numbers", inner.values)
    return bucket


def _cost(record: JsonReader) -> MeasuredCost:
    milliseconds = record.number("milliseconds")
    if not milliseconds > 0:
        raise invalid_value(f"{record.at}milliseconds", "a positive number", milliseconds)
    return MeasuredCost(record.one_of("part", get_args(ProgramRole)), _bucket(record), milliseconds)


def _spec(record: JsonReader) -> TensorSpec:
    return TensorSpec(
        name=record.text("name"),
        dtype=record.one_of("dtype", get_args(DType)),
        shape=_shape(record),
        pad_value=record.number("pad_value"),
        vocabulary=record.optional("vocabulary", record.whole),
    )


def _shape(record: JsonReader) -> tuple[int | Axis, ...]:
    shape = record.get("shape", list)
    for size in shape:
        if size not in get_args(Axis) and not (type(size) is int and size >= 0):
            raise invalid_value(f"{record.at}shape", "batch, time and sizes", size)
    if shape.count("batch") > 1:  # time may stand there twice: an attention map
        raise invalid_value(f"{record.at}shape", "batch once at most", shape)
    return tuple(shape)


def _grid(record: JsonReader) -> BucketGrid:
    batches, lengths = (tuple(record.get(key, list)) for key in ("batches", "lengths"))
    if not all(type(size) is int for size in (*batches, *lengths)):
        raise invalid_value("grid", "whole numbers", record.values)
    try:
        return BucketGrid(batches, lengths)
    except ValueError as error:
        raise ManifestError(f"{FILE_NAME}: grid: {error}; {REPACKAGE}") from error


def _variant(record: JsonReader) -> Variant:
    return Variant(
        part=record.one_of("part", get_args(ProgramRole)),
        bucket=None if record.get_any("bucket") is None else _bucket(record),
        directory=record.path("directory"),
        estimate_us=record.optional("estimate_us", record.number),
    )
