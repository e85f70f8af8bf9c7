"""Tracing: compile a function or a module for the shapes and dtypes of an example, into one file.

    import torch
    from torchserve_neuron_lstm import tracing

    traced = tracing.trace(model, torch.rand(1, 16, 8), backend="onnxruntime")
    traced.save("model.traced")
    tracing.load("model.traced")(torch.rand(1, 16, 8))

The names and options are those of the tracing API of NeuronX, for every backend: docs/tracing.md.
"""

from ..backends.signature import WrongInput
from ..config.partitioner import PartitionerConfig
from .bucket_model import BucketModelConfig, bucket_model_trace
from .trace import analyze, trace
from .traced import Traced, dynamic_batch, load, move_trace_to_device
from .weights import replace_weights

__all__ = [
    "BucketModelConfig",
    "PartitionerConfig",
    "Traced",
    "WrongInput",
    "analyze",
    "bucket_model_trace",
    "dynamic_batch",
    "load",
    "move_trace_to_device",
    "replace_weights",
    "trace",
]
