"""Sizes and tensors that the code of a model writes as text while it is traced: names of the trace, not numbers.

`str(x.size(1))` would be `s27` in the trace, without a condition. So the size becomes a number, as by `int()`, and the
trace holds for that number of timesteps; the values of a tensor are not known. Text for torch, for this package and for
`logging` is left as it is.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partialmethod
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from ..errors import LoweringError, calling_line, is_torch_file, is_user_file, source_suffix
from .model_attributes import replaced_each

_NUMBERS: dict[type, Callable[[Any], Any]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_TENSORS = (FakeTensor, FunctionalTensor)


def text_as_in_eager_mode() -> AbstractContextManager[None]:
    """In this context, text that the model's own code makes of sizes has their numbers, and fixes them."""
    return replaced_each(
        (kind, name, partialmethod(_written, getattr(kind, name)))
        for name in ("__repr__", "__str__")
        for kind in (*_NUMBERS, *_TENSORS)
    )


def _written(value: Any, original: Callable[..., str], *arguments: Any, **options: Any) -> str:
    if not _is_for_the_model(sys._getframe(1)):
        return original(value, *arguments, **options)
    number = _NUMBERS.get(type(value))
    if number is None:
        raise LoweringError(
            f"the model writes a tensor as text{source_suffix(calling_line())}: its values are not known to a program. "
            "Leave that out"
        )
    return str(number(value))


def _is_for_the_model(frame: FrameType | None) -> bool:
    """Whether text is made for the model's own code, perhaps by a library that it calls."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if frame.f_code.co_name not in _OF_TENSORS and (module.startswith(_NO_ANSWERS) or is_torch_file(file)):
            return False
        frame = frame.f_back
    return frame is not None


_OF_TENSORS = ("__format__", "__repr__", "__str__", "__torch_function__", "handle_torch_function")
"""Functions of tensors and modes through which text is made for their caller."""
_NO_ANSWERS = (__name__.partition(".")[0], logging.__name__)
"""Packages whose text is for people: errors and logs."""
