"""Signature of a compiled program, written beside it: engines run other shapes silently and crash
on other dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Union

import torch

from ..bucketing.shapes import Bucket
from ..config.json_codec import JsonError, read_json, write_json
from .interface import LoadError, Weights
from .recurrent_calls import is_recurrent

FILE_NAME = "signature.json"
_TIME_MARK = "neuron_lstm_time"


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

        Raises:
            WrongInput: an input does not match; the message names it, its type and the expected type.
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
        """Return ones of the right sizes and dtypes, which are valid lengths and ids too.

        All sizes must be fixed.
        """
        return tuple(torch.ones([int(n) for n in kind.shape], dtype=kind.torch_dtype) for kind in self.inputs.values())

    def pick_weights(self, weights: Weights) -> dict[str, torch.Tensor]:
        """Select the program's weights, shared and not copied.

        Raises:
            LoadError: a weight is missing, or its shape or dtype is another.
        """
        problems = [
            f"{name}: {describe_tensor(weights[name]) if name in weights else 'missing'}, "
            f"compiled with {wanted.dtype} {list(wanted.shape)}"
            for name, wanted in self.weights.items()
            if name not in weights or not _fits(weights[name], wanted, {})
        ]
        if problems:
            raise LoadError(
                "the shapes or dtypes of the weights are not those that the program was compiled with; package the "
                "model again with these weights:\n  " + "\n  ".join(problems)
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


def weights_of(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return every tensor that a program holds, by the name under which `load` gets it."""
    constants = {name: value for name, value in program.constants.items() if isinstance(value, torch.Tensor)}
    return {**constants, **program.state_dict}


def weight_names(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the name of the weight, as in `weights_of`, by the placeholder that stands for it."""
    signature = program.graph_signature
    lifted = signature.inputs_to_lifted_tensor_constants
    return {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **lifted}


def signature_of(program: torch.export.ExportedProgram, bucket: Bucket | None) -> Signature:
    """Return the signature of a program, for the sizes of one bucket or for symbolic sizes."""
    sizes = {} if bucket is None else _sizes(program, bucket)
    return Signature(
        inputs={name: _sized(value, sizes) for name, value in _inputs(program).items()},
        weights={
            name: TensorType(dtype_name(tensor), tuple(tensor.shape)) for name, tensor in weights_of(program).items()
        },
    )


def mark_time(program: torch.export.ExportedProgram, dims: Mapping[str, int]) -> None:
    """Mark the time dimension of inputs, given by their names in the program."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in dims:
            node.meta[_TIME_MARK] = dims[node.name]


def time_dims(program: torch.export.ExportedProgram) -> dict[str, int]:
    """Return the dimensions that `mark_time` marked."""
    return {node.name: node.meta[_TIME_MARK] for node in program.graph.nodes if _TIME_MARK in node.meta}


def _inputs(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """The fake tensors of the user's inputs, by placeholder."""
    names = program.graph_signature.user_inputs
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    return {str(name): values[name] for name in names}


def _sized(value: torch.Tensor, sizes: Mapping[str, int]) -> TensorType:
    shape: list[int | torch.SymInt] = list(value.shape)
    return TensorType(
        dtype_name(value), tuple(size if isinstance(size, int) else sizes.get(str(size), str(size)) for size in shape)
    )


def _sizes(program: torch.export.ExportedProgram, bucket: Bucket) -> dict[str, int]:
    """The value of each symbol of the program in a bucket.

    Time symbols are those of marked dimensions, and T in x[B, T, F] of recurrent operators.
    """
    symbols = {name for value in _inputs(program).values() for size in value.shape for name in _symbols(size)}
    time = {name for x in _recurrent_inputs(program) for name in _symbols(x.shape[1])}
    marked, inputs = time_dims(program), _inputs(program)
    time |= {name for key in marked.keys() & inputs.keys() for name in _symbols(inputs[key].shape[marked[key]])}
    return {name: bucket.length if name in time else bucket.batch for name in symbols}


def _recurrent_inputs(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    return [
        node.args[0].meta["val"]
        for node in program.graph.nodes
        if node.op == "call_function" and is_recurrent(node.target)
    ]


def _symbols(size: int | torch.SymInt) -> set[str]:
    return set() if isinstance(size, int) else {str(symbol) for symbol in size.node.expr.free_symbols}


def write_signature(signature: Signature, directory: Path) -> None:
    """Write signature.json beside the program."""
    write_json(Signature, signature, directory / FILE_NAME)


def read_signature(directory: Path) -> Signature:
    """Read a signature that `write_signature` wrote.

    Raises:
        LoadError: the file is missing or damaged.
    """
    try:
        return read_json(Signature, directory / FILE_NAME)
    except JsonError as error:
        raise LoadError(str(error)) from error
