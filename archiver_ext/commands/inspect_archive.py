"""What an archive says of itself: its manifest, out of any of the archive formats."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...config.manifest import FILE_NAME
from ..errors import PackagingError


def read_manifest_text(archive: Path) -> str:
    """The text of variants.json in a .mar, a .tar.gz or a folder.

    Raises:
        PackagingError: it is none of these, or was not packaged with the handler neuron_lstm.
    """
    if not archive.exists():
        raise PackagingError(f"there is no archive {archive}")
    try:
        return _read(archive).decode("utf-8")
    except (KeyError, FileNotFoundError) as error:
        raise PackagingError(f"{archive} has no {FILE_NAME}: it was not packaged with --handler neuron_lstm") from error


def _read(archive: Path) -> bytes:
    if archive.is_dir():
        return (archive / FILE_NAME).read_bytes()
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            return file.read(FILE_NAME)
    if tarfile.is_tarfile(archive):
        return _read_from_tar(archive)
    raise PackagingError(f"{archive} is no archive: expected a .mar, a .tar.gz or a folder")


def _read_from_tar(archive: Path) -> bytes:
    """All files of such an archive lie in one folder, which is named after the model."""
    with tarfile.open(archive) as file:
        names = [name for name in file.getnames() if name.partition("/")[2] == FILE_NAME]
        member = file.extractfile(names[0]) if names else None
        if member is None:
            raise KeyError(FILE_NAME)
        return member.read()


def print_manifest(manifest: Mapping[str, Any], console: Console) -> None:
    """Print the manifest of an archive as people read it."""
    errors = {_shape(check["bucket"]): f"{check['max_error']:.1e}" for check in manifest["checks"]}
    main = manifest["kind"]
    table = Table("program", "bucket", highlight=False)
    table.add_column("measured ms", justify="right")
    table.add_column("us a step", justify="right")
    table.add_column("max error", justify="right")
    for cost in manifest["costs"]:
        shape, milliseconds = _shape(cost["bucket"]), cost["milliseconds"]
        per_step = f"{1000 * milliseconds / cost['bucket']['length']:.1f}"
        error = errors.pop(shape, "") if cost["part"] == main else ""
        table.add_row(cost["part"], shape, f"{milliseconds:.3f}", per_step, error)
    for shape, error in errors.items():
        table.add_row(main, shape, "", "", error)
    for line in _facts(manifest):
        console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(table)


def _shape(bucket: Mapping[str, int]) -> str:
    return f"{bucket['batch']} x {bucket['length']}"


def _facts(manifest: Mapping[str, Any]) -> list[str]:
    needs = ", ".join(f"{need['distribution']} {need['version']}" for need in manifest["requires"])
    made = ", ".join(f"{name} {version}" for name, version in manifest["produced_by"].items())
    host = ", ".join(f"{name} {value}" for name, value in manifest["host"].items()) or "any machine"
    return [
        f"engine      {manifest['backend']}",
        f"precision   {manifest['precision']}, within {_allowed(manifest['tolerance'])} of the model in eager mode",
        f"host needs  {needs or 'nothing besides torch'}",
        f"host is     {host}",
        *(f"input       {_layout(spec)}" for spec in manifest["inputs"]),
        *(f"output      {_layout(spec)}" for spec in manifest["outputs"]),
        f"padding     {manifest['padding']}: {manifest['padding_reason']}",
        f"runs as     {manifest['kind']}: {manifest['kind_reason']}",
        *(f"carried     {_layout(value['spec'])}" for value in manifest["carried"]),
        f"shapes      {'any' if manifest['shapes'] == 'any' else 'the buckets'}, up to {manifest['longest']} timesteps",
        f"overflow    {manifest['overflow']}",
        f"made by     {made}",
    ]


def _allowed(tolerance: Mapping[str, float]) -> str:
    return f"{tolerance['atol']:g} + {tolerance['rtol']:g} x |eager|"


def _layout(spec: Mapping[str, Any]) -> str:
    return f"{spec['name']}: {spec['dtype']}[{', '.join(map(str, spec['shape']))}]"
