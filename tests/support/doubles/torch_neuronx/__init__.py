"""Test double of torch_neuronx: the documented contract of what is called here, on a CPU.

It checks its callers against the documented contract, so that code that passes here calls the real package as
documented. Add the directory of this package to PYTHONPATH. It needs only torch (1.13 or later).

The contract:
- `trace` runs the module and returns a ScriptModule that `torch.jit.save` and `torch.jit.load` take, in any process.
- The module takes and gives CPU tensors, and refuses another number, shape or dtype of inputs at each call.
- Unsupported operators raise `RuntimeError`.
- Compiling needs a device, or `cpu_backend=True` and `--target` among `compiler_args`. `NEURON_DOUBLE_CORES` is the
  number of cores of this host, by default 2; `NEURON_RT_VISIBLE_CORES` and `NEURON_RT_NUM_CORES` restrict them.
- Weights are separated with `inline_weights_to_neff=False` alone; `replace_weights` warns of others and leaves them.
- A weight-separated module computes with zeros where its weights are zeros: the old ones are not kept.
- Wrong values of placement's options raise the documented ValueError or RuntimeError. Modules do not move on a CPU.

`__double__` identifies the double.
"""

import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ._cores import host_cores, visible_cores
from ._traced import UNSUPPORTED, refused, traced

__version__ = "2.9.0.2.15.0+double"
__double__ = True


def trace(
    func: torch.nn.Module,
    example_inputs: Any,
    *,
    compiler_workdir: str | None = None,
    compiler_args: str | Sequence[str] = (),
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> Any:
    """Compile a module for inputs of exactly the shapes and dtypes of `example_inputs`."""
    words = shlex.split(compiler_args) if isinstance(compiler_args, str) else [*compiler_args]
    _check_target(words, cpu_backend=cpu_backend)
    module = traced(func, example_inputs, separated=not inline_weights_to_neff)
    if kinds := refused(module, UNSUPPORTED):
        raise RuntimeError(f"neuronx-cc: the operators {', '.join(kinds)} are not supported")
    if compiler_workdir is not None:
        Path(compiler_workdir).mkdir(parents=True, exist_ok=True)
        (Path(compiler_workdir) / "graph.hlo.txt").write_text(str(module.inlined_graph), encoding="utf-8")
        (Path(compiler_workdir) / "command.txt").write_text(shlex.join(words), encoding="utf-8")
    return module


def _check_target(words: Sequence[str], *, cpu_backend: bool) -> None:
    named = any(word == "--target" or word.startswith("--target=") for word in words)
    if cpu_backend and not named:
        raise ValueError("cpu_backend=True needs the --target flag among compiler_args")
    if not cpu_backend and host_cores() == 0:
        raise RuntimeError("no Neuron device was found: trace with cpu_backend=True and --target in compiler_args")
    if "--no-such-option" in words:
        raise RuntimeError("neuronx-cc: error: unrecognized arguments: --no-such-option")


def replace_weights(neuron_model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Replace the weights of a module traced with `inline_weights_to_neff=False`, in place."""
    _require_neuron(neuron_model)
    if not neuron_model.separated:
        warnings.warn("the Neuron model does not contain any separated weights", UserWarning, stacklevel=2)
        return
    for name, tensor in weights.items():
        owner = neuron_model.model
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        if getattr(owner, last).shape != tensor.shape:
            raise ValueError(f"replace_weights: {name} has another shape than was compiled for")
        owner._c.setattr(last, tensor.detach())


@contextmanager
def neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> Iterator[None]:
    """Place the modules that torch.jit.load reads in the context."""
    visible = visible_cores()
    if nc_count == 0 or nc_count < -1 or nc_count > visible:
        raise ValueError(f"nc_count: {nc_count} is no number of NeuronCores, {visible} are visible")
    if start_nc < -1 or max(start_nc, 0) + max(nc_count, 1) > visible:
        raise ValueError(f"start_nc: there is no NeuronCore {start_nc}, {visible} are visible")
    yield


def move_trace_to_device(trace: Any, device_id: int) -> None:
    """Move separated weights to a core, in place."""
    _require_neuron(trace)
    if not 0 <= device_id < visible_cores():
        raise RuntimeError(f"there is no NeuronCore {device_id}, {visible_cores()} are visible")


def _require_neuron(module: Any) -> None:
    if not hasattr(module, "separated"):
        raise RuntimeError("this is no module that torch_neuronx.trace made")
