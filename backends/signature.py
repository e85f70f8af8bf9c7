"""Signature of a compiled program, written beside it, and the reading of such files.

Without it, engines run other shapes silently and crash on other dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar, Union

import torch

from ..bucketing.shapes import Bucket
from ..config.json_codec import JsonError, read_json, write_json
from .interface import LoadError, Weights

FILE_NAME = "signature.json"
_NAMED = 10  # weights of one message


class WrongInput(ValueError):
    """A call whose number of tensors, shapes or dtypes are not those that the program was compiled for."""


@dataclass(frozen=True)
class TensorType:
    """Dtype and shape of a tensor. A size that is a string is symbolic; equal strings are equal sizes."""

    dtype: str
    shape: tuple[Union[int, str], ...]

    @cached_property
    def torch_dtype(self) -> torch.dtype | None:
        """The dtype; None if this torch has none of that name."""
        found = getattr(torch, self.dtype, None)
        return found if isinstance(found, torch.dtype) else None


@dataclass(frozen=True)
class Signature:
    """Inputs of a program in order, and the weights that it was compiled with."""

    inputs: dict[str, TensorType]
    weights: dict[str, TensorType]

    def check_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Check inputs against the signature.

        >>> signature = Signature({"x": TensorType("float32", ("s0", 3)), "y": TensorType("int64", ("s0",))}, {})
        >>> signature.check_inputs([torch.zeros(2, 3), torch.ones(5, dtype=torch.int64)])
        Traceback (most recent call last):
        torchserve_neuron_lstm.backends.signature.WrongInput: input 'y' is int64 [5], but the program was ...

        Raises `WrongInput`: an input does not match; the message names it, its type and the expected type.
        """
        if len(inputs) != len(self.inputs):
            raise WrongInput(
                f"{len(inputs)} inputs, but the program takes {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        sizes: dict[str, int] = {}
        for name, wanted, tensor in zip(self.inputs, self.inputs.values(), inputs):
            if not _fits(tensor, wanted, sizes):
                expected = [sizes.get(size, size) if isinstance(size, str) else size for size in wanted.shape]
                raise WrongInput(
                    f"input {name!r} is {describe_tensor(tensor)}, but the program was compiled for {wanted.dtype} "
                    f"{expected}"
                )

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """Return ones of the right sizes and dtypes, which are valid lengths and ids too. All sizes must be fixed."""
        return tuple(torch.ones([int(n) for n in kind.shape], dtype=kind.torch_dtype) for kind in self.inputs.values())

    def pick_weights(self, weights: Weights) -> dict[str, torch.Tensor]:
        """Select the program's weights, shared and not copied.

        Raises `LoadError`: a weight is missing, or its shape or dtype is another.
        """
        problems = [
            f"{name}: {describe_tensor(weights[name]) if name in weights else 'missing'}, "
            f"compiled with {wanted.dtype} {list(wanted.shape)}"
            for name, wanted in self.weights.items()
            if name not in weights or not _fits(weights[name], wanted, {})
        ]
        if problems:
            more = [f"and {len(problems) - _NAMED} more"] if len(problems) > _NAMED else []
            raise LoadError(
                "the shapes or dtypes of the weights are not those that the program was compiled with; package the "
                "model again with these weights:\n  " + "\n  ".join([*problems[:_NAMED], *more])
            )
        return {name: weights[name] for name in self.weights}


def _fits(tensor: torch.Tensor, wanted: TensorType, sizes: dict[str, int]) -> bool:
    """Whether dtype and shape match; `sizes` collects the values of symbolic sizes."""
    shape = tensor.shape
    if tensor.dtype is not wanted.torch_dtype or len(shape) != len(wanted.shape):
        return False
    # An explicit loop: this runs between the chunks of a batch.
    for size, expected in zip(shape, wanted.shape):
        if size != expected and not (isinstance(expected, str) and size == sizes.setdefault(expected, size)):
            return False
    return True


def dtype_name(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype as the configuration writes it.

    >>> dtype_name(torch.zeros(1))
    'float32'
    """
    return str(tensor.dtype).removeprefix("torch.")


def describe_tensor(tensor: torch.Tensor) -> str:
    """Return dtype and shape, e.g. `float32 [2, 3]`."""
    return f"{dtype_name(tensor)} {list(tensor.shape)}"


def signature_of(program: torch.export.ExportedProgram, bucket: Bucket | None) -> Signature:
    """Return the signature of a program, for the sizes of one bucket or for symbolic sizes."""
    from .exported_tensors import inputs_of, symbol_sizes, weights_of

    sizes = {} if bucket is None else symbol_sizes(program, bucket)
    return Signature(
        inputs={name: _sized(value, sizes) for name, value in inputs_of(program).items()},
        weights={name: _sized(tensor, sizes) for name, tensor in weights_of(program).items()},
    )


def _sized(value: torch.Tensor, sizes: Mapping[str, int]) -> TensorType:
    shape: list[int | torch.SymInt] = list(value.shape)
    return TensorType(
        dtype_name(value), tuple(size if isinstance(size, int) else sizes.get(str(size), str(size)) for size in shape)
    )


def write_signature(signature: Signature, directory: Path) -> None:
    """Write signature.json beside the program."""
    write_json(Signature, signature, directory / FILE_NAME)


def read_signature(directory: Path) -> Signature:
    """Read a signature that `write_signature` wrote. Raises `LoadError`: the file is missing or damaged."""
    return read_program_file(Signature, directory / FILE_NAME)


T = TypeVar("T")


def read_program_file(kind: type[T], path: Path) -> T:
    """Read a file that `write_json` wrote. Raises `LoadError`: the file is missing or damaged."""
    try:
        return read_json(kind, path)
    except JsonError as error:
        raise LoadError(str(error)) from error
