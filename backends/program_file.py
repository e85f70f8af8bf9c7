"""Which dimension of an exported program's inputs is time, also after it has been in a file.

torch gives batch and time symbols of its own naming, and its files forget the names that they had. A program with a
recurrence shows which is time; one without does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

_MARK = "neuron_lstm_time"
_EXTRA = "time.json"


def mark_time(program: torch.export.ExportedProgram, dims: Mapping[str, int]) -> None:
    """Note in the program which dimension of which input is time, by the inputs' names in it."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in dims:
            node.meta[_MARK] = dims[node.name]


def time_dims(program: torch.export.ExportedProgram) -> dict[str, int]:
    """What `mark_time` noted."""
    return {node.name: node.meta[_MARK] for node in program.graph.nodes if _MARK in node.meta}


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """torch.export.save, with the notes."""
    torch.export.save(program, path, extra_files={_EXTRA: json.dumps(time_dims(program))})


def load_program(path: Path) -> torch.export.ExportedProgram:
    """The way back; files without notes have none."""
    extra: dict[str, str] = {_EXTRA: ""}
    program: torch.export.ExportedProgram = torch.export.load(path, extra_files=extra)
    mark_time(program, json.loads(extra[_EXTRA] or "{}"))
    return program
