"""A decoder that is fuzzed: its inputs, how they are changed, and the property that holds for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

OctetMutation: TypeAlias = Callable[[bytes], bytes]
"""A mutation of bytes that knows no format; the fuzzer's own one is guided by comparisons in the code."""


@dataclass(frozen=True)
class Target:
    """One decoder."""

    seeds: Callable[[], Mapping[str, bytes]]
    """A function that makes well-formed inputs, by name."""
    mutate: Callable[[bytes, Random, OctetMutation], bytes]
    """A function that changes an input and keeps most of its form."""
    check: Callable[[bytes], None]
    """A function that decodes an input; it raises where the property does not hold, and nothing else."""
    decoders: Mapping[str, tuple[str, ...]]
    """The files of the package that decode it, each with its functions and classes that do something else."""
