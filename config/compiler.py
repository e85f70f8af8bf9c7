"""What the YAML says to a compiler itself, and to the partitioner that leaves it the operators it takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from .diagnostics import Location
from .strict import Strict, custom_error, format_value, tuple_from_list

_OPERATOR = r"[A-Za-z_]\w*::[A-Za-z_]\w*"


def _arguments(value: Any) -> tuple[str, ...]:
    """A list as it is; a text cut as a shell would cut it."""
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise custom_error(
                f"expected arguments as a shell takes them, got {format_value(value)}: {error}"
            ) from error
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise custom_error(f"expected a text or a list of texts, as in [--target, trn1], got {format_value(value)}")


def _some_or_any(value: Any) -> int:
    if type(value) is int and (value >= 1 or value == -1):
        return value
    raise custom_error(f"expected 1 or more, or -1 for any, got {format_value(value)}")


def _operator(name: str) -> str:
    if not re.fullmatch(_OPERATOR, name):
        raise custom_error(f"expected an operator's name, as in aten::sort, got {format_value(name)}")
    return name


CompilerArguments = Annotated[
    tuple[str, ...],
    PlainValidator(_arguments),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
CountOrUnlimited = Annotated[
    int,
    PlainValidator(_some_or_any),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": -1}]}),
]
Operator = Annotated[str, Field(json_schema_extra={"pattern": f"^{_OPERATOR}$"}), AfterValidator(_operator)]
Operators = Annotated[tuple[Operator, ...], BeforeValidator(tuple_from_list)]
PathText = Annotated[str, Field(min_length=1)]


class TraceArguments(Strict):
    """What the compiler is told for the engine's parts of a model, in place of the keys beside `partitioner_config`."""

    compiler_workdir: PathText | None = None
    """Where the compiler leaves its intermediate files."""
    compiler_args: CompilerArguments | None = None
    """Arguments for the compiler, as a text or a list."""


class AnalyzeParameters(Strict):
    """How it is found out what the engine takes."""

    compiler_workdir: PathText | None = None
    """Where the compiler leaves what it wrote while operators were tried."""
    additional_ignored_ops: Operators = ()
    """Operators that are left to the engine without a question and do not count, as in [aten::sort]."""
    max_workers: Annotated[int, Field(ge=1)] = 1
    """Operators that are tried at a time, where they are tried."""


class PartitionerConfig(Strict):
    """Operators that the engine cannot take run on the CPU, within one model from outside."""

    trace_kwargs: TraceArguments | None = None
    """What the compiler is told for the engine's parts."""
    model_support_percentage_threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """The least part of the model's operators that the engine must take, from 0 to 1."""
    min_subgraph_size: CountOrUnlimited = -1
    """The least number of operators in a part, of the engine's or the CPU's; -1 for any."""
    max_subgraph_count: CountOrUnlimited = -1
    """The largest number of parts, the engine's and the CPU's together; -1 for any."""
    ops_to_partition: Operators = ()
    """Operators that run on the CPU even if the engine takes them, as in [aten::sort]."""
    analyze_parameters: AnalyzeParameters | None = None
    """How it is found out what the engine takes."""


def compiler_option_errors(given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    """Keys for a compiler where it is left open which one that is."""
    if given.get("backend", "auto") != "auto":
        return
    for key in ("compiler_workdir", "compiler_args", "compiler_python", "partitioner_config"):
        if given.get(key) is not None:
            yield (key,), "expected the name of one engine as backend beside it, got auto, which tries several"
