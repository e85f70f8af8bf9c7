"""Short ranges of plain numbers that are read in Python: `torch.arange(1, x.dim()).tolist()`.

Nothing is computed with them here: in a trace with a fixed number of timesteps, a range may be that of the timesteps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COUNTED = "_neuron_lstm_counted"
_MOST = 64
"""Numbers of a range that is noted."""


def note_counted(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Note the numbers of a range; forget those of a tensor that a call changes in place."""
    if name == "arange" and args and all(type(value) is int for value in args) and not kwargs.keys() - {"device"}:
        numbers = range(*args)
        if len(numbers) <= _MOST:
            setattr(result, _COUNTED, [*numbers])
    elif args and (name.endswith("_") or name == "__setitem__") and getattr(args[0], _COUNTED, None) is not None:
        delattr(args[0], _COUNTED)


def counted_numbers(tensor: object) -> list[int] | None:
    """Return the numbers of a range; None for another tensor."""
    numbers: list[int] | None = getattr(tensor, _COUNTED, None)
    return numbers if numbers is None else [*numbers]
