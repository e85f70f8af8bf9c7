"""variants.json: what packaging wrote down and serving reads back. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar, cast, get_args

from ..bucketing.grid import Bucket, BucketGrid
from ..bucketing.spec import Axis, DType, TensorSpec

FORMAT = 1
FILE_NAME = "variants.json"

Value = TypeVar("Value")


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


class ManifestError(RuntimeError):
    """An archive that must not be served: says which file, what is wrong with it, and what to do.

    A RuntimeError, because TorchServe reports no other kind while it loads a model.
    """


_NOT_DIGESTED = frozenset({FILE_NAME, "MAR-INF/MANIFEST.json"})
_MEND = "package the model again"
_DISTRIBUTION = "torchserve-neuron-lstm"
_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Write variants.json into the archive's root. Equal manifests give equal bytes.

    Raises:
        ManifestError: a number in it is not finite, or it holds what `read_manifest` would refuse.
    """
    try:
        text = json.dumps(_as_json(manifest), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        data = text.encode()
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest cannot be written: {error}") from error
    _parse(text)
    (directory / FILE_NAME).write_bytes(data)


def read_manifest(directory: Path) -> Manifest:
    """Read and check variants.json in the archive's root.

    Raises:
        ManifestError: it is missing, malformed, of another format, or names files outside the archive.
    """
    path = directory / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read ({error}): {_MEND}") from error
    return _parse(text)


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
        path = directory / _inside(name, "files")
        if not path.is_file():
            complaints.append(f"{name} is missing")
        elif _sha256(path) != digest:
            complaints.append(f"{name} was changed")
    if complaints:
        raise ManifestError(f"the archive is not as it was packaged: {', '.join(complaints)}; {_MEND}")


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
        "grid": asdict(manifest.grid),
        "variants": [asdict(variant) | {"bucket": variant.bucket._asdict()} for variant in manifest.variants],
        "weights": manifest.weights,
        "constants": manifest.constants,
        "codec": manifest.codec,
        "threads": manifest.threads,
        "precision": manifest.precision,
        "tolerance": {"atol": manifest.tolerance[0], "rtol": manifest.tolerance[1]},
        "produced_by": dict(sorted(manifest.produced_by.items())),
        "files": dict(sorted(manifest.files.items())),
    }


def _parse(text: str) -> Manifest:
    try:
        written = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{FILE_NAME} is not JSON ({error}): {_MEND}") from error
    record = _Record(written, "")
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
        grid=_grid(record.inner("grid")),
        variants=tuple(_variant(entry) for entry in record.each("variants")),
        weights=record.optional("weights", record.path),
        constants=record.optional("constants", record.path),
        codec=record.optional("codec", record.text),
        threads=record.optional("threads", record.whole),
        precision=record.text("precision"),
        tolerance=(record.inner("tolerance").number("atol"), record.inner("tolerance").number("rtol")),
        produced_by=record.texts("produced_by"),
        files=record.texts("files"),
    )
    _check_whole(manifest)
    return manifest


def _check_format(record: _Record) -> None:
    found = record.whole("format")
    if found != FORMAT:
        makers = record.values.get("produced_by")
        version = makers.get(_DISTRIBUTION) if isinstance(makers, dict) else None
        writer = f"{_DISTRIBUTION} {version}" if isinstance(version, str) else f"another version of {_DISTRIBUTION}"
        raise ManifestError(
            f"{FILE_NAME} has format {found}, and this code reads format {FORMAT}: serve the archive with {writer}, "
            f"which wrote it, or {_MEND} with the version that is installed here"
        )


def _check_whole(manifest: Manifest) -> None:
    """What no single value shows."""
    for name in manifest.files:
        _inside(name, "files")
    shapes = [variant.bucket for variant in manifest.variants]
    strange = [bucket for bucket in shapes if bucket not in manifest.grid.buckets or shapes.count(bucket) > 1]
    if strange:
        raise _wrong("variants", "each bucket of the grid once at most", list(strange[0]))
    if not shapes:
        raise _wrong("variants", "one or more", [])


