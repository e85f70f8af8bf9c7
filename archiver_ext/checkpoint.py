"""Weights as users have them: a state dict, or a checkpoint that holds one, with or without a prefix."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..backends.torch_files import torch_file
from ..backends.weights import load_checkpoint, read_weights
from .errors import PackagingError

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

    Raises:
        WeightsError: the file is damaged, or holds no state dict.
        PackagingError: it is a TorchScript program, or several of its state dicts fit.
    """
    return choose_weights(read_state_dicts(file), file, expected)


def read_state_dicts(file: Path) -> dict[str, Weights]:
    """Return every dict of named tensors in a file, by the keys that lead to it, as in `['state_dict']`.

    Raises:
        WeightsError: the file is damaged, or holds none.
        PackagingError: it is a TorchScript program.
    """
    _refuse_torchscript(file)
    return dict(_state_dicts(file)) or {"": read_weights(file)}  # which raises, unless it is an empty state dict


def choose_weights(state_dicts: Mapping[str, Weights], file: Path, expected: Weights) -> FoundWeights:
    """Choose among the state dicts of a file, as `find_weights` does.

    Raises:
        PackagingError: several fit.
    """
    found = [_without_prefix(key, weights, expected) for key, weights in state_dicts.items()]
    fitting = [one for one in found if _fits(one.weights, expected)]
    if len(fitting) > 1:
        keys = " and ".join(one.key for one in fitting)
        raise PackagingError(
            f"{file.name} holds weights that fit {len(fitting)} times: {keys}. Save those to serve alone, as in "
            f"torch.save(torch.load({file.name!r}){fitting[0].key}, 'weights.pt')"
        )
    best = fitting[0] if fitting else max(found, key=lambda one: len(one.weights.keys() & expected.keys()))
    _refuse_without_numbers(best.weights, file)
    return FoundWeights({name: one.detach().contiguous() for name, one in best.weights.items()}, best.key, best.prefix)


def _state_dicts(file: Path) -> Iterator[tuple[str, Weights]]:
    if file.is_file() and file.suffix.lower() in (".pt", ".pth"):
        yield from _nested(load_checkpoint(file), "", _DEEPEST)
    else:
        yield "", read_weights(file)


def _nested(content: Any, key: str, depth: int) -> Iterator[tuple[str, Weights]]:
    """Every dict of named tensors in a checkpoint, with the keys that lead to it."""
    if not isinstance(content, dict) or not content or depth < 0:
        return
    if all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()):
        yield key, content
        return
    for name, value in content.items():
        yield from _nested(value, f"{key}[{name!r}]", depth - 1)


def _without_prefix(key: str, weights: Weights, expected: Weights) -> FoundWeights:
    """The weights without the prefix that leaves most of the expected names; others keep their full names."""
    ends = {f".{name}" for name in expected}
    prefixes = {name[: 1 - len(end)] for name in weights for end in ends if name.endswith(end)}
    proper = [one for one in sorted(prefixes) if not any(name in expected for name in weights if _lacks(name, one))]
    best = FoundWeights(weights, key, "")
    for prefix in proper:
        renamed = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
        if len(renamed.keys() & expected.keys()) > len(best.weights.keys() & expected.keys()):
            best = FoundWeights(renamed, key, prefix)
    return best


def _lacks(name: str, prefix: str) -> bool:
    return not name.startswith(prefix)


def _fits(weights: Weights, expected: Weights) -> bool:
    same_names = weights.keys() == expected.keys()
    return same_names and all(weights[name].shape == tensor.shape for name, tensor in expected.items())


def _refuse_torchscript(file: Path) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return  # another format, or damaged: whoever reads it says so
    if any(name.endswith("/constants.pkl") for name in names):
        raise PackagingError(
            f"{file.name} is a TorchScript program, not a state dict: save it with "
            f"torch.save(model.state_dict(), 'weights.pt') and give that file"
        )


def _refuse_without_numbers(weights: Weights, file: Path) -> None:
    """Refuse tensors that no program can hold as a block of numbers.

    Raises:
        PackagingError: names them.
    """
    kinds = {name: "meta" if one.is_meta else str(one.layout).removeprefix("torch.") for name, one in weights.items()}
    found = [f"{name} ({kind})" for name, kind in kinds.items() if kind != "strided"]
    if found:
        raise PackagingError(
            f"{file.name} holds tensors without numbers in a row: {', '.join(found[:5])}. Save dense tensors, as "
            "tensor.to_dense() gives them; a meta tensor has no numbers at all"
        )


def write_weights(weights: Weights, target: Path) -> None:
    """Write a flat state dict over a file, in the format of its name; the old content may still be mapped."""
    beside = target.with_name(f"new-{target.name}")
    if target.suffix.lower() == ".safetensors":
        from safetensors.torch import save_file

        # The format has no tensor twice: tied weights become equal ones.
        used = Counter(one.untyped_storage().data_ptr() for one in weights.values())
        shared = {name for name, one in weights.items() if used[one.untyped_storage().data_ptr()] > 1}
        save_file({name: one.clone() if name in shared else one for name, one in weights.items()}, beside)
    else:
        with torch_file(beside) as file:
            torch.save(dict(weights), file)
    os.replace(beside, target)  # noqa: PTH105 - the old file may be mapped: it must not change
