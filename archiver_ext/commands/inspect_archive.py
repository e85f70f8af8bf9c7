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
    table = Table("bucket", highlight=False)
    table.add_column("max error", justify="right")
    table.add_column("measured ms", justify="right")
    for variant in manifest["variants"]:
        bucket = variant["bucket"]
        table.add_row(
            f"{bucket['batch']} x {bucket['length']}", f"{variant['max_error']:.1e}", f"{variant['milliseconds']:.3f}"
        )
    for line in _facts(manifest):
        console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(table)


def _facts(manifest: Mapping[str, Any]) -> list[str]:
    needs = ", ".join(f"{need['distribution']} {need['version']}" for need in manifest["requires"])
    made = ", ".join(f"{name} {version}" for name, version in manifest["produced_by"].items())
    host = ", ".join(f"{name} {value}" for name, value in manifest["host"].items()) or "any"
    return [
        f"engine      {manifest['backend']}",
        f"host needs  {needs or 'nothing besides torch'}",
        f"host kind   {host}",
        *(f"input       {_layout(spec)}" for spec in manifest["inputs"]),
        *(f"output      {_layout(spec)}" for spec in manifest["outputs"]),
        f"padding     {manifest['padding']}: {manifest['padding_reason']}",
        f"overflow    {manifest['overflow']}",
        f"made by     {made}",
    ]


def _layout(spec: Mapping[str, Any]) -> str:
    return f"{spec['name']}: {spec['dtype']}[{', '.join(map(str, spec['shape']))}]"
