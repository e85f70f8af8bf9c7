"""Lists of timesteps that a model stacks or concatenates after its loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import UnknownLoop, node_line, source_suffix
from .members import Stacked
from .recipe import Unit

_aten = torch.ops.aten


def joined_members(unit: Unit, args: Sequence[Any]) -> torch.Tensor | None:
    """Return stack() or cat() of a list with members of families; None for any other call.

    Raises:
        UnknownLoop: another operator takes such a list; names the line.
    """
    if not args or not isinstance(args[0], list) or not any(isinstance(item, Stacked) for item in args[0]):
        return None
    dim = args[1] if len(args) > 1 else 0
    if unit.target is _aten.stack.default:
        parts = [item.tensor if isinstance(item, Stacked) else item.unsqueeze(0) for item in args[0]]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.movedim(0, dim)
    if unit.target is _aten.cat.default:
        parts = [in_a_row(item.tensor, dim) if isinstance(item, Stacked) else item for item in args[0]]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
    raise UnknownLoop(f"{unit.target} takes a list of timesteps{source_suffix(node_line(unit.node))}")


def in_a_row(members: torch.Tensor, dim: int) -> torch.Tensor:
    """Return members[n, ...] concatenated along a dimension of theirs."""
    dim = dim % (members.dim() - 1)
    return members.movedim(0, dim).flatten(dim, dim + 1)
