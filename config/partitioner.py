"""How a program is divided between an engine and the CPU: six options and what each may be."""

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
"""Of `min_subgraph_size` and `max_subgraph_count`: there is no such limit."""

_ARGUMENTS = "trace_kwargs: compiler_args"
_OPERATOR = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class PartitionerConfig:
    """The options of the partitioner, by keyword alone.

    >>> PartitionerConfig(min_subgraph_size=0)
    Traceback (most recent call last):
    ValueError: min_subgraph_size: expected -1 (no limit) or 1 or more, got 0

    Raises:
        ValueError: an option is not what it may be; names the option.
    """

    trace_kwargs: Mapping[str, Any] | None = None
    """For the compiler of the engine's segments: `compiler_workdir`, `compiler_args` (a text or a list of texts)."""
    model_support_percentage_threshold: float = 0.5
    """From 0 to 1: of the program's operators the engine must take at least so many."""
    min_subgraph_size: int = UNLIMITED
    """Every segment must have at least so many operators."""
    max_subgraph_count: int = UNLIMITED
    """There must be at most so many segments, those on the CPU included."""
    ops_to_partition: Collection[str] | None = None
    """Operators that stay on the CPU whatever the engine takes, as in {"aten::sort"}."""
    analyze_parameters: Mapping[str, Any] | None = None
    """For finding out what the engine takes: `compiler_workdir`, `additional_ignored_ops` (operators that are not asked
    about: they count neither way and stay with the engine), `max_workers`."""

    def __post_init__(self) -> None:
        _check_share(self.model_support_percentage_threshold)
        for name in ("min_subgraph_size", "max_subgraph_count"):
            _check_limit(name, getattr(self, name))
        _check_operators("ops_to_partition", self.ops_to_partition)
        _check_keys("trace_kwargs", self.trace_kwargs, TRACE_KWARGS)
        _check_keys("analyze_parameters", self.analyze_parameters, ANALYZE_PARAMETERS)
        _check_operators("analyze_parameters: additional_ignored_ops", self._analyze("additional_ignored_ops"))
        if type(self.max_workers) is not int or self.max_workers < 1:
            raise ValueError(f"analyze_parameters: max_workers: expected 1 or more, got {self.max_workers!r}")
        _check_arguments((self.trace_kwargs or {}).get("compiler_args"))

    def _analyze(self, name: str) -> Any:
        return (self.analyze_parameters or {}).get(name)

    @property
    def on_cpu(self) -> frozenset[str]:
        """Operators that are the CPU's."""
        return frozenset(self.ops_to_partition or ())

    @property
    def ignored(self) -> frozenset[str]:
        """Operators that the engine is not asked about."""
        return frozenset(self._analyze("additional_ignored_ops") or ())

    @property
    def max_workers(self) -> int:
        """How many operators are tried at once, where they are tried: each in a process where that is more than one."""
        given = self._analyze("max_workers")
        return 1 if given is None else given

    @property
    def analyze_workdir(self) -> Path | None:
        """Where an engine that is asked by trying leaves what it compiles."""
        given = self._analyze("compiler_workdir")
        return None if given is None else Path(given)

    @property
    def compiler_workdir(self) -> Path | None:
        """Where the compiler of the segments leaves what it writes; None: where it does in any case."""
        given = (self.trace_kwargs or {}).get("compiler_workdir")
        return None if given is None else Path(given)

    @property
    def compiler_args(self) -> tuple[str, ...] | None:
        """Arguments of the compiler of the segments; None: those that it has in any case."""
        given = (self.trace_kwargs or {}).get("compiler_args")
        return None if given is None else tuple(shell_words(given, _ARGUMENTS) if isinstance(given, str) else given)


def shell_words(text: str, name: str) -> tuple[str, ...]:
    """Cut a text into arguments as a shell does.

    >>> shell_words("--target 'inf2 x'", "compiler_args")
    ('--target', 'inf2 x')

    Raises:
        ValueError: a quotation is open; begins with `name`.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"{name}: expected arguments as a shell takes them, got {text!r}: {error}") from error


def _check_share(share: object) -> None:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"model_support_percentage_threshold: expected a number from 0 to 1, got {share!r}")


def _check_limit(name: str, limit: object) -> None:
    if type(limit) is not int or (limit < 1 and limit != UNLIMITED):
        raise ValueError(f"{name}: expected {UNLIMITED} (no limit) or 1 or more, got {limit!r}")


def _check_operators(name: str, operators: object) -> None:
    if operators is None:
        return
    if isinstance(operators, str | Mapping) or not isinstance(operators, Collection):
        raise ValueError(  # noqa: TRY004 - every wrong option is a ValueError
            f'{name}: expected a set of operators as in {{"aten::sort"}}, got {operators!r}'
        )
    for operator in operators:
        if not isinstance(operator, str) or not _OPERATOR.fullmatch(operator):
            raise ValueError(f"{name}: expected an operator as in aten::sort, got {operator!r}")


def _check_keys(name: str, given: object, known: Collection[str]) -> None:
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ValueError(  # noqa: TRY004 - every wrong option is a ValueError
            f"{name}: expected a dict with any of {', '.join(known)}, got {given!r}"
        )
    for key in given:
        if key not in known:
            raise ValueError(f"{name}: {key!r} is not taken here, but {', '.join(known)}")


def _check_arguments(arguments: object) -> None:
    if arguments is None:
        return
    if isinstance(arguments, str):
        shell_words(arguments, _ARGUMENTS)
    elif not isinstance(arguments, list | tuple) or not all(isinstance(one, str) for one in arguments):
        raise ValueError(f"{_ARGUMENTS}: expected a text or a list of texts, got {arguments!r}")
