"""Choice of the engine: the name of one, or `auto` with its options; options of its compiler and partitioner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from .diagnostics import Location
from .fields import CompilerArguments, CountOrUnlimited, EngineName, Operators, PathText, PositiveInt
from .partitioner import UNLIMITED, PartitionerConfig
from .strict import Strict, tuple_from_list

AUTO = "auto"
"""The name that stands for the fastest verified engine."""


def _different(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    for name in names or ():
        if name == AUTO:
            raise ValueError(f"expected the names of backends, got {AUTO}")
        if names is not None and names.count(name) > 1:
            raise ValueError(f"expected different names, got {name} twice")
    return names


class AutoOptions(Strict):
    """Options of `auto`."""

    engines: Annotated[
        tuple[EngineName, ...] | None,
        Field(alias="try", min_length=1, json_schema_extra={"uniqueItems": True}),
        BeforeValidator(tuple_from_list),
        AfterValidator(_different),
    ] = None
    """The engines to compare, as in [native, inductor], in the order of preference.

    Left out, those of docs/backends.md that are installed.
    """


class EngineChoice(Strict):
    """`auto` with its options."""

    auto: AutoOptions
    """The engines to compare."""


_NAME: TypeAdapter[str] = TypeAdapter(EngineName, config=ConfigDict(strict=True))


def _name_or_options(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    # Each form has its own messages, which a union of both would mix.
    if isinstance(value, EngineChoice):
        return value
    if isinstance(value, Mapping):
        return EngineChoice.model_validate(value)
    return _NAME.validate_python(value)


Engine = Annotated[EngineName | EngineChoice, WrapValidator(_name_or_options)]
"""The name of a backend, or a mapping with the options of `auto`."""


class TraceArguments(Strict):
    """Options for the compiler of the backend's segments, in place of the same keys of the block."""

    compiler_workdir: PathText | None = None
    """The folder for the compiler's intermediate files."""
    compiler_args: CompilerArguments | None = None
    """Arguments for the compiler, as a text or a list."""


class AnalyzeParameters(Strict):
    """Options for the operator-support query."""

    compiler_workdir: PathText | None = None
    """The folder for what the compiler writes while operators are probed."""
    additional_ignored_ops: Operators = ()
    """Operators that are not queried: they run on the backend and do not count, as in [aten::sort]."""
    max_workers: PositiveInt = 1
    """Number of operators that are probed at a time, where they are probed by compiling."""


class PartitionerBlock(Strict):
    """The keys of `PartitionerConfig`: operators that the backend does not support run on the CPU."""

    trace_kwargs: TraceArguments | None = None
    """Options for the compiler of the backend's segments."""
    model_support_percentage_threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = (
        PartitionerConfig.model_support_percentage_threshold
    )
    """The least share of the model's operators that the backend must support, from 0 to 1."""
    min_subgraph_size: CountOrUnlimited = UNLIMITED
    """The least number of operators in a segment, on the backend or the CPU; -1 for no limit."""
    max_subgraph_count: CountOrUnlimited = UNLIMITED
    """The largest number of segments, on the backend and the CPU together; -1 for no limit."""
    ops_to_partition: Operators = ()
    """Operators that run on the CPU even if the backend supports them, as in [aten::sort]."""
    analyze_parameters: AnalyzeParameters | None = None
    """Options for the operator-support query."""


def compiler_option_errors(given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    """Yield options for a compiler where `backend: auto` leaves open which compiler that is."""
    backend = given.get("backend", AUTO)
    if backend != AUTO and not isinstance(backend, Mapping | EngineChoice):
        return
    for key in ("compiler_workdir", "compiler_args", "compiler_python", "partitioner_config"):
        if given.get(key) is not None:
            yield (key,), "requires the name of one backend as well, as in backend: neuronx; auto tries several"
