"""Errors of a trace that the model's own code catches: the model does not have them in eager mode."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ...config.schema import ServingConfig
from ..eager_call import copy_of, failure_of
from ..errors import LoweringError, explain_export_error, format_source_line, is_user_file, source_suffix
from ..exporter.model_attributes import user_file, user_modules

Caught = tuple[str, int, Exception]
"""A file and line of the model, and an error that was raised there."""


@contextlib.contextmanager
def noted_errors(model: torch.nn.Module, errors: list[Caught]) -> Iterator[None]:
    """Append the errors in the model's own code, if it has a handler of any."""

    def noted(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call" and not is_user_file(frame.f_code.co_filename):
            return None
        frame.f_trace_lines = False
        if event == "exception" and isinstance(argument[1], Exception) and not isinstance(argument[1], StopIteration):
            errors.append((frame.f_code.co_filename, frame.f_lineno, argument[1]))
        return noted

    before = sys.gettrace()
    if any(_has_handler(user_file(module)) for module in user_modules(model)):
        sys.settrace(noted)
    try:
        yield
    finally:
        sys.settrace(before)


@cache
def _has_handler(file: Path | None) -> bool:
    text = "" if file is None else file.read_text(encoding="utf-8", errors="replace")
    return "except" in text or "suppress" in text


def reject_caught_errors(
    name: str, model: torch.nn.Module, config: ServingConfig, timesteps: int, errors: Sequence[Caught]
) -> None:
    """Refuse the trace of a model that has caught an error of the trace itself.

    Raises `LoweringError`: the error, with the line.
    """
    if not errors:
        return
    in_eager_mode: list[Caught] = []
    with noted_errors(model, in_eager_mode):
        failure_of(copy_of(model), config, timesteps, torch.tensor([timesteps]))
    expected = {(file, line, type(error)) for file, line, error in in_eager_mode}
    for file, line, error in errors:
        if (file, line, type(error)) not in expected:
            at = source_suffix(format_source_line(file, line))
            raise LoweringError(
                explain_export_error(name, error, dynamic_shapes=False)
                or f"{name} catches an error of its trace that it does not have in eager mode{at}: "
                f"{type(error).__name__}: {error}. Leave out what fails, or the `except`"
            ) from error
