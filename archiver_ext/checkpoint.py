"""Weights as users have them: a state dict, or a checkpoint that holds one, with or without a prefix."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..backends.safetensors_file import WeightsError
from ..backends.signature import dtype_name
from ..backends.torch_files import torch_file
from ..backends.weights import load_checkpoint, read_weights
from .errors import PackagingError, refusing
from .model_class import Tell, tell_nothing

_DEEPEST = 4
"""Levels of dicts in a checkpoint that are searched."""

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class FoundWeights:
    """The weights in a user's file, under the model's own names."""

    weights: Weights
    key: str
    """The keys that lead to them, as in `['state_dict']`; empty if the file holds nothing else."""
    prefix: str
    """The beginning of all names that was left out, as in `module.`; may be empty."""

    @property
    def is_whole_file(self) -> bool:
        """Whether the file holds these weights and nothing else, under these names."""
        return not (self.key or self.prefix)

    def describe(self, file: Path) -> str:
        """Say what was read of the file."""
        left_out = f"; the prefix {self.prefix!r} of their names was left out" if self.prefix else ""
        return f"{file.name}{self.key} holds the weights{left_out}"


def find_weights(file: Path, expected: Weights) -> FoundWeights:
    """Find the weights in a file whose names and shapes are the expected ones.

    If there are none, those with most of the expected names are returned, for a message that lists the differences.

    Raises `WeightsError`: the file is damaged, or holds no state dict.
    Raises `PackagingError`: it is a TorchScript program, or several of its state dicts fit.
    """
    return choose_weights(read_state_dicts(file), file, expected)


def read_state_dicts(file: Path) -> dict[str, Weights]:
    """Return every dict of named tensors in a file, by the keys that lead to it, as in `['state_dict']`.

    Raises `WeightsError`: the file is damaged, or holds none.
    Raises `PackagingError`: it is a TorchScript program, or has nested tensors, which have no shape.
    """
    if is_torchscript(file):
        raise PackagingError(
            f"{file.name} is a TorchScript program, not a state dict: save it with "
            "torch.save(model.state_dict(), 'weights.pt') and give that file. Without --model-file, the program itself "
            "is served, each request alone"
        )
    is_checkpoint = file.is_file() and file.suffix.lower() in (".pt", ".pth")
    found = dict(_nested(load_checkpoint(file), "", _DEEPEST, set())) if is_checkpoint else {}
    found = found or {"": read_weights(file)}  # which raises, unless it is an empty state dict
    if nested := [name for weights in found.values() for name, one in weights.items() if one.is_nested]:
        raise PackagingError(f"{file.name} holds nested tensors, save their parts alone: {', '.join(nested[:5])}")
    return found


def choose_weights(state_dicts: Mapping[str, Weights], file: Path, expected: Weights) -> FoundWeights:
    """Choose among the state dicts of a file, as `find_weights` does.

    Raises `PackagingError`: several fit, or tensors are no blocks of numbers.
    """
    found = [_without_prefix(key, weights, expected) for key, weights in state_dicts.items()]
    shapes = {name: tensor.shape for name, tensor in expected.items()}
    fitting = [one for one in found if {name: tensor.shape for name, tensor in one.weights.items()} == shapes]
    if len(fitting) > 1:
        keys = " and ".join(one.key for one in fitting)
        raise PackagingError(
            f"{file.name} holds weights that fit {len(fitting)} times: {keys}. Save those to serve alone, as in "
            f"torch.save(torch.load({file.name!r}){fitting[0].key}, 'weights.pt')"
        )
    best = fitting[0] if fitting else max(found, key=lambda one: len(one.weights.keys() & expected.keys()))
    kinds = {name: "meta" if w.is_meta else str(w.layout).removeprefix("torch.") for name, w in best.weights.items()}
    if odd := [f"{name} ({kind})" for name, kind in kinds.items() if kind != "strided"]:
        raise PackagingError(
            f"{file.name} holds tensors without numbers in a row: {', '.join(odd[:5])}. Save dense tensors, as "
            "tensor.to_dense() gives them; a meta tensor has no numbers at all"
        )
    return FoundWeights({name: one.detach() for name, one in best.weights.items()}, best.key, best.prefix)


def _nested(content: Any, key: str, depth: int, seen: set[tuple[int, int]]) -> Iterator[tuple[str, Weights]]:
    """Every dict of named tensors in a checkpoint, with the keys that lead to it first."""
    if not isinstance(content, dict) or not content or depth < 0 or (id(content), depth) in seen:
        return
    seen.add((id(content), depth))
    if all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()):
        yield key, content
        return
    for name, value in content.items():
        yield from _nested(value, f"{key}[{name!r}]", depth - 1, seen)


def _without_prefix(key: str, weights: Weights, expected: Weights) -> FoundWeights:
    """The weights without the prefix that leaves most of the expected names; others keep their full names."""
    ends = {f".{name}" for name in expected}
    prefixes = {name[: 1 - len(end)] for name in weights for end in ends if name.endswith(end)}
    kept = {name for name in weights if name in expected}
    proper = [prefix for prefix in sorted(prefixes) if all(name.startswith(prefix) for name in kept)]
    best = FoundWeights(weights, key, "")
    for prefix in proper:
        renamed = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
        if len(renamed.keys() & expected.keys()) > len(best.weights.keys() & expected.keys()):
            best = FoundWeights(renamed, key, prefix)
    return best


def is_torchscript(file: Path) -> bool:
    """Whether a file is a program that `torch.jit.save` wrote."""
    try:
        if file.is_fifo():  # it would be waited for
            return False
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False  # another format, or damaged or of a later zip: whoever reads it says so


def write_weights(weights: Weights, target: Path) -> None:
    """Write a flat state dict over a file, in the format of its name; the old content may still be mapped."""
    beside = target.with_name(f"new-{target.name}")
    weights = {name: one.contiguous() for name, one in weights.items()}
    if target.suffix.lower() == ".safetensors":
        from safetensors.torch import save_file

        # The format has no tensor twice: tied weights become equal ones.
        used = Counter(one.untyped_storage().data_ptr() for one in weights.values())
        shared = {name for name, one in weights.items() if used[one.untyped_storage().data_ptr()] > 1}
        save_file({name: one.clone() if name in shared else one for name, one in weights.items()}, beside)
    else:
        with torch_file(beside) as file:
            torch.save(weights, file)
    os.replace(beside, target)  # noqa: PTH105 - the old file may be mapped: it must not change


def load_state_dict(
    model: torch.nn.Module, serialized_file: Path | None, tell: Tell = tell_nothing, source: str | None = None
) -> FoundWeights | None:
    """Load the weights of a file into the model, and return them; None if there are none to load.

    `tell` gets a sentence if the file holds more than a state dict with the model's own names. `source` is the file's
    name in messages about its numbers (default: its own), for a copy under another name.

    Raises `PackagingError`: no file for a model that has weights, a file that holds no state dict or another model's,
    or weights in another precision, or that are NaN or infinite.
    """
    expected = model.state_dict()
    if serialized_file is None:
        if expected:
            raise PackagingError(
                f"{type(model).__name__} has {len(expected)} weights, but no --serialized-file is given: "
                f"save it with torch.save(model.state_dict(), 'weights.pt') and give that file"
            )
        check_finite(model, "the model")
        return None
    with refusing((WeightsError, PackagingError), "--serialized-file "):
        found = find_weights(serialized_file, expected)
    _check_fit(type(model).__name__, expected, found, serialized_file)
    if not found.is_whole_file:
        tell(found.describe(serialized_file))
    _check_dtypes(expected, found.weights, serialized_file.name)
    flags = {name: one.view(torch.uint8) for name, one in found.weights.items() if one.dtype is torch.bool}
    if odd := [name for name, one in flags.items() if bool((one > 1).any())]:
        raise PackagingError(
            f"{serialized_file.name} is damaged: a byte of bools is 0 or 1, there are others in:\n{listed(odd)}"
        )
    model.load_state_dict(dict(found.weights))
    check_finite(model, source or serialized_file.name)
    return found


def _check_fit(model: str, expected: Mapping[str, torch.Tensor], found: FoundWeights, file: Path) -> None:
    given = found.weights
    problems = [
        *(f"missing: {name} {list(expected[name].shape)}" for name in expected if name not in given),
        *(f"not in the model: {name} {list(given[name].shape)}" for name in given if name not in expected),
        *(
            f"{name}: the model has {list(expected[name].shape)}, the file {list(given[name].shape)}"
            for name in expected
            if name in given and expected[name].shape != given[name].shape
        ),
    ]
    if problems:
        raise PackagingError(
            f"{file.name}{found.key} does not hold the weights of {model} as built with neuron_lstm.model.args:"
            f"\n{listed(problems)}\n"
            "Write the arguments that the trained model was built with under neuron_lstm.model.args: "
            f"`neuron-lstm init --model-file FILE --serialized-file {file.name} --longest N` finds them"
        )


_SHOWN = 4
_LONGEST_LINE = 300


def check_finite(model: torch.nn.Module, source: str) -> None:
    """Refuse weights that are NaN or infinite; `source` names their file.

    Buffers and frozen parameters may be infinite: a mask of attention often is.

    Raises `PackagingError`: names the first of them, and how many there are.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    found = []
    for name, tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            wrong = int((~tensor.isfinite() if tensor.requires_grad else tensor.isnan()).sum())
            found += [f"{name}: {wrong} of {tensor.numel()}"] if wrong else []
    if found:
        raise PackagingError(
            f"{source}: {len(found)} of {len(tensors)} weights hold NaN or infinite numbers, so the outputs would hold "
            f"them too:\n{listed(found, _SHOWN)}\nSave the weights of an earlier step of the training, in which "
            "all(torch.isfinite(w).all() for w in model.parameters()) is true"
        )


def _check_dtypes(expected: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], source: str) -> None:
    """Refuse a state dict in another precision than that of the model, which programs are compiled for."""
    found = [
        f"{name}: the model has {dtype_name(expected[name])}, the file {dtype_name(tensor)}"
        for name, tensor in given.items()
        if name in expected and expected[name].dtype != tensor.dtype
    ]
    if found:
        raise PackagingError(
            f"{source}: {len(found)} of {len(given)} weights have another precision than the model's:\n"
            f"{listed(found, _SHOWN)}\nSave them in the model's: torch.save(model.float().state_dict(), ...) for "
            "float32; or convert the model in its constructor, as in self.double()"
        )


def listed(problems: Sequence[str], most: int = 100) -> str:
    """Return a line for each of the first problems, short and safe to print: a file may have any names and shapes.

    >>> print(listed(["a: [2]", "b: [3]", "c: [4]"], most=2))
      a: [2]
      b: [3]
      and 1 more
    """
    more = [f"and {len(problems) - most} more"] if len(problems) > most else []
    cut = ("".join(filter(str.isprintable, line[:_LONGEST_LINE])) for line in (*problems[:most], *more))
    return "\n".join(f"  {line}" for line in cut)
