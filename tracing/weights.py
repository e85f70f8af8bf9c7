"""Weights of a trace: one copy of each tensor for all programs, and their replacement."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch.export import ExportedProgram

from ..backends.exported_tensors import weights_of
from ..backends.weights import refit_mismatches
from .description import CONSTANT, WEIGHT
from .traced import Traced


def replace_weights(traced: Traced, weights: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
    """Replace the weights of a trace in place, without compiling; needs `inline_weights_to_neff=False`.

    `weights` are a module or a state dict with the names, shapes and dtypes of the traced module's. If the
    trace's weights are inlined, this only warns.

    Raises `ValueError`: a name, a shape or a dtype differs; says which. The trace is unchanged.
    """
    if not traced.description.separate_weights:
        warnings.warn(
            "replace_weights: the weights of this trace are inlined and cannot be replaced; trace with "
            "inline_weights_to_neff=False",
            UserWarning,
            stacklevel=2,
        )
        return
    replacement = dict(weights.state_dict()) if isinstance(weights, torch.nn.Module) else dict(weights)
    programs = traced.description.programs
    weights_by_name = [
        item for program in programs for item in program.weight_keys.items() if item[1].startswith(WEIGHT)
    ]
    if mismatches := refit_mismatches({name: traced.store[key] for name, key in weights_by_name}, replacement):
        raise ValueError("the weights are not those of the traced module:\n  " + "\n  ".join(mismatches))
    new = {key: replacement[name].detach().clone().contiguous() for name, key in weights_by_name}
    traced.store = {**traced.store, **new}
    if traced.is_loaded:
        traced.reload()


def dedupe_weights(programs: Sequence[ExportedProgram]) -> tuple[list[dict[str, str]], dict[str, torch.Tensor]]:
    """Return the keys of each program's weights, and the tensors by key; equal tensors are stored once.

    All tensors are copied, so that later changes of the module do not change the trace.
    """
    store: dict[str, torch.Tensor] = {}
    keys = []
    for index, program in enumerate(programs):
        own_keys = {}
        for name, tensor in weights_of(program).items():
            key = (WEIGHT if name in program.state_dict else CONSTANT) + name
            if key in store and not (store[key].dtype == tensor.dtype and torch.equal(store[key], tensor)):
                key = f"{key}@{index}"
            if key not in store:
                store[key] = tensor.detach().clone().contiguous()
            own_keys[name] = key
        keys.append(own_keys)
    return keys, store
