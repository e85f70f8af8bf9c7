"""Class names of `index_to_name.json`, used as by TorchServe's own classifiers.

If the archive has that file, a JSON response is an object of the five most likely classes by name, the most likely
first, each with its probability: the softmax of the model's scores, as in `ts.torch_handler.image_classifier`. V2 and
.npy responses remain the scores, because those formats hold tensors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...bucketing.shapes import TensorSpec

FILE_NAME = "index_to_name.json"
_MOST = 5


@dataclass(frozen=True)
class Labels:
    """The name of each class, in the order of the model's scores."""

    names: tuple[str, ...]

    def most_likely(self, scores: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the names of the highest scores [C], the highest first, with their probabilities.

        >>> named = Labels(("no", "yes")).most_likely(torch.tensor([0.0, 1.0986123]))
        >>> {name: round(float(probability), 3) for name, probability in named.items()}
        {'yes': 0.75, 'no': 0.25}
        """
        found = torch.topk(torch.softmax(scores.float(), 0), min(_MOST, len(self.names)))
        by_name: dict[str, torch.Tensor] = {}
        for probability, index in zip(found.values, found.indices.tolist()):
            by_name.setdefault(self.names[index], probability)  # of two classes with one name, the more likely one
        return by_name


def read_labels(directory: Path, outputs: Sequence[TensorSpec]) -> Labels | None:
    """Read the archive's class names; None if it has none.

    Raises:
        RuntimeError: the file does not name the classes of this model.
    """
    file = directory / FILE_NAME
    if not file.is_file():
        return None
    try:
        return Labels(_names(json.loads(file.read_text("utf-8")), _classes(outputs)))
    except ValueError as error:
        raise RuntimeError(f"{FILE_NAME}: {error}") from error


def _classes(outputs: Sequence[TensorSpec]) -> int:
    spec = outputs[0]
    sizes = [size for size in spec.item_shape if isinstance(size, int)]
    is_vector = len(sizes) == len(spec.item_shape) == 1
    if len(outputs) != 1 or not is_vector or "float" not in spec.dtype:
        shapes = ", ".join(f"{output.name!r} {list(output.item_shape)}" for output in outputs)
        raise ValueError(
            f"class names need a model with one output, one score for each class; this one gives {shapes}. "
            "Remove the file, or give the model a codec"
        )
    return sizes[0]


def _names(mapping: object, classes: int) -> tuple[str, ...]:
    if isinstance(mapping, dict) and isinstance(mapping.get("object_type_names"), list):  # TorchServe's older form
        mapping = {str(index): name for index, name in enumerate(mapping["object_type_names"])}
    if not isinstance(mapping, dict):
        raise ValueError('it must be an object from class number to name, like {"0": "no", "1": "yes"}')  # noqa: TRY004 - a bad file
    missing = [index for index in range(classes) if str(index) not in mapping]
    if missing:
        raise ValueError(f"the model has {classes} classes, but class {missing[0]} has no name")
    return tuple(_name(mapping[str(index)]) for index in range(classes))


def _name(value: object) -> str:
    name = value[-1] if isinstance(value, list) and value else value
    if not isinstance(name, str):
        raise ValueError(f"a class name must be a string or a list of strings, not {type(name).__name__}")  # noqa: TRY004 - a bad file
    return name
