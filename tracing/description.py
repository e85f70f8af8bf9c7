"""Description of a traced function: everything but its programs and tensors."""

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
from ..config.json_codec import NO_OTHER_KEYS
from .longest_length import LongestLength


class TempDirectory:
    """A private directory that is removed with this object, or at the end of the process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="traced-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork has a copy of the object, but the directory belongs to its parent
        shutil.rmtree(path, ignore_errors=True)


FORMAT = 1

WEIGHT, CONSTANT = "weights/", "constants/"
"""Beginnings of the keys of tensors: of the state dict, which can be replaced, and of the code."""


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
    longest: LongestLength | None = None
    """Length that a call's longest sequence must have; its index is that among all inputs, states included."""


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
    no_batch: str | None = None
    """Reason why dimension 0 is no batch dimension; None if it is one."""
    any_batch: bool = False
    """Whether calls take any number of rows."""
    kernel: str | None = None
    """Serialised bucket kernel; None for a trace of one program."""
    preprocessor: str | None = None
    """Serialised preprocessor of the shared state."""


_EXACTLY: Any = Annotated[TraceDescription, NO_OTHER_KEYS]


def to_json(description: TraceDescription) -> str:
    """Convert a description to text."""
    return json.dumps({"format": FORMAT, **json_codec.to_json(TraceDescription, description)})


def from_json(text: str) -> TraceDescription:
    """Convert the text of `to_json` back. Raises `LoadError`: it is damaged or has another format."""
    try:
        written = json_codec.parse_json(text)
        if written.pop("format") != FORMAT:
            raise LoadError(f"the traced file is not of format {FORMAT}: trace the function again with this version")
        description: TraceDescription = json_codec.from_json(_EXACTLY, written)
        for spec in (description.in_tree, description.out_tree):
            pytree.treespec_loads(spec)
    # torch raises NotImplementedError for a structure that another version serialised.
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
        raise LoadError(f"the description in the traced file is damaged ({error}): trace the function again") from error
    return description
