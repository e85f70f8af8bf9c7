"""Making of a model from the files in the archive's tree, as a host does it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from ...backends.cores import set_torch_threads
from ...backends.weights import read_weights
from ...config.own_model import OwnModel
from ...handlers.runtime.own_model import OwnProgram, load_own_model
from ...handlers.runtime.user_code import modules_of
from ..evaluation.manifest_builder import BuildInput


def make_program(
    build: BuildInput, description: OwnModel, constants: Mapping[str, torch.Tensor], rewritten: tuple[str, ...]
) -> OwnProgram:
    """Make the model anew; tensors named in `rewritten` are put back after each request."""
    weights = {} if build.weights is None else read_weights(build.tree / build.weights)
    set_torch_threads(build.threads)
    forget_modules(build.tree)
    named, specs = replace(description, rewritten=rewritten), build.config.input_specs
    return load_own_model(named, specs, build.tree, {**weights, **constants}, nullcontext, build.threads)


def forget_modules(tree: Path) -> None:
    """Let the user's files be imported anew: calls may have changed their global variables."""
    for module in modules_of(tree):
        sys.modules.pop(module.__name__, None)


def non_persistent_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that no state dict holds."""
    saved = model.state_dict()
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers() if name not in saved}
