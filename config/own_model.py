"""The description of a model that answers requests by its own code, as an archive carries it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Optional

from .json_codec import abbreviate, relative_path
from .manifest_values import duration, module_name, positive

Tree = Mapping[str, Any]
"""An argument of forward(), or a part of one: a mapping with one of the keys of `_KINDS`.

`{"input": 0}` is the tensor of the first input, `{"lengths": "tensor"}` the lengths[1], `{"mask": true}` the mask,
`{"constant": 3}` a value; `{"tuple": [...]}` and `{"fields": {...}}` hold other parts.
"""
_KINDS = frozenset(("input", "packed", "lengths", "mask", "constant", "tuple", "fields"))


def valid_tree(part: Tree) -> None:
    """Refuse an argument of another form.

    >>> valid_tree({"tuple": [{"input": 0}, {"constant": None}]})
    >>> valid_tree({"tuple": [{"inputs": 0}]})
    Traceback (most recent call last):
    ValueError: expected an argument of forward(), got {'inputs': 0}
    """
    if len(part) != 1 or not _KINDS.issuperset(part):
        raise ValueError(f"expected an argument of forward(), got {abbreviate(part)}")
    inner = part.get("tuple", part.get("fields", ()))
    for below in inner.values() if isinstance(inner, Mapping) else inner:
        valid_tree(below)


def proper_share(share: float) -> None:
    """Refuse a share that is not more than 0 and at most 1."""
    if not 0 < share <= 1:
        raise ValueError(f"expected a share of more than 0 and at most 1, got {share}")


class MaskForm(NamedTuple):
    """The form of the mask that forward() takes."""

    dtype: str
    value: int
    """1 if the timesteps are true, 0 if the padding is."""
    shape: tuple[int, ...]
    """The sizes; -1 for the number of timesteps."""


@dataclass(frozen=True)
class OwnModel:
    """Directions for a host: to make the model of the user's file, and to call it for one request."""

    file: Annotated[str, relative_path]
    """The model's file in the archive."""
    module: Optional[Annotated[str, module_name]]
    """The module that this file is; None: the file is a TorchScript program with its weights."""
    name: str
    """The class or function in it."""
    args: dict[str, Any]
    """Keyword arguments of the class, as in the YAML."""
    tuples: tuple[str, ...]
    """Those of them that the class takes as tuples."""
    method: Optional[str]
    """The method that answers; None: forward()."""
    batched: bool
    """Whether it takes tensors with a batch dimension."""
    arguments: dict[str, Annotated[dict[str, Any], valid_tree]]
    """The keyword arguments of a call."""
    mask: Optional[MaskForm]
    draws: bool
    """Whether it draws random numbers."""
    answers_padding: bool
    """Whether it answers a request of padding alone, with which a host tries it."""
    rewritten: tuple[str, ...]
    """Tensors that it writes into without a trace: they are put back after every request."""
    recurrences: Optional[Annotated[str, relative_path]]
    """The folder of the library that computes its recurrent layers; None: torch computes them."""
    imports_late: bool
    """Whether a file imports another one of the archive within a function, so that calls may import it."""
    reason: str
    """The reason why it is not lowered, for people: the refusal with its line, or the configuration."""


@dataclass(frozen=True)
class ShortSequences:
    """Sequences that are too short for the programs of a lowered model, which its own code answers."""

    shortest: Annotated[int, positive]
    """Timesteps of the shortest one."""
    milliseconds: Annotated[float, duration]
    """The time of one of them, as measured while packaging."""
    model: OwnModel


@dataclass(frozen=True)
class Shadow:
    """A comparison of a lowered model's answers with those of its own code, after they were sent."""

    share: Annotated[float, proper_share]
    """The share of the requests that is compared."""
    on_difference: Literal["log", "model"]
    """`model`: after the first difference, the worker lets the model's own code answer."""
    model: OwnModel
