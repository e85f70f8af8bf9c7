"""What a graph's values are known to depend on, as the rules of the proof see it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...bucketing.spec import Axis
from .answers import axis_of
from .refusal import at


@dataclass(frozen=True)
class Reached:
    """Padding reaches a value, or cannot be shown not to."""

    operator: str
    line: str | None

    def __str__(self) -> str:
        return f"{self.operator}{at(self.line)}"


State = Literal["free", "steps"] | Reached
FREE: State = "free"
STEPS: State = "steps"


class States:
    """The states of the nodes seen so far, and where time is in them."""

    def __init__(self, axes: dict[Axis, Any], lengths: torch.fx.Node | None) -> None:
        self.axes, self.lengths = axes, lengths
        self.of: dict[torch.fx.Node, State] = {}

    def counts_time(self, argument: object) -> bool:
        """Whether an argument is a number made of the number of padded timesteps."""
        value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
        return isinstance(value, (torch.SymInt, torch.SymFloat)) and self.has_time(value)

    def has_time(self, size: Any) -> bool:
        """Whether a size is an expression of the number of padded timesteps."""
        return not isinstance(size, int) and self.axes["time"].node.expr in size.node.expr.free_symbols

    def has_odd_time(self, node: torch.fx.Node) -> bool:
        """Whether a tensor has a dimension made of time that is not time, as `x[:, 1:]` has."""
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        return any(self.has_time(size) and axis_of(size, self.axes) is None for size in shape)

    def time_dims(self, node: object) -> list[int]:
        """Which dimensions of a node's tensor are time."""
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor):
            return []
        return [dim for dim, size in enumerate(value.shape) if axis_of(size, self.axes) == "time"]

    def time_of(self, node: object) -> int | None:
        """The one time dimension of a node, or None where there is none or more than one."""
        dims = self.time_dims(node)
        return dims[0] if len(dims) == 1 else None

    def is_tuple(self, node: torch.fx.Node) -> bool:
        """Whether a node gives several tensors."""
        return isinstance(node.meta.get("val"), (list, tuple))

    def is_step_tensor(self, node: object) -> bool:
        """Whether a node is a tensor over timesteps that depends on no padded one."""
        return isinstance(node, torch.fx.Node) and self.of.get(node) == STEPS


def operator_name(node: torch.fx.Node) -> str:
    """`aten.sum` for every overload; `getitem` for an element of a tuple."""
    if node.target is operator.getitem:
        return "getitem"
    target = str(node.target)
    return target if target.endswith((".int", ".Tensor")) and "sym_size" in target else base_name(target)


def base_name(target: str) -> str:
    """`aten.sum.dim_IntList` -> `aten.sum`."""
    parts = target.split(".")
    return ".".join(parts[:2]) if len(parts) >= 2 else target
