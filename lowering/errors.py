"""Refusing a model with the line of the user's code that is to blame."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from pathlib import Path
from types import FrameType

import torch

_TORCH = str(Path(torch.__file__).resolve().parent)
_HERE = Path(__file__).resolve().parent
_OURS = (str(_HERE), str(_HERE.parent / "tracing"))
"""The rooms whose frames stand between the exporter and the user's model."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class LoweringError(Exception):
    """The model cannot be served by padded programs; the message says which line and what to do instead."""


LoweringRefused = LoweringError  # the name of earlier releases


def is_user_file(filename: str) -> bool:
    """Whether a frame belongs to the user's model: neither torch's, nor ours, nor made up by exec."""
    # A frame of this package can be seen through a link or by its real path.
    real = str(Path(filename).resolve())
    return not filename.startswith("<") and not real.startswith((_TORCH, *_OURS)) and "/lib/python3" not in real


def format_source_line(filename: str, line: int) -> str:
    """`model.py:12: return torch.max(packed.data)`."""
    code = linecache.getline(filename, line).strip()
    return f"{Path(filename).name}:{line}: {code}" if code else f"{Path(filename).name}:{line}"


def calling_line() -> str | None:
    """The innermost line of the user's model on the call stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return format_source_line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def raising_line(error: BaseException) -> str | None:
    """The innermost line of the user's model on the traceback of `error`."""
    for entry in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(entry.filename) and entry.lineno is not None:
            return format_source_line(entry.filename, entry.lineno)
    return None


def node_line(node: torch.fx.Node) -> str | None:
    """The innermost line of the user's model that made a node of an exported graph."""
    for match in reversed(list(_FRAME.finditer(node.meta.get("stack_trace") or ""))):
        if is_user_file(match["file"]):
            return format_source_line(match["file"], int(match["line"]))
    return None


def source_suffix(line: str | None) -> str:
    """` (at model.py:12: ...)`, or nothing where no line is known."""
    return f" (at {line})" if line else ""
