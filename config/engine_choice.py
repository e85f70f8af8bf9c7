"""Choice of the engine: the name of one, or `auto` with its options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from .fields import EngineName
from .strict import Strict, format_value, tuple_from_list

AUTO = "auto"
"""The name that stands for the fastest verified engine."""

_TIME = r"[0-9]{1,9}(s|min)"


def _different(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    for name in names or ():
        if name == AUTO:
            raise ValueError(f"expected the names of backends, got {AUTO}")
        if names is not None and names.count(name) > 1:
            raise ValueError(f"expected different names, got {name} twice")
    return names


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    found = re.fullmatch(_TIME, value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"expected seconds or minutes, as in 60s or 5min, got {format_value(value)}")
    return float(value[: found.start(1)]) * (60 if found[1] == "min" else 1)


class AutoOptions(Strict):
    """Bounds of what `auto` compiles."""

    engines: Annotated[
        tuple[EngineName, ...] | None,
        Field(alias="try", min_length=1, json_schema_extra={"uniqueItems": True}),
        BeforeValidator(tuple_from_list),
        AfterValidator(_different),
    ] = None
    """The engines to compare, as in [native, inductor]; each is compiled for every bucket.

    Left out, those of docs/backends.md that are installed; one that compiles slowly only if it could win.
    """
    time: Annotated[
        float | None,
        PlainValidator(_seconds),
        WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^{_TIME}$"}, {"type": "null"}]}),
    ] = None
    """The time after which no engine that compiles slowly begins another program, as in 60s or 5min.

    Left out, there is no bound.
    """


class EngineChoice(Strict):
    """`auto` with its options."""

    auto: AutoOptions
    """The engines to compare, and the time to compile them."""


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


def chosen_engine(backend: object) -> object:
    """Return the engine's name in a value of `backend:`, which may be invalid.

    >>> chosen_engine("native"), chosen_engine({"auto": {"time": "60s"}})
    ('native', 'auto')
    """
    return AUTO if isinstance(backend, Mapping | EngineChoice) else backend
