"""The weights of a file, loaded into the user's model after they were compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ..backends.safetensors_file import WeightsError
from .checkpoint import FoundWeights, find_weights
from .errors import PackagingError
from .model_class import Tell, tell_nothing
from .weight_check import check_dtypes, check_finite


def load_state_dict(
    model: torch.nn.Module, serialized_file: Path | None, tell: Tell = tell_nothing, source: str | None = None
) -> FoundWeights | None:
    """Load the weights of a file into the model, and return them; None if there are none to load.

    `tell` gets a sentence if the file holds more than a state dict with the model's own names. `source` is the file's
    name in messages about its numbers (default: its own), for a copy under another name.

    Raises:
        PackagingError: no file for a model that has weights, a file that holds no state dict or another model's, or
            weights in another precision, or that are NaN or infinite.
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
    found = _found(serialized_file, expected)
    _check_fit(type(model).__name__, expected, found, serialized_file)
    if not found.is_whole_file:
        tell(found.describe(serialized_file))
    check_dtypes(expected, found.weights, serialized_file.name)
    model.load_state_dict(dict(found.weights))
    check_finite(model, source or serialized_file.name)
    return found


def _found(serialized_file: Path, expected: Mapping[str, torch.Tensor]) -> FoundWeights:
    try:
        return find_weights(serialized_file, expected)
    except (WeightsError, PackagingError) as error:
        raise PackagingError(f"--serialized-file {error}") from error


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
        lines = "\n  ".join(problems)
        raise PackagingError(
            f"{file.name}{found.key} does not hold the weights of {model} as built with neuron_lstm.model.args:"
            f"\n  {lines}\nWrite the arguments that the trained model was built with under neuron_lstm.model.args: "
            f"`neuron-lstm init --model-file FILE --serialized-file {file.name}` finds them"
        )
