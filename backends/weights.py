"""Weight files: tensors mapped into memory once, and shared by every variant; and their comparison."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from .safetensors_file import WeightsError, read_safetensors
from .signature import describe_tensor


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Map the tensors of a `.pt`/`.pth` state dict or a `.safetensors` file, to be read on use.

    They are contiguous and on the CPU. The file must not change as long as a tensor is in use.

    Raises `WeightsError`: there is no such file, it is damaged, or it is not a flat dict of tensors.
    """
    if not path.is_file():
        raise WeightsError(f"there is no weights file {path}")
    _require_content(path)
    read = {".pt": _read_torch, ".pth": _read_torch, ".safetensors": read_safetensors}.get(path.suffix.lower())
    if read is None:
        raise WeightsError(f"{path.name}: weights must be a .pt, .pth or .safetensors file")
    return {name: tensor.contiguous() for name, tensor in read(path).items()}


def refit_mismatches(known: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> list[str]:
    """List the names, shapes and dtypes in which `given` differs from `known`; empty if it can replace it.

    >>> known = {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}
    >>> for line in refit_mismatches(known, {"weight": torch.zeros(2, 4), "scale": torch.zeros(3)}):
    ...     print(line)
    weight: float32 [2, 4], expected float32 [2, 3]
    bias: missing, expected float32 [3]
    scale: float32 [3], expected no weight of this name
    """
    found, expected = ({name: describe_tensor(own) for name, own in weights.items()} for weights in (given, known))
    return [
        f"{name}: {found.get(name, 'missing')}, expected {expected.get(name, 'no weight of this name')}"
        for name in {**known, **given}
        if found.get(name) != expected.get(name)
    ]


def _require_content(path: Path) -> None:
    if path.is_file() and not path.stat().st_size:
        raise WeightsError(f"{path.name} is empty: save the weights again with torch.save(model.state_dict(), ...)")


def _read_torch(path: Path) -> dict[str, torch.Tensor]:
    content = load_checkpoint(path)
    if not isinstance(content, dict):
        raise WeightsError(
            f"{path.name} holds a {type(content).__name__}, not a state dict: save torch.save(model.state_dict(), ...)"
        )
    others = [
        f"{key!r} ({type(value).__name__})"
        for key, value in content.items()
        if not (isinstance(key, str) and isinstance(value, torch.Tensor))
    ]
    if others:
        raise WeightsError(
            f"{path.name} is no flat state dict: {', '.join(others[:5])} {'is' if len(others) == 1 else 'are'} not a "
            f"named tensor, nor does it hold one. Save the model's alone: torch.save(model.state_dict(), ...)"
        )
    return {name: tensor.detach() for name, tensor in content.items()}


def load_checkpoint(path: Path) -> Any:
    """Load what a `.pt` or `.pth` file holds: tensors and plain values, no code.

    Raises `WeightsError`: it is damaged, or holds objects of other classes.
    """
    _require_content(path)
    try:
        mapped = zipfile.is_zipfile(path)  # files of torch before 1.6 cannot be mapped
        # The torch of hosts with old accelerators cannot map files.
        options: dict[str, Any] = {"mmap": True} if mapped and "mmap" in signature(torch.load).parameters else {}
        # As a string: an old torch takes no path of a file to map.
        return torch.load(str(path), map_location="cpu", weights_only=True, **options)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path.name} holds more than tensors, such as a whole module, and is not loaded, because loading it could "
            "run any code: save the weights alone, by torch.save(model.state_dict(), ...)"
        ) from error
    except Exception as error:  # the unpickler raises any exception for damaged data
        if isinstance(error, RuntimeError) and "Cannot allocate memory" in str(error):
            raise WeightsError(f"{path.name} cannot be mapped into memory ({error}): free memory") from error
        raise WeightsError(f"{path.name} is damaged, or no file that torch.save wrote: {error}") from error
