"""Configuration of a mask that forward() takes: made of the lengths of each batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..bucketing.shapes import DType
from .fields import InputName
from .strict import Strict, format_value


def _with_both_axes(value: Any) -> Any:
    sizes = list(value) if isinstance(value, list | tuple) else []
    if sorted(map(str, sizes)) != ["1"] * (len(sizes) - 2) + ["batch", "time"]:
        expected = "expected batch and time, each once, and sizes of 1, as in [batch, 1, time]"
        raise ValueError(f"{expected}, got {format_value(value)}")
    return tuple(sizes)


class MaskConfig(Strict):
    """The argument of forward() that distinguishes the real timesteps of a batch from its padding."""

    name: InputName
    """The argument, or an element of a tuple as in `batch.1`. Clients do not send it."""
    dtype: DType = "bool"
    """The element type; numbers are 1 and 0."""
    true_for: Literal["timesteps", "padding"] = "timesteps"
    """The positions that are true, or 1."""
    shape: Annotated[tuple[Literal["batch", "time", 1], ...], BeforeValidator(_with_both_axes)] = ("batch", "time")
    """`batch` and `time` in forward()'s own order, with sizes of 1, as in [batch, 1, time]."""


def _by_name(value: Any) -> Any:
    if not isinstance(value, str | Mapping | MaskConfig):
        raise ValueError(f"expected text, got {format_value(value)}")  # noqa: TRY004 - pydantic reports these
    return {"name": value} if isinstance(value, str) else value


class _NameOrMapping:
    """JSON Schema of a mask."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema."""
        return {"anyOf": [{"type": "string"}, handler(core_schema)]}


Mask = Annotated[MaskConfig, BeforeValidator(_by_name), _NameOrMapping()]
"""A mask, or only its name."""
