"""What a traced function says of itself: everything about it but its programs and its tensors."""

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
    """A private directory that goes when nobody holds this any more, or the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="traced-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork has a copy of the object, but the directory is its parent's
        shutil.rmtree(path, ignore_errors=True)


FORMAT = 1
_KEYS = {"in_tree": "takes", "out_tree": "gives"}
"""Fields that have another name in the file."""

_WEIGHT, _CONSTANT = "weights/", "constants/"


@dataclass(frozen=True)
class TracedProgram:
    """One compiled program: the whole trace, or that of one bucket."""

    directory: str
    """Where it lies in the directory of the trace."""
    signature: Signature
    """All it takes, states included, in order."""
    weight_keys: Mapping[str, str]
    """For each weight by the program's name, where it is among all tensors of the trace: `weights/NAME` or, where
    buckets differ in it, `weights/NAME@BUCKET`; what was lifted out of code below `constants/`."""


@dataclass(frozen=True)
class TraceDescription:
    """The description that is saved."""

    backend: str
    host: Mapping[str, str]
    programs: tuple[TracedProgram, ...]
    in_tree: str
    """The arguments of a call, without states, as pytree writes it."""
    out_tree: str
    """The answers, without states."""
    aliases: tuple[tuple[int, int], ...]
    """For each state, its place among the inputs and the place of its next value among the outputs."""
    separate_weights: bool
    no_batch: str | None
    """Why calls cannot be cut along dimension 0."""
    any_batch: bool = False
    """Whether calls are cut."""
    kernel: str | None = None
    """How the bucket kernel is found again; None where there is one program without a choice."""
    preprocessor: str | None = None
    """The same for what shapes the shared state."""


def weight_key(name: str, is_constant: bool) -> str:
    """Where a tensor is kept."""
    return (_CONSTANT if is_constant else _WEIGHT) + name


def is_weight(key: str) -> bool:
    """Whether a tensor came from the state dict, so that another may take its place."""
    return key.startswith(_WEIGHT)


def to_json(description: TraceDescription) -> str:
    """As text."""
    written = asdict(description)
    for field, key in _KEYS.items():
        written[key] = written.pop(field)
    for program in written["programs"]:
        program["stored"] = program.pop("weight_keys")
    return json.dumps({"format": FORMAT, **written})


def from_json(text: str) -> TraceDescription:
    """The way back.

    Raises:
        LoadError: it is damaged or of another format.
    """
    try:
        written = json.loads(text)
        if written.pop("format") != FORMAT:
            raise LoadError(f"the traced file is not of format {FORMAT}: trace the function again with this version")
        programs = tuple(_compiled(entry) for entry in written.pop("programs"))
        written |= {field: written.pop(key) for field, key in _KEYS.items()}
        aliases = tuple((int(state), int(answer)) for state, answer in written.pop("aliases"))
        description = TraceDescription(**written, programs=programs, aliases=aliases)
        for spec in (description.in_tree, description.out_tree):
            pytree.treespec_loads(spec)
    # NotImplementedError is what torch raises of a structure that was written in another way than it knows.
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
        raise LoadError(f"the description in the traced file is damaged ({error}): trace the function again") from error
    return description


def _compiled(entry: Mapping[str, Any]) -> TracedProgram:
    signature = Signature(_types(entry["signature"]["inputs"]), _types(entry["signature"]["weights"]))
    return TracedProgram(entry["directory"], signature, dict(entry["stored"]))


def _types(written: Mapping[str, Mapping[str, Any]]) -> dict[str, TensorType]:
    return {name: TensorType(entry["dtype"], tuple(entry["shape"])) for name, entry in written.items()}
