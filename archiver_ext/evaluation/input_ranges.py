"""Ranges of the YAML at the inputs of an archive, whose manifest does not have them, and inputs that need a range.

These are the lengths of recurrences, beside the lengths of requests. `pack_padded_sequence` fails on a length that is
no number of timesteps, and a program would compute something. So requests are checked against the declared range.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch.fx import Node

from ...backends.recurrent_operators import is_recurrent
from ...bucketing.shapes import TensorSpec
from ...config.load import load_block
from ...handlers.runtime.loader import LoadedArchive
from ...inference.reader import STOCK_MANIFEST
from ...lowering.program import LoweredModel


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


_SAME_VALUES = frozenset(
    f"aten.{name}"
    for name in (
        "_to_copy.default",
        "alias.default",
        "clone.default",
        "contiguous.default",
        "flatten.using_ints",
        "reshape.default",
        "to.dtype",
        "to.dtype_layout",
        "view.default",
    )
)
"""Operators that keep all values of a tensor of whole numbers."""


def length_inputs(program: LoweredModel) -> frozenset[str]:
    """Return the names of the declared inputs by which a recurrence stops its rows."""
    placeholders = program.exported.graph_signature.user_inputs
    names = dict(zip(map(str, placeholders), (spec.name for spec in program.inputs), strict=False))
    calls = (node for node in program.exported.graph.nodes if is_recurrent(node.target))
    sources = {_source(call.args[1]).name for call in calls if isinstance(call.args[1], Node)}
    return frozenset(names[source] for source in sources if source in names)


def _source(node: Node) -> Node:
    """The node that a chain of operators takes its values from."""
    while str(node.target) in _SAME_VALUES and isinstance(node.args[0], Node):
        node = node.args[0]
    return node
