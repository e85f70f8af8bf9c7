"""Calls that a composite operator makes: torch computes it by other operators, on every device.

Used while packaging only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node, map_arg
from torch.utils._python_dispatch import TorchDispatchMode

Tell = Callable[[torch._ops.OpOverload, Sequence[Any], Mapping[str, Any]], None]
"""A function that is called with each call before it is made."""


def is_composite(target: torch._ops.OpOverload) -> bool:
    """Whether torch computes an operator by others.

    >>> is_composite(torch.ops.aten.linalg_inv.default), is_composite(torch.ops.aten.sort.default)
    (True, False)
    """
    return target.namespace == "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )


@dataclass(frozen=True)
class ExampleArguments:
    """Arguments of a call: tensors without values, and numbers."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    mode: FakeTensorMode
    known: bool
    """Whether all sizes are those of the export. False: some depend on data, and are 1 here."""


def example_arguments(node: Node) -> ExampleArguments:
    """Return arguments of a call in the sizes that its program was exported with."""
    unknown: list[object] = []

    def example(source: Node) -> Any:
        value = source.meta["val"]
        if not isinstance(value, torch.Tensor):
            return _known(value, unknown)
        return torch.empty([_known(size, unknown) for size in value.shape], dtype=value.dtype)

    with FakeTensorMode() as mode:
        args, kwargs = map_arg((node.args, dict(node.kwargs)), example)
    return ExampleArguments(args, kwargs, mode, known=not unknown)


def tell_calls(target: torch._ops.OpOverload, given: ExampleArguments, tell: Tell) -> None:
    """Make a call, and report the calls of which it consists.

    An error that `tell` raises ends the call.
    """
    with torch.no_grad(), given.mode, _Telling(tell):
        target(*given.args, **given.kwargs)


class _Telling(TorchDispatchMode):
    """A dispatch mode that reports each call."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._tell = tell

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._tell(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _known(size: Any, unknown: list[object]) -> Any:
    """The number that a symbol stood for while the model was exported."""
    if not isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
        return size
    if not size.node.has_hint():
        unknown.append(size)
        return 1
    return size.node.hint
