"""Sizes and lengths of the batch with which a model is traced."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import LoweringError, calling_line, source_suffix


class TracedLengths(list[int]):
    """Result of `lengths.tolist()` while tracing: pack_padded_sequence takes it, reading it is refused."""

    def __init__(self, tensor: torch.Tensor, owner: str = "") -> None:
        super().__init__()
        self.tensor = tensor
        self._owner = owner

    def _refuse(self, *_: object) -> Any:
        others = "the values of `lengths`, or of another tensor with one number per request,"
        read = f"the lengths of {self._owner}" if self._owner else others
        raise LoweringError(
            f"the model reads {read} in Python{source_suffix(calling_line())}. Its graph must not depend on them: keep "
            "them a tensor, pass lengths to pack_padded_sequence unchanged, and pick one entry of each row by "
            "x[torch.arange(x.size(0)), index]."
        )

    __iter__ = __getitem__ = __len__ = __bool__ = __contains__ = _refuse


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are the same number or the same symbol, regardless of its example value."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return isinstance(a, int) and isinstance(b, int) and a == b
