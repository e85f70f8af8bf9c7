"""Description of a traced function: everything but its programs and tensors."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.utils import _pytree as pytree

from ..backends.interface import LoadError
from ..backends.signature import Signature, TensorType


class TempDirectory:
    """A private directory that is removed with this object, or at the end of the process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="traced-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork has a copy of the object, but the directory belongs to its parent
        shutil.rmtree(path, ignore_errors=True)


FORMAT = 1
_KEYS = {"in_tree": "takes", "out_tree": "gives"}
"""Fields that have another name in the file."""

_WEIGHT, _CONSTANT = "weights/", "constants/"


@dataclass(frozen=True)
class TracedProgram:
    """One compiled program: the whole trace, or that of one bucket."""

    directory: str
    """Path in the directory of the trace."""
    signature: Signature
    """All inputs, states included, in order."""
    weight_keys: Mapping[str, str]
    """Key of each weight among the tensors of the trace.

    `weights/NAME`, or `weights/NAME@BUCKET` if buckets differ in it; constants of the code are below `constants/`.
    """


@dataclass(frozen=True)
class TraceDescription:
    """The description of a trace, as saved in its file."""

    backend: str
    host: Mapping[str, str]
    programs: tuple[TracedProgram, ...]
    in_tree: str
    """Structure of a call's arguments, without states, as serialised by pytree."""
    out_tree: str
    """Structure of the outputs, without states."""
    aliases: tuple[tuple[int, int], ...]
    """Indices of each state among the inputs, and of its next value among the outputs."""
    separate_weights: bool
    no_batch: str | None
    """Reason why dimension 0 is no batch dimension; None if it is one."""
    any_batch: bool = False
    """Whether calls take any number of rows."""
    kernel: str | None = None
    """Serialised bucket kernel; None for a trace of one program."""
    preprocessor: str | None = None
    """Serialised preprocessor of the shared state."""


def weight_key(name: str, is_constant: bool) -> str:
    """Return the key of a tensor among the tensors of a trace."""
    return (_CONSTANT if is_constant else _WEIGHT) + name


def is_weight(key: str) -> bool:
    """Whether a tensor is from the state dict, and so can be replaced."""
    return key.startswith(_WEIGHT)


def to_json(description: TraceDescription) -> str:
    """Serialise a description."""
    written = asdict(description)
    for field, key in _KEYS.items():
        written[key] = written.pop(field)
    for program in written["programs"]:
        program["stored"] = program.pop("weight_keys")
    return json.dumps({"format": FORMAT, **written})


def from_json(text: str) -> TraceDescription:
    """Read a serialised description.

    Raises:
        LoadError: it is damaged or has another format.
    """
    try:
        written = json.loads(text)
        if written.pop("format") != FORMAT:
            raise LoadError(f"the traced file is not of format {FORMAT}: trace the function again with this version")
        programs = tuple(_compiled(entry) for entry in written.pop("programs"))
        written |= {field: written.pop(key) for field, key in _KEYS.items()}
        aliases = tuple((int(state), int(output)) for state, output in written.pop("aliases"))
        description = TraceDescription(**written, programs=programs, aliases=aliases)
        for spec in (description.in_tree, description.out_tree):
            pytree.treespec_loads(spec)
    # torch raises NotImplementedError for a structure that another version serialised.
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
        raise LoadError(f"the description in the traced file is damaged ({error}): trace the function again") from error
    return description


def _compiled(entry: Mapping[str, Any]) -> TracedProgram:
    signature = Signature(_types(entry["signature"]["inputs"]), _types(entry["signature"]["weights"]))
    return TracedProgram(entry["directory"], signature, dict(entry["stored"]))


def _types(written: Mapping[str, Mapping[str, Any]]) -> dict[str, TensorType]:
    return {name: TensorType(entry["dtype"], tuple(entry["shape"])) for name, entry in written.items()}
