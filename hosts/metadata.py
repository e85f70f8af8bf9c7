"""Metadata of models and servers, in the form of the Open Inference Protocol."""

from __future__ import annotations

from importlib.metadata import version

from ..bucketing.shapes import TensorSpec
from ..config.manifest import Manifest
from ..handlers.formats.binary_tensors import DATATYPES

DISTRIBUTION = "torchserve-neuron-lstm"


def server_metadata() -> dict[str, object]:
    """Describe the server by this package."""
    return {"name": DISTRIBUTION, "version": version(DISTRIBUTION), "extensions": ["binary_tensor_data", "sequence"]}


def model_metadata(name: str, model_version: str, manifest: Manifest) -> dict[str, object]:
    """Describe a model: a dimension that varies is -1."""
    return {
        "name": name,
        "versions": [model_version] if model_version else [],
        "platform": f"neuron_lstm_{manifest.backend}",
        "inputs": [_tensor(spec) for spec in manifest.inputs],
        "outputs": [_tensor(spec) for spec in manifest.outputs],
    }


def _tensor(spec: TensorSpec) -> dict[str, object]:
    """Describe a tensor.

    >>> _tensor(TensorSpec("frames", "float32", ("batch", "time", 12)))
    {'name': 'frames', 'datatype': 'FP32', 'shape': [-1, -1, 12]}
    """
    shape = [size if isinstance(size, int) else -1 for size in spec.shape]
    return {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": shape}
