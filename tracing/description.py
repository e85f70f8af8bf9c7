"""What a traced function says of itself: everything about it but its programs and its tensors."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from torch.utils import _pytree as pytree

from ..backends.interface import LoadError
from ..backends.signature import Signature
from ..config import json_codec
from ..config.json_codec import NO_OTHER_KEYS, Key


class TempDirectory:
    """A private directory that goes when nobody holds this any more, or the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="traced-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork has a copy of the object, but the directory is its parent's
        shutil.rmtree(path, ignore_errors=True)


FORMAT = 1

_WEIGHT, _CONSTANT = "weights/", "constants/"


@dataclass(frozen=True)
class TracedProgram:
    """One compiled program: the whole trace, or that of one bucket."""

    directory: str
    """Where it lies in the directory of the trace."""
    signature: Signature
    """All it takes, states included, in order."""
    weight_keys: Annotated[Mapping[str, str], Key("stored")]
    """For each weight by the program's name, where it is among all tensors of the trace: `weights/NAME` or, where
    buckets differ in it, `weights/NAME@BUCKET`; what was lifted out of code below `constants/`."""


@dataclass(frozen=True)
class TraceDescription:
    """The description that is saved."""

    backend: str
    host: Mapping[str, str]
    programs: tuple[TracedProgram, ...]
    in_tree: Annotated[str, Key("takes")]
    """The arguments of a call, without states, as pytree writes it."""
    out_tree: Annotated[str, Key("gives")]
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


_EXACTLY: Any = Annotated[TraceDescription, NO_OTHER_KEYS]


def weight_key(name: str, is_constant: bool) -> str:
    """Where a tensor is kept."""
    return (_CONSTANT if is_constant else _WEIGHT) + name


def is_weight(key: str) -> bool:
    """Whether a tensor came from the state dict, so that another may take its place."""
    return key.startswith(_WEIGHT)


def to_json(description: TraceDescription) -> str:
    """Convert a description to text."""
    return json.dumps({"format": FORMAT, **json_codec.to_json(TraceDescription, description)})


def from_json(text: str) -> TraceDescription:
    """Convert the text of `to_json` back.

    Raises:
        LoadError: it is damaged or of another format.
    """
    try:
        written = json_codec.parse_json(text)
        if written.pop("format") != FORMAT:
            raise LoadError(f"the traced file is not of format {FORMAT}: trace the function again with this version")
        description: TraceDescription = json_codec.from_json(_EXACTLY, written)
        for spec in (description.in_tree, description.out_tree):
            pytree.treespec_loads(spec)
    # NotImplementedError is what torch raises of a structure that was written in another way than it knows.
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
        raise LoadError(f"the description in the traced file is damaged ({error}): trace the function again") from error
    return description