def _spec(record: _Record) -> TensorSpec:
    return TensorSpec(
        name=record.text("name"),
        dtype=record.one_of("dtype", get_args(DType)),
        shape=_shape(record),
        pad_value=record.number("pad_value"),
        vocabulary=record.optional("vocabulary", record.whole),
    )


def _shape(record: _Record) -> tuple[int | Axis, ...]:
    shape = record.get("shape", list)
    for size in shape:
        if size not in get_args(Axis) and not (type(size) is int and size >= 0):
            raise _wrong(f"{record.at}shape", "batch, time and sizes", size)
    if shape.count("batch") > 1:  # time may stand there twice: an attention map
        raise _wrong(f"{record.at}shape", "batch once at most", shape)
    return tuple(shape)


def _grid(record: _Record) -> BucketGrid:
    batches, lengths = (tuple(record.get(key, list)) for key in ("batches", "lengths"))
    if not all(type(size) is int for size in (*batches, *lengths)):
        raise _wrong("grid", "whole numbers", record.values)
    try:
        return BucketGrid(batches, lengths)
    except ValueError as error:
        raise ManifestError(f"{FILE_NAME}: grid: {error}; {_MEND}") from error


def _variant(record: _Record) -> Variant:
    bucket = record.inner("bucket")
    return Variant(
        bucket=Bucket(bucket.whole("batch"), bucket.whole("length")),
        directory=record.path("directory"),
        milliseconds=record.number("milliseconds"),
        max_error=record.number("max_error"),
    )


@dataclass(frozen=True)
class _Record:
    """A JSON object whose values are asked for by type; a value of another type is refused by name."""

    values: Any
    at: str

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict):
            raise _wrong(self.at.rstrip(".") or "the whole", "an object", self.values)

    def get(self, key: str, kind: type[Value]) -> Value:
        if key not in self.values:
            raise ManifestError(f"{FILE_NAME}: {self.at}{key} is missing: {_MEND}")
        value = self.values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _wrong(f"{self.at}{key}", _KINDS[kind], value)
        return value

    def text(self, key: str) -> str:
        return self.get(key, str)

    def whole(self, key: str) -> int:
        return self.get(key, int)

    def number(self, key: str) -> float:
        return self.get(key, int if type(self.values.get(key)) is int else float)

    def one_of(self, key: str, allowed: tuple[Value, ...]) -> Value:
        value: Any = self.text(key)
        if value not in allowed:
            raise _wrong(f"{self.at}{key}", " or ".join(map(str, allowed)), value)
        return cast(Value, value)

    def path(self, key: str) -> str:
        return _inside(self.text(key), f"{self.at}{key}")

    def optional(self, key: str, read: Callable[[str], Value]) -> Value | None:
        return None if key in self.values and self.values[key] is None else read(key)

    def texts(self, key: str) -> dict[str, str]:
        inner = self.inner(key)
        return {name: inner.text(name) for name in inner.values}

    def inner(self, key: str) -> _Record:
        return _Record(self.get(key, dict), f"{self.at}{key}.")

    def each(self, key: str) -> Iterator[_Record]:
        for index, value in enumerate(self.get(key, list)):
            yield _Record(value, f"{self.at}{key}[{index}].")


def _inside(name: str, where: str) -> str:
    """A path that stays below the archive's root, as it is.

    >>> _inside("programs/eager/any", "directory")
    'programs/eager/any'
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == "." or set(name) & set("\\:\0"):
        raise _wrong(where, "a path below the archive's root", name)
    return name


def _wrong(where: str, expected: str, got: Any) -> ManifestError:
    return ManifestError(f"{FILE_NAME}: {where}: expected {expected}, got {repr(got)[:60]}; {_MEND}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice")
    return values


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
