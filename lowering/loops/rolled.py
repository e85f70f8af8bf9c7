"""Trace of one request of any length, with loops over timesteps computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ...config.schema import ServingConfig
from ..errors import LoweringError
from ..exporter.export import forward_name
from ..exporter.program_tensors import holder_of, tensors_by_placeholder
from ..one_request.single_request import SingleExport, export_request, export_unrolled
from .evaluate import Evaluation
from .families import recognise
from .recipe import NotALoop, Recipe
from .unrolled import simplify

_MOST_TIMESTEPS = 12
_FEWEST_TIMESTEPS = 4
"""Fewer would not show a rule."""


def export_rolled(model: torch.nn.Module, config: ServingConfig, shortest: int = 1) -> SingleExport:
    """Export forward() for one request, its loops over timesteps as recurrent layers.

    Raises:
        UnknownLoop: a loop is of another kind; names the line.
        LoweringError: there is no loop, or the trace with the loops computed at once fails.
    """
    more = min(_MOST_TIMESTEPS, config.longest)
    timesteps = max(_FEWEST_TIMESTEPS, more - 5, shortest)
    if timesteps >= more:
        raise LoweringError(f"a loop is recognised in {_FEWEST_TIMESTEPS + 1} timesteps; the longest bucket is shorter")
    name = forward_name(model)
    short, long = (export_unrolled(model, config, steps) for steps in (timesteps, more))
    try:
        recipe = recognise(simplify(short.exported), timesteps, simplify(long.exported), more)
        return _export(recipe, long, config, name, shortest)
    except NotALoop as error:
        raise LoweringError(f"{name} has no loop over timesteps") from error


def _export(recipe: Recipe, trace: SingleExport, config: ServingConfig, name: str, shortest: int) -> SingleExport:
    """Trace the recipe as if it were the model."""
    exported = trace.exported
    holder = holder_of(exported)
    inputs = [str(name) for name in exported.graph_signature.user_inputs]

    def forward(timesteps: Any, tensors: Sequence[torch.Tensor]) -> Any:
        weights = tensors_by_placeholder(exported, holder)
        return Evaluation(recipe, {**weights, **dict(zip(inputs, tensors, strict=True))}, timesteps).outputs()

    rolled = export_request(holder, forward, config, name, shortest)
    return replace(rolled, output_tree=trace.output_tree, decided=trace.decided, vocabularies=trace.vocabularies)
