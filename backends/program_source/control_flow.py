"""Control flow of exported programs as plain functions of eager mode.

They take the arguments of torch's higher-order operators, which older releases do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Function = Callable[..., Sequence[Any]]


def cond(predicate: Any, if_true: Function, if_false: Function, operands: Sequence[Any]) -> Sequence[Any]:
    """Call one of two functions.

    >>> cond(torch.tensor(False), lambda x: (x + 1,), lambda x: (x - 1,), [5])
    (4,)
    """
    return (if_true if predicate else if_false)(*operands)


def while_loop(goes_on: Callable[..., Any], body: Function, values: Sequence[Any], shared: Sequence[Any]) -> Any:
    """Call `body` as long as `goes_on` holds, each time with the results of the call before.

    >>> while_loop(lambda x: x < 9, lambda x: (x * 2,), [1], [])
    (16,)
    """
    values = tuple(values)
    while goes_on(*values, *shared):
        values = tuple(body(*values, *shared))
    return values


def scan(step: Function, states: Sequence[Any], sequences: Sequence[Any], shared: Sequence[Any]) -> Sequence[Any]:
    """Call `step` for each entry of the sequences in dimension 0, with the states of the call before.

    Returns the last states, then the other results of all steps, stacked.

    >>> scan(lambda total, x: (total + x, total), [torch.tensor(0)], [torch.tensor([3, 4, 5])], [])
    (tensor(12), tensor([0, 3, 7]))
    """
    count, states = len(states), tuple(states)
    others = []
    for index in range(len(sequences[0])):
        results = step(*states, *(sequence[index] for sequence in sequences), *shared)
        states = tuple(results[:count])
        others.append(results[count:])
    return (*states, *(torch.stack(tuple(column)) for column in zip(*others)))


def wrap_with_set_grad_enabled(enabled: bool, function: Function, *operands: Any) -> Sequence[Any]:
    """Call a function. Programs are always run without gradients."""
    return function(*operands)


def wrap_with_autocast(
    device_type: str, dtype: Any, enabled: bool, cache_enabled: Any, function: Function, *operands: Any
) -> Sequence[Any]:
    """Call a function under `torch.autocast`."""
    with torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled):
        return function(*operands)


CONTROL_FLOW = {
    function.__name__: function for function in (cond, while_loop, scan, wrap_with_set_grad_enabled, wrap_with_autocast)
}
"""The functions by the names of torch's higher-order operators."""
