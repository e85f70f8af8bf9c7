"""Weights of a trace: one copy of each tensor for all its programs, and others in their place."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch

from ..backends.signature import weights_of
from ..backends.weights import refit_mismatches
from .description import is_weight, weight_key
from .traced import Traced


def replace_weights(traced: Traced, weights: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
    """Put other weights into a trace made with `inline_weights_to_neff=False`, without compiling; in place.

    `weights` are a module or a state dict with the names, shapes and dtypes of the traced module's. Where the trace's
    weights are inlined nothing is done, and a warning says so.

    Raises:
        ValueError: a name, a shape or a dtype is another; says which. The trace is as it was.
    """
    if not traced.description.separate_weights:
        warnings.warn(
            "replace_weights: the weights of this trace are inlined, so they stay; trace with "
            "inline_weights_to_neff=False to be able to replace them",
            UserWarning,
            stacklevel=2,
        )
        return
    given = dict(weights.state_dict()) if isinstance(weights, torch.nn.Module) else dict(weights)
    uses = {
        name: traced.store[key]
        for program in traced.description.programs
        for name, key in program.weight_keys.items()
        if is_weight(key)
    }
    if wrong := refit_mismatches(uses, given):
        raise ValueError("the weights are not those of the traced module:\n  " + "\n  ".join(wrong))
    new = {
        key: given[name].detach().clone().contiguous()
        for program in traced.description.programs
        for name, key in program.weight_keys.items()
        if is_weight(key)
    }
    traced.store = {**traced.store, **new}
    if traced.is_loaded:
        traced.reload()


def dedupe_weights(
    programs: Sequence[torch.export.ExportedProgram],
) -> tuple[list[dict[str, str]], dict[str, torch.Tensor]]:
    """For each program where its weights are kept, and all of them: what programs agree in is kept once.

    Everything is copied, so that later changes of the module change no trace.
    """
    store: dict[str, torch.Tensor] = {}
    places = []
    for index, program in enumerate(programs):
        place = {}
        for name, tensor in weights_of(program).items():
            key = weight_key(name, is_constant=name not in program.state_dict)
            if key in store and not _same(store[key], tensor):
                key = f"{key}@{index}"
            if key not in store:
                store[key] = tensor.detach().clone().contiguous()
            place[name] = key
        places.append(place)
    return places, store


def _same(kept: torch.Tensor, tensor: torch.Tensor) -> bool:
    return kept.dtype == tensor.dtype and kept.shape == tensor.shape and torch.equal(kept, tensor.detach())
