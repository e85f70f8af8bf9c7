"""Placeholders of packed data while a model is traced, of the permutation that sorts it, and of its lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import rnn as rnn_modules
from torch.nn.utils import rnn as rnn_utils
from torch.utils import _pytree as pytree

from ..errors import LoweringError, calling_line, source_suffix

TORCH_RNN_FILES = {rnn_modules.__file__, rnn_utils.__file__}
"""The files whose own code may read packed data."""

PACKED_FACTS = {"dtype", "device", "is_cuda", "layout", "requires_grad", "is_nested"}
"""Attributes of packed data that do not depend on its shape."""

PACKED_TAG = "_neuron_lstm_packed"
IDENTITY_TAG = "_neuron_lstm_identity"


@dataclass(frozen=True)
class PackedPlaceholder:
    """The padded tensor and lengths that a placeholder of packed data represents."""

    padded: torch.Tensor  # [B, T, ...]
    lengths: torch.Tensor  # [B]
    producer: str
    zero_on_padding: bool
    line: str | None
    """The line of the user's model that created it."""
    computed: bool = False
    """Whether a layer has computed it from packed data, timestep by timestep."""


def placeholder_of(value: object) -> PackedPlaceholder | None:
    """Return the packed data that a tensor represents, if it is a placeholder."""
    return getattr(value, PACKED_TAG, None) if isinstance(value, torch.Tensor) else None


def is_identity(value: object) -> bool:
    """Whether a tensor stands for the permutation by which packing sorts, which no masked program needs."""
    return hasattr(value, IDENTITY_TAG)


def packed_use_error(packed: PackedPlaceholder, operator: str, line: str | None) -> LoweringError:
    """Create the error for unsupported use of packed data, in the words of the Neuron compiler."""
    if packed.producer == "aten::_pack_padded_sequence":
        head = (
            'A PackedSequence made by "aten::_pack_padded_sequence" can only be supported when it is consumed by a '
            "recurrent layer"
        )
    else:
        head = (
            f'Operator "{packed.producer}" consuming a PackedSequence input can only be supported when its '
            "corresponding PackedSequence output is unused"
        )
    return LoweringError(
        f'{head} or unpacked using "aten::_pad_packed_input". Found usage by "{operator}"{source_suffix(line)}. '
        "Resolution: pad the result with pad_packed_sequence() before it is used or returned."
    )


def reject_packed_outputs(outputs: object) -> None:
    """Refuse a forward() that returns packed data. Raises `LoweringError`: an output is packed."""
    for leaf in pytree.tree_leaves(outputs):
        if (packed := placeholder_of(leaf)) is not None:
            raise packed_use_error(packed, "prim::Return", packed.line)


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
