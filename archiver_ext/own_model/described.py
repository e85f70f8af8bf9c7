"""The description of the user's model that an archive carries, and models that are made of it as a host makes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.jit._script import RecursiveScriptModule

from ...backends.cores import set_torch_threads
from ...backends.weights import read_weights
from ...config.own_model import MaskForm, OwnModel
from ...config.schema import ServingConfig
from ...handlers.runtime.own_model import OwnProgram, load_own_model
from ...handlers.runtime.user_code import modules_of
from ...lowering.exporter.arguments import Fields, nested_arguments
from ..errors import PackagingError
from ..evaluation.manifest_builder import BuildInput
from ..user_model import taken_as_tuples
from .imports import imports_late


def describe_own_model(model: torch.nn.Module, file: Path, config: ServingConfig, reason: str) -> OwnModel:
    """Describe the model that was made of a file with the configuration's arguments.

    Raises `PackagingError`: a host cannot import the file, imports another one, or finds no such class in it; or the
    configuration has keys of a class for a program that is made already.
    """
    given = config.model
    is_script = isinstance(model, RecursiveScriptModule)  # not a class of the file that derives from it
    if not is_script:
        _check_module(file)
    elif given.class_name is not None or given.args:
        raise PackagingError(
            f"neuron_lstm.model.{'args' if given.args else 'class'}: {file.name} is a TorchScript program, which is "
            "already made: leave it out, or give the class as --model-file and its state dict as --serialized-file"
        )
    return OwnModel(
        file=file.name,
        module=None if is_script else file.stem,
        name=str(model.original_name) if is_script else given.class_name or _name_in(file.stem, model),
        args=dict(given.args),
        tuples=() if is_script else taken_as_tuples(type(model), given.args),
        method=given.method,
        batched=given.batched,
        arguments=_arguments(config),
        mask=_mask(config),
        draws=False,
        answers_padding=True,
        rewritten=(),
        recurrences=None,
        imports_late=not is_script and imports_late(file),
        reason=reason,
    )


def _check_module(file: Path) -> None:
    """Refuse a file that a host cannot import under its name."""
    if not re.fullmatch(r"[^\W\d][\w-]*", file.stem, re.ASCII):
        raise PackagingError(
            f"--model-file {file.name}: a host imports this file as a module, and {file.stem} is not a module's name: "
            "rename it, as in model.py"
        )
    imported = Path(getattr(sys.modules[file.stem], "__file__", None) or "")
    if imported.resolve() != file.resolve():
        raise PackagingError(
            f"--model-file {file.name}: another module of this name is imported before it ({imported}): give the file "
            "another name, as a host imports it by its name"
        )


def _name_in(module: str, model: torch.nn.Module) -> str:
    """Return the name that the model's class, or its function, has in the module of its file."""
    name = type(model).__name__
    if not hasattr(sys.modules[module], name):
        raise PackagingError(
            f"{module}.py has no {name} at its top, which is the class of the model: a host cannot make it. Give the "
            "name of a class of the file as `model: {class: NAME}` under `neuron_lstm:`"
        )
    return name


class _Slot(dict[str, Any]):
    """A value of a request in the tree of arguments, or a constant."""


def _arguments(config: ServingConfig) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for index, (name, entry) in enumerate(zip(config.arguments, config.inputs.values(), strict=True)):
        packed = [index, entry.shape[0] == "batch"]
        named[name] = _Slot(packed=packed) if entry.packed else _Slot(input=index)
    if config.lengths is not None:
        named.update(dict.fromkeys(config.lengths.names, _Slot(lengths=config.lengths.type)))
    if config.mask is not None:
        named[config.mask.name] = _Slot(mask=True)
    named.update({name: _Slot(constant=value) for name, value in config.model.forward.items()})
    return {name: _tree(value) for name, value in nested_arguments(named).items()}


def _tree(value: Any) -> dict[str, Any]:
    if isinstance(value, Fields):
        return {"fields": {name: _tree(below) for name, below in value.items()}}
    if isinstance(value, tuple):
        return {"tuple": [_tree(below) for below in value]}
    return dict(value)


def _mask(config: ServingConfig) -> MaskForm | None:
    mask = config.mask
    if mask is None:
        return None
    sizes = tuple(-1 if size == "time" else 1 for size in mask.shape)
    return MaskForm(mask.dtype, int(mask.true_for == "timesteps"), sizes)


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
