"""What Vollo's compiler is asked: the accelerator by its name, and a program that fits it, or why there is none."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from ..interface import CompileError

# The names of before release 27.1, each with the one of now.
_FORMER = {
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
_NO_ARGUMENTS = ("load", "save", "ip_core")
"""What else the compiler's Config can be called for."""


@dataclass(frozen=True)
class VolloBuild:
    """A program for an accelerator, and what the compiler says of it."""

    program: Any
    """`vollo_compiler.Program`."""
    estimate_us: float
    """Microseconds that one inference computes; the way in and out comes on top."""


def accelerator_config(arguments: Sequence[str]) -> str:
    """The accelerator that the compiler's arguments name, as the compiler calls it now.

    Raises:
        CompileError: none is named, or one that the compiler does not know; lists those that it does.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    name = parser.parse_args(list(arguments)).config
    known = accelerator_configs()
    if name is None:
        raise CompileError(
            f"compiler_args: name the accelerator, as in [--config, {known[0]}]; the compiler knows {', '.join(known)}"
        )
    current: str = _FORMER.get(name, name)
    if current not in known:
        raise CompileError(f"compiler_args: --config {name} is no accelerator of the compiler's: {', '.join(known)}")
    return current


def accelerator_configs() -> list[str]:
    """The accelerators that the installed compiler knows, without former names."""
    from vollo_compiler import Config

    public = [name for name in dir(Config) if not name.startswith("_") and callable(getattr(Config, name))]
    return [name for name in public if name not in _FORMER and name not in _NO_ARGUMENTS]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CompileError(f"compiler_args: {message}; Vollo takes --config NAME alone")


def build_program(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], config: str, streaming_axis: int | None = None
) -> VolloBuild:
    """The program of a module for inputs of these shapes.

    With `streaming_axis` it takes one timestep of its inputs at a time, and keeps the state on the accelerator.

    Raises:
        CompileError: the compiler does not take the module, or the program does not fit the accelerator.
    """
    from vollo_compiler import AllocationError, Config
    from vollo_torch.fx import nnir, prepare_shape

    with _quiet():
        try:
            traced, _ = prepare_shape(module, *inputs)
            graph = nnir.to_nnir(traced)
            if streaming_axis is not None:
                graph, _ = graph.streaming_transform([streaming_axis] * len(inputs))
            program = graph.to_program(getattr(Config, config)())
            program.pack()
            estimate = program.compute_duration_per_inference_us()
        except AllocationError as error:
            raise CompileError(f"the program does not fit {config}: {_said(error)}") from error
        except Exception as error:
            raise CompileError(f"Vollo's compiler does not take it: {_said(error)}") from error
    return VolloBuild(program, float(estimate))


def _said(error: Exception) -> str:
    """The compiler's message in one line, without its own source's."""
    text = str(error).partition("Location:")[0]
    return " ".join(text.split()) or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own, about its internals
        yield
