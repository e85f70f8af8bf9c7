"""What a compiled program takes, written beside it: engines run other shapes silently, and die of other dtypes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch

from ..bucketing.shapes import Bucket
from .exported_program import time_dims
from .interface import LoadError, Weights

FILE_NAME = "signature.json"


class WrongInput(ValueError):
    """A call with another number of tensors, another shape or another dtype than a program was compiled for."""


@dataclass(frozen=True)
class TensorType:
    """A tensor without its values. A size given as a text varies, equal texts alike."""

    dtype: str
    shape: tuple[int | str, ...]

    @cached_property
    def torch_dtype(self) -> torch.dtype | None:
        """The dtype itself; None where torch has none of that name."""
        found = getattr(torch, self.dtype, None)
        return found if isinstance(found, torch.dtype) else None


@dataclass(frozen=True)
class Signature:
    """The inputs of a program in order, and the weights it was compiled with."""

    inputs: dict[str, TensorType]
    weights: dict[str, TensorType]

    def check_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Refuse what the program was not compiled for.

        >>> signature = Signature({"x": TensorType("float32", ("s0", 3)), "y": TensorType("int64", ("s0",))}, {})
        >>> signature.check_inputs([torch.zeros(2, 3), torch.ones(5, dtype=torch.int64)])
        Traceback (most recent call last):
        torchserve_neuron_lstm.backends.signature.WrongInput: input 'y' is int64 [5], but the program was ...

        Raises:
            WrongInput: names the input, what it is and what it must be.
        """
        if len(inputs) != len(self.inputs):
            raise WrongInput(
                f"{len(inputs)} inputs, but the program takes {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        sizes: dict[str, int] = {}
        for name, wanted, tensor in zip(self.inputs, self.inputs.values(), inputs, strict=True):
            if not _fits(tensor, wanted, sizes):
                expected = [sizes.get(size, size) if isinstance(size, str) else size for size in wanted.shape]
                raise WrongInput(
                    f"input {name!r} is {_describe(tensor)}, but the program was compiled for {wanted.dtype} {expected}"
                )

    def pick_weights(self, weights: Weights) -> dict[str, torch.Tensor]:
        """The program's weights out of all there are, shared, not copied.

        Raises:
            LoadError: one is missing, or not what the program was compiled with.
        """
        problems = [
            f"{name}: {_describe(weights[name]) if name in weights else 'missing'}, compiled with {_words(wanted)}"
            for name, wanted in self.weights.items()
            if name not in weights or not _fits(weights[name], wanted, {})
        ]
        if problems:
            raise LoadError(
                "the weights are not those the program was compiled with; package the model again, from a file saved "
                "in its own precision:\n  " + "\n  ".join(problems)
            )
        return {name: weights[name] for name in self.weights}


def _fits(tensor: torch.Tensor, wanted: TensorType, sizes: dict[str, int]) -> bool:
    """Whether dtype and shape agree; `sizes` gathers what the varying sizes turned out to be."""
    shape = tensor.shape
    if tensor.dtype is not wanted.torch_dtype or len(shape) != len(wanted.shape):
        return False
    for size, expected in zip(
        shape, wanted.shape, strict=True
    ):  # in a loop: this is done between the pieces of a batch
        if size != expected and not (isinstance(expected, str) and size == sizes.setdefault(expected, size)):
            return False
    return True


def dtype_name(tensor: torch.Tensor) -> str:
    """A dtype as the configuration writes it.

    >>> dtype_name(torch.zeros(1))
    'float32'
    """
    return str(tensor.dtype).removeprefix("torch.")


def _describe(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor)} {list(tensor.shape)}"


def _words(wanted: TensorType) -> str:
    return f"{wanted.dtype} {list(wanted.shape)}"


def weights_of(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Every tensor a program keeps, by the name under which it is handed back at load."""
    constants = {name: value for name, value in program.constants.items() if isinstance(value, torch.Tensor)}
    return {**constants, **program.state_dict}


def signature_of(program: torch.export.ExportedProgram, bucket: Bucket | None) -> Signature:
    """What a program takes: of a bucket's exact sizes, or of every size."""
    sizes = {} if bucket is None else _sizes(program, bucket)
    return Signature(
        inputs={name: _sized(value, sizes) for name, value in _inputs(program).items()},
        weights={
            name: TensorType(dtype_name(tensor), tuple(tensor.shape)) for name, tensor in weights_of(program).items()
        },
    )


def _inputs(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """The (fake) tensors of the user's inputs, by placeholder."""
    names = program.graph_signature.user_inputs
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    return {str(name): values[name] for name in names}


def _sized(value: torch.Tensor, sizes: Mapping[str, int]) -> TensorType:
    shape: list[int | torch.SymInt] = list(value.shape)
    return TensorType(
        dtype_name(value),
        tuple(size if isinstance(size, int) else sizes.get(str(size), str(size)) for size in shape),
    )


def _sizes(program: torch.export.ExportedProgram, bucket: Bucket) -> dict[str, int]:
    """A bucket's number for each symbol of the program.

    Time is what is noted as such, and what recurrent operators have as T in x[B, T, F].
    """
    symbols = {name for value in _inputs(program).values() for size in value.shape for name in _symbols(size)}
    time = {name for x in _recurrent_inputs(program) for name in _symbols(x.shape[1])}
    noted, inputs = time_dims(program), _inputs(program)
    time |= {name for key in noted.keys() & inputs.keys() for name in _symbols(inputs[key].shape[noted[key]])}
    return {name: bucket.length if name in time else bucket.batch for name in symbols}


def _recurrent_inputs(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    return [
        node.args[0].meta["val"]
        for node in program.graph.nodes
        if node.op == "call_function" and str(node.target).startswith("neuron_lstm.")
    ]


def _symbols(size: int | torch.SymInt) -> set[str]:
    return set() if isinstance(size, int) else {str(symbol) for symbol in size.node.expr.free_symbols}


def write_signature(signature: Signature, directory: Path) -> None:
    """Write it beside the program."""
    (directory / FILE_NAME).write_text(json.dumps(asdict(signature)), encoding="utf-8")


def read_signature(directory: Path) -> Signature:
    """Read what `write_signature` wrote.

    Raises:
        LoadError: the file is missing or damaged.
    """
    try:
        written = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
        return Signature(inputs=_types(written["inputs"]), weights=_types(written["weights"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{directory / FILE_NAME} cannot be read ({error}): package the model again") from error


def _types(written: Mapping[str, Mapping[str, object]]) -> dict[str, TensorType]:
    return {name: TensorType(entry["dtype"], tuple(entry["shape"])) for name, entry in written.items()}  # type: ignore[arg-type]
