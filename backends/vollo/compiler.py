"""Calls of Vollo's compiler: accelerator configurations by name, and programs that fit them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from ..exported_program import quiet
from ..interface import CompileError

_FORMER_NAMES = {
    "ia_420f_c6b32": "bittware_ia420f_c6b32",
    "ia_840f_c2b64d": "bittware_ia840f_c2b64d",
    "ia_840f_c3b64": "bittware_ia840f_c3b64",
    "v80_c6b32": "amd_v80_c6b32",
    "v80ll_c6b32": "amd_v80ll_c6b32",
    "nt400d11_c6b32": "napatech_nt400d11_c6b32",
    "artena_c8b32": "silicom_artena_c8b32",
    "artena_c8b32lstm": "silicom_artena_c8b32lstm",
    "fb4cgg3_c3b32": "silicom_fb4cgg3_c3b32",
}
"""Configuration names before release 27.1, with their current names."""
_OTHER_METHODS = ("load", "save", "ip_core")
"""Methods of the compiler's Config that are not configurations."""


def accelerator_config(arguments: Sequence[str]) -> str:
    """Return the accelerator configuration that the compiler's arguments name, by its current name.

    Raises `CompileError`: none is named, or an unknown one. The message lists those that the compiler has.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    name = parser.parse_args(list(arguments)).config
    known = accelerator_configs()
    if name is None:
        raise CompileError(
            f"compiler_args: name the accelerator, e.g. [--config, {known[0]}]; the compiler has {', '.join(known)}"
        )
    current: str = _FORMER_NAMES.get(name, name)
    if current not in known:
        raise CompileError(f"compiler_args: unknown accelerator --config {name}; the compiler has {', '.join(known)}")
    return current


def accelerator_configs() -> list[str]:
    """Return the configurations of the installed compiler, without former names."""
    from vollo_compiler import Config

    public = [name for name in dir(Config) if not name.startswith("_") and callable(getattr(Config, name))]
    return [name for name in public if name not in _FORMER_NAMES and name not in _OTHER_METHODS]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CompileError(f"compiler_args: {message}; Vollo supports only --config NAME")


def build_program(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], config: str, streaming_axis: int | None = None
) -> Any:
    """Compile a module for inputs of these shapes to a `vollo_compiler.Program`.

    With `streaming_axis` the program takes one timestep of its inputs at a time and keeps its state on the accelerator.

    Raises `CompileError`: the compiler does not support the module, or the program does not fit the accelerator.
    """
    from vollo_compiler import AllocationError, Config
    from vollo_torch.fx import nnir, prepare_shape

    with torch.no_grad(), quiet():
        try:
            traced, _ = prepare_shape(module, *inputs)
            graph = nnir.to_nnir(traced)
            if streaming_axis is not None:
                graph, _ = graph.streaming_transform([streaming_axis] * len(inputs))
            program = graph.to_program(getattr(Config, config)())
            program.pack()
        except AllocationError as error:
            raise CompileError(f"the program does not fit {config}: {_message(error)}") from error
        except Exception as error:
            raise CompileError(f"Vollo's compiler does not support the program: {_message(error)}") from error
    return program


def _message(error: Exception) -> str:
    """Return the compiler's message in one line, without the location in its source."""
    return " ".join(str(error).partition("Location:")[0].split()) or type(error).__name__
