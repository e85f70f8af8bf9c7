"""Writing of variants.json, the manifest of an archive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from .json_codec import to_json
from .manifest import FILE_NAME, FORMAT, Manifest, ManifestError, parse_manifest


def manifest_text(manifest: Manifest) -> str:
    """Return the text of variants.json. Equal manifests have equal texts.

    Raises `ManifestError`: a number is not finite, or `read_manifest` would refuse the text.
    """
    try:
        host, producers = (dict(sorted(one.items())) for one in (manifest.host, manifest.produced_by))
        written = {"format": FORMAT, **to_json(Manifest, replace(manifest, host=host, produced_by=producers))}
        text = json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        text.encode()
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest cannot be written: {error}") from error
    parse_manifest(text)
    return text


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Write variants.json into the archive's root. Raises `ManifestError`: as `manifest_text`."""
    (directory / FILE_NAME).write_text(manifest_text(manifest), encoding="utf-8")
