"""Options of a backend's compiler, and for dividing a program between it and the CPU, in the YAML and in Python."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationError, WithJsonSchema

from .diagnostics import format_path
from .fields import PathText, PositiveInt
from .strict import Strict, tuple_from_list

_OPERATOR = r"[A-Za-z_]\w*::[A-Za-z_]\w*"
UNLIMITED = -1
"""No limit, as the number of operators or of segments."""


def _operators(value: Any) -> Any:
    return tuple(sorted(value, key=str)) if isinstance(value, set | frozenset) else tuple_from_list(value)


def _operator(name: str) -> str:
    if not re.fullmatch(_OPERATOR, name):
        raise ValueError(f"expected an operator as in aten::sort, got {name[:60]!r}")
    return name


def compiler_arguments(written: object) -> tuple[str, ...]:
    """Convert a compiler's arguments to a tuple: a list is kept, a string is split as by a shell.

    >>> compiler_arguments("--target 'inf2 x'"), compiler_arguments(["--target", "trn1"])
    (('--target', 'inf2 x'), ('--target', 'trn1'))

    Raises `ValueError`: they are neither, or a quotation is open.
    """
    if isinstance(written, list | tuple) and all(isinstance(word, str) for word in written):
        return tuple(written)
    shown = repr(written)[:60]
    if not isinstance(written, str):
        raise ValueError(  # noqa: TRY004 - as every wrong option
            f"expected a text or a list of texts, as in [--target, trn1], got {shown}"
        )
    try:
        return tuple(shlex.split(written))
    except ValueError as error:
        raise ValueError(f"expected arguments as a shell takes them, got {shown}: {error}") from error


def _limit(limit: object) -> int:
    if type(limit) is not int or (limit < 1 and limit != UNLIMITED):
        raise ValueError(f"expected {UNLIMITED} (no limit) or 1 or more, got {repr(limit)[:60]}")
    return limit


CompilerArguments = Annotated[
    tuple[str, ...],
    PlainValidator(compiler_arguments),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
CountOrUnlimited = Annotated[
    int, PlainValidator(_limit), WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": -1}]})
]
Operators = Annotated[
    tuple[Annotated[str, Field(json_schema_extra={"pattern": f"^{_OPERATOR}$"}), AfterValidator(_operator)], ...],
    BeforeValidator(_operators),
]


class TraceArguments(Strict):
    """Options for the compiler of the backend's segments, in place of the same ones of the whole program."""

    compiler_workdir: PathText | None = None
    """The folder for the compiler's intermediate files."""
    compiler_args: CompilerArguments | None = None
    """Arguments for the compiler, as a text or a list."""


class AnalyzeParameters(Strict):
    """Options for the operator-support query."""

    compiler_workdir: PathText | None = None
    """Without effect, as in NeuronX's API: nothing is compiled to query a backend."""
    additional_ignored_ops: Operators = ()
    """Operators that are not queried: they run on the backend and do not count, as in [aten::sort]."""
    max_workers: PositiveInt = 1
    """Without effect, as `compiler_workdir`."""


class PartitionerBlock(Strict):
    """Operators that the backend does not support run on the CPU."""

    trace_kwargs: TraceArguments | None = None
    """Options for the compiler of the backend's segments."""
    model_support_percentage_threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """The least share of the model's operators that the backend must support, from 0 to 1."""
    min_subgraph_size: CountOrUnlimited = UNLIMITED
    """The least number of operators in a segment, on the backend or the CPU; -1 for no limit."""
    max_subgraph_count: CountOrUnlimited = UNLIMITED
    """The largest number of segments, on the backend and the CPU together; -1 for no limit."""
    ops_to_partition: Operators = ()
    """Operators that run on the CPU even if the backend supports them, as in [aten::sort]."""
    analyze_parameters: AnalyzeParameters | None = None
    """Options for the operator-support query."""

    @property
    def ignored(self) -> frozenset[str]:
        """Operators that the backend is not queried about."""
        return frozenset(self.analyze_parameters.additional_ignored_ops if self.analyze_parameters else ())


class PartitionerConfig(PartitionerBlock):
    """The same options as a Python program gives them, by keyword only; operators may be a set.

    >>> PartitionerConfig(min_subgraph_size=0)
    Traceback (most recent call last):
    ValueError: min_subgraph_size: expected -1 (no limit) or 1 or more, got 0

    Raises `ValueError`: an option is wrong; begins with its name.
    """

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            problems = [f"{format_path(details['loc'])}: {details['msg']}" for details in error.errors()]
            raise ValueError("\n".join(problems)) from None
