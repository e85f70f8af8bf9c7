"""Choice of the engine: the name of one, or `auto` with its options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from .diagnostics import Location
from .fields import EngineName
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


def _name_or_options(value: Any) -> Any:
    # Each form has its own messages, which a union of both would mix.
    if isinstance(value, EngineChoice):
        return value
    if isinstance(value, Mapping):
        return EngineChoice.model_validate(value)
    return _NAME.validate_python(value)


Engine = Annotated[EngineName | EngineChoice, BeforeValidator(_name_or_options)]
"""The name of a backend, or a mapping with the options of `auto`."""


def compiler_option_errors(given: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    """Yield options for a compiler where `backend: auto` leaves open which compiler that is."""
    backend = given.get("backend", AUTO)
    if backend != AUTO and not isinstance(backend, Mapping | EngineChoice):
        return
    for key in ("compiler_workdir", "compiler_args", "compiler_python", "partitioner_config"):
        if given.get(key) is not None:
            yield (key,), "requires the name of one backend as well, as in backend: neuronx; auto tries several"
