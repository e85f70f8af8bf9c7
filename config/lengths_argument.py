"""Configuration of the arguments of forward() that take the true lengths of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .fields import InputName
from .strict import Strict, format_value, tuple_from_list


class LengthsArgument(Strict):
    """The arguments of forward() that take the true lengths [B], all the same."""

    names: Annotated[tuple[InputName, ...], Field(min_length=1), BeforeValidator(tuple_from_list)]
    """The arguments, or elements as in `batch.1`; several if forward() takes sequences of one length."""
    type: Literal["tensor", "numpy", "list"] = "tensor"
    """The type that forward() takes: an int64 tensor, a numpy array or a list of numbers."""


def _by_names(value: Any) -> Any:
    if isinstance(value, Mapping | LengthsArgument):
        return value
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"expected text, got {format_value(value)}")  # noqa: TRY004 - pydantic reports these
    return {"names": [value] if isinstance(value, str) else value}


class _NamesOrMapping:
    """JSON Schema of the arguments."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema."""
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, handler(core_schema)]}


Lengths = Annotated[LengthsArgument, BeforeValidator(_by_names), _NamesOrMapping()]
"""The arguments, or only their names."""
