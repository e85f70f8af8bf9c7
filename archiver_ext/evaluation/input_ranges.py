"""Ranges of the YAML at the inputs of an archive, whose manifest does not have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...bucketing.shapes import TensorSpec
from ...config.load import load_block
from ...handlers.runtime.loader import LoadedArchive
from ...inference.reader import STOCK_MANIFEST


def with_value_ranges(loaded: LoadedArchive, declared: Sequence[TensorSpec]) -> LoadedArchive:
    """Return the archive with the ranges of the declared inputs, in their order."""
    pairs = zip(loaded.manifest.inputs, declared, strict=True)
    inputs = tuple(replace(spec, value_range=own.value_range) for spec, own in pairs)
    return replace(loaded, manifest=replace(loaded.manifest, inputs=inputs))


def with_ranges_of_tree(loaded: LoadedArchive, tree: Path) -> LoadedArchive:
    """Return the archive with the ranges of the YAML in its folder, if it has one."""
    file = tree / STOCK_MANIFEST
    name = json.loads(file.read_text(encoding="utf-8"))["model"].get("configFile") if file.is_file() else None
    return loaded if name is None else with_value_ranges(loaded, load_block(tree / name).input_specs)
