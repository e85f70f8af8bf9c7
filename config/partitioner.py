"""Options for dividing a program between a backend and the CPU, and the values they may have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACE_KWARGS = ("compiler_workdir", "compiler_args")
ANALYZE_PARAMETERS = ("compiler_workdir", "additional_ignored_ops", "max_workers")
UNLIMITED = -1
"""No limit, as `min_subgraph_size` or `max_subgraph_count`."""
OPERATOR_PATTERN = r"[A-Za-z_]\w*::[A-Za-z_]\w*"


@dataclass(frozen=True, kw_only=True)
class PartitionerConfig:
    """Options for dividing a program between a backend and the CPU, by keyword only.

    >>> PartitionerConfig(min_subgraph_size=0)
    Traceback (most recent call last):
    ValueError: min_subgraph_size: expected -1 (no limit) or 1 or more, got 0

    Raises `ValueError`: an option is wrong; begins with its name.
    """

    trace_kwargs: Mapping[str, Any] | None = None
    """Options for the compiler of the backend's segments.

    They are `compiler_workdir` and `compiler_args` (a string or a list).
    """
    model_support_percentage_threshold: float = 0.5
    """The least share of the program's operators that the backend must support, from 0 to 1."""
    min_subgraph_size: int = UNLIMITED
    """The least number of operators in a segment."""
    max_subgraph_count: int = UNLIMITED
    """The largest number of segments, those on the CPU included."""
    ops_to_partition: Collection[str] | None = None
    """Operators that run on the CPU even if the backend supports them, as in {"aten::sort"}."""
    analyze_parameters: Mapping[str, Any] | None = None
    """Options for the operator query.

    They are `compiler_workdir`, `max_workers`, and `additional_ignored_ops`: operators that are not queried; they do
    not count, and run on the backend.
    """

    def __post_init__(self) -> None:
        _check_share(self.model_support_percentage_threshold)
        for name in ("min_subgraph_size", "max_subgraph_count"):
            check_limit(getattr(self, name), name)
        _check_operators("ops_to_partition", self.ops_to_partition)
        _check_keys("trace_kwargs", self.trace_kwargs, TRACE_KWARGS)
        _check_keys("analyze_parameters", self.analyze_parameters, ANALYZE_PARAMETERS)
        _check_operators("analyze_parameters: additional_ignored_ops", self._analyze("additional_ignored_ops"))
        if type(self.max_workers) is not int or self.max_workers < 1:
            raise ValueError(f"analyze_parameters: max_workers: expected 1 or more, got {self.max_workers!r}")
        _ = self.compiler_args

    def _analyze(self, name: str) -> Any:
        return (self.analyze_parameters or {}).get(name)

    @property
    def on_cpu(self) -> frozenset[str]:
        """Operators that run on the CPU whatever the backend supports."""
        return frozenset(self.ops_to_partition or ())

    @property
    def ignored(self) -> frozenset[str]:
        """Operators that the backend is not queried about."""
        return frozenset(self._analyze("additional_ignored_ops") or ())

    @property
    def max_workers(self) -> int:
        """Number of operators that are probed by compiling at a time.

        Above 1, each compilation has a separate process.
        """
        given = self._analyze("max_workers")
        return 1 if given is None else given

    @property
    def analyze_workdir(self) -> Path | None:
        """Directory of what is compiled to probe operators."""
        given = self._analyze("compiler_workdir")
        return None if given is None else Path(given)

    @property
    def compiler_workdir(self) -> Path | None:
        """Directory of the segments' compiler; None: the one of the whole program."""
        given = (self.trace_kwargs or {}).get("compiler_workdir")
        return None if given is None else Path(given)

    @property
    def compiler_args(self) -> tuple[str, ...] | None:
        """Arguments of the segments' compiler; None: those of the whole program."""
        given = (self.trace_kwargs or {}).get("compiler_args")
        return None if given is None else compiler_arguments(given, "trace_kwargs: compiler_args")


def compiler_arguments(given: object, option: str = "") -> tuple[str, ...]:
    """Convert a compiler's arguments to a tuple: a list is kept, a string is split as by a shell.

    >>> compiler_arguments("--target 'inf2 x'"), compiler_arguments(["--target", "trn1"])
    (('--target', 'inf2 x'), ('--target', 'trn1'))

    Raises `ValueError`: they are neither, or a quotation is open; begins with `option`.
    """
    if isinstance(given, list | tuple) and all(isinstance(word, str) for word in given):
        return tuple(given)
    if not isinstance(given, str):
        expected = "expected a text or a list of texts, as in [--target, trn1]"
        raise ValueError(f"{_prefix(option)}{expected}, got {_shown(given)}")  # noqa: TRY004 - as every wrong option
    try:
        return tuple(shlex.split(given))
    except ValueError as error:
        expected = f"expected arguments as a shell takes them, got {_shown(given)}"
        raise ValueError(f"{_prefix(option)}{expected}: {error}") from error


def check_limit(limit: object, option: str = "") -> int:
    """Refuse what is neither a positive number nor `UNLIMITED`. Raises `ValueError`: begins with `option`."""
    if type(limit) is not int or (limit < 1 and limit != UNLIMITED):
        raise ValueError(f"{_prefix(option)}expected {UNLIMITED} (no limit) or 1 or more, got {_shown(limit)}")
    return limit


def check_operator(name: object, option: str = "") -> str:
    """Refuse what is not an operator's name. Raises `ValueError`: begins with `option`."""
    if not isinstance(name, str) or not re.fullmatch(OPERATOR_PATTERN, name):
        raise ValueError(f"{_prefix(option)}expected an operator as in aten::sort, got {_shown(name)}")
    return name


def _check_share(share: object) -> None:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"model_support_percentage_threshold: expected a number from 0 to 1, got {share!r}")


def _check_operators(name: str, operators: object) -> None:
    if operators is None:
        return
    if isinstance(operators, str | Mapping) or not isinstance(operators, Collection):
        raise ValueError(  # noqa: TRY004 - every wrong option is a ValueError
            f'{name}: expected a set of operators as in {{"aten::sort"}}, got {operators!r}'
        )
    for operator in operators:
        check_operator(operator, name)


def _check_keys(name: str, given: object, known: Collection[str]) -> None:
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ValueError(  # noqa: TRY004 - every wrong option is a ValueError
            f"{name}: expected a dict with any of {', '.join(known)}, got {given!r}"
        )
    for key in given:
        if key not in known:
            raise ValueError(f"{name}: {key!r} is not a key here: expected one of {', '.join(known)}")


def _prefix(option: str) -> str:
    return f"{option}: " if option else ""


def _shown(value: object) -> str:
    return repr(value)[:60]
