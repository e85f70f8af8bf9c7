"""Reading of a program's source, when it is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import torch

from .. import masked, row_orders
from ..interface import LoadError
from .control_flow import CONTROL_FLOW

FILE_NAME = "program.py"

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "lstm": masked.lstm,
    "rnn": masked.rnn,
    "positions": row_orders.positions,
    **CONTROL_FLOW,
}
"""Functions that a source calls beside torch's operators."""


def read_source(directory: Path) -> str:
    """Return the source of a directory's program. Raises `LoadError`: the file is missing or damaged."""
    path = directory / FILE_NAME
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} is missing or damaged ({error}): package the model again") from error


def load_source(
    source: str,
    tensors: Mapping[str, torch.Tensor],
    layers: Optional[Mapping[str, Callable[..., Any]]] = None,
    path: Path = Path(FILE_NAME),
) -> Callable[..., Sequence[torch.Tensor]]:
    """Return the program of a source as a function of its inputs, over these weights.

    `layers` are the engine's functions that the source calls when it is loaded. `path` is named in messages.

    Raises `LoadError`: this torch has not all its operators, or the source is damaged.
    Raises `MemoryError`: an engine's layer does not fit into memory.
    """
    namespace: dict[str, Any] = {"torch": torch, "math": math, **FUNCTIONS, **(layers or {})}
    try:
        exec(compile(source, str(path), "exec"), namespace)  # noqa: S102 - digest-checked, as every file
        program: Callable[..., Sequence[torch.Tensor]] = namespace["program"](
            {name: tensor.detach() for name, tensor in tensors.items()}
        )
    except (LoadError, MemoryError):
        raise
    except AttributeError as error:
        raise LoadError(
            f"torch {torch.__version__} lacks an operator of the program ({error}): install the release that the "
            f"archive's requirements name, or a later one"
        ) from error
    except Exception as error:  # damaged source raises any exception
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch's own error
            raise MemoryError(f"out of memory for the weights of a program: {error}") from error
        raise LoadError(f"{path} is damaged ({error}): package the model again") from error
    return program
