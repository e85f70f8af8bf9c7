"""Rule of the operators without one of their own: each row by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .sizes import in_python, is_ragged
from .value import Batch, Call, NoRule, Results, Value


@contextmanager
def _without_loops() -> Iterator[None]:
    """Let torch refuse operators that it would call for one row after the other, of which a trace fixes the number."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def each_row(batch: Batch, call: Call) -> Results:
    """Run an operator for each row, where no dimension depends on the timesteps.

    Raises `NoRule`: a dimension or a number does, or torch cannot run the operator for several rows.
    """
    leaves, tree = pytree.tree_flatten(dict(call.arguments))
    if any(map(is_ragged, call.all_sizes())):
        raise NoRule("the operator is not known")
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Value) and not leaf.shared]
    plain = [leaf.tensor if isinstance(leaf, Value) else in_python(leaf) for leaf in leaves]

    def run(*tensors: torch.Tensor) -> Any:
        own = dict(zip(places, tensors, strict=True))
        return call.run(**pytree.tree_unflatten([own.get(place, leaf) for place, leaf in enumerate(plain)], tree))

    try:
        with _without_loops():
            results = torch.vmap(run)(*(plain[place] for place in places))
    except RuntimeError as error:
        raise NoRule("the operator is not known, and torch cannot run it for several requests at once") from error
    return call.results(results, shared=False)
