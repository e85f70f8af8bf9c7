"""Test double of torch_neuronx: the documented contract of the tracing API, on a CPU.

It checks its callers against the documented contract, so that code that passes here calls the real package as
documented. Add the directory of this package to PYTHONPATH. It needs only torch (1.13 or later).

The contract:
- `trace` runs the function and returns a ScriptModule that `torch.jit.save` and `torch.jit.load` take, in any process.
- The module takes and gives CPU tensors, and refuses another number, shape or dtype of inputs at each call.
- Options are keywords. By position they are inferred with a warning (`DeprecationWarning`).
- Unsupported operators (`UNSUPPORTED`, and all of other namespaces than aten) raise `RuntimeError`.
- Compiling needs a device, or `cpu_backend=True` and `--target` among `compiler_args`. `NEURON_DOUBLE_CORES` is the
  number of cores of this host, by default 2; `NEURON_RT_VISIBLE_CORES` and `NEURON_RT_NUM_CORES` restrict them.
- Weights are separated with `inline_weights_to_neff=False` alone; `replace_weights` warns of others and leaves them.
- A weight-separated module computes with zeros where its weights are zeros: the old ones are not kept.
- An aliased output is written to its state and is not returned. The documentation leaves this open.
- Wrong values of the partitioner's and placement's options raise the documented ValueError or RuntimeError.
- A dynamic batch that cannot be split raises TorchScript's form of a ValueError: `torch.jit.Error` with that word.

`__double__` identifies the double.
"""

from ._buckets import BucketModelConfig, bucket_model_trace
from ._parallel import DataParallel
from ._partitioner import PartitionerConfig, analyze
from ._placement import (
    async_load,
    lazy_load,
    move_trace_to_device,
    multicore_context,
    neuron_cores_context,
    set_multicore,
    set_neuron_cores,
)
from ._trace import UNSUPPORTED, dynamic_batch, replace_weights, trace

__version__ = "2.9.0.2.15.0+double"
__double__ = True

__all__ = [
    "UNSUPPORTED",
    "BucketModelConfig",
    "DataParallel",
    "PartitionerConfig",
    "analyze",
    "async_load",
    "bucket_model_trace",
    "dynamic_batch",
    "lazy_load",
    "move_trace_to_device",
    "multicore_context",
    "neuron_cores_context",
    "replace_weights",
    "set_multicore",
    "set_neuron_cores",
    "trace",
]
