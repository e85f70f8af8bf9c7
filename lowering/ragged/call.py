"""A call of an operator in the graph of one request, with its arguments by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .sizes import SizeExpr
from .value import Batch, NoRule, Value

Results = Value | tuple[Value, ...]
Rule = Callable[[Batch, "Call"], Results]


@dataclass(frozen=True)
class Call:
    """A call to run on a batch: tensors are `Value`s, sizes and numbers are `SizeExpr`s or constants."""

    target: torch._ops.OpOverload
    arguments: Mapping[str, Any]
    """Arguments by the names of the operator's schema, defaults included."""
    sizes: tuple[tuple[SizeExpr, ...], ...]
    """Sizes of each result for one request."""
    dtypes: tuple[torch.dtype, ...]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument that not every overload has."""
        return self.arguments.get(name, default)

    def value(self, name: str = "self") -> Value:
        """Return an argument that is a tensor."""
        value = self.arguments.get(name)
        if value is None:
            value = next(self.values())
        assert isinstance(value, Value)
        return value

    def values(self) -> Iterator[Value]:
        """Yield all tensors among the arguments."""
        for argument in self.arguments.values():
            for value in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(value, Value):
                    yield value

    @property
    def shared(self) -> bool:
        """Whether all rows share every tensor of the call."""
        return all(value.shared for value in self.values())

    def run(self, /, **changed: Any) -> Any:
        """Call the operator with tensors in place of the `Value`s: changed arguments, or shared tensors."""
        given = {**self.arguments, **changed}
        schema = self.target._schema.arguments
        named = {a.name for a in schema if a.kwarg_only}
        if "other" in given:
            # the factor of a sum is a keyword only where a number of the timesteps has become a tensor: `T - counts`
            named |= {"alpha"} & given.keys()
        positional = [_plain(given[a.name]) for a in schema if a.name not in named]
        keywords = {name: _plain(given[name]) for name in named if given[name] is not None}
        return self.target.overloadpacket(*positional, **keywords)

    def result(self, tensor: torch.Tensor, *, zero_beyond: bool = False) -> Value:
        """Return the only result, which has rows."""
        return Value(tensor, self.sizes[0], zero_beyond=zero_beyond)


def _plain(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_plain(item) for item in argument]
    if isinstance(argument, Value):
        if not argument.shared:
            raise NoRule("a tensor of every request was left in a call without rows")
        return argument.tensor
    return argument


def unsqueezed(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Insert `count` dimensions of size 1 after the rows."""
    for _ in range(count):
        tensor = tensor.unsqueeze(1)
    return tensor


def shifted(dims: Sequence[int]) -> list[int]:
    """Return dimensions of one request's tensor as dimensions of a tensor with rows."""
    return [dim + 1 for dim in dims]
