"""Test double of torch_neuron (Inf1): the documented contract of `trace` as it is called here, on a CPU.

- `trace(model, example_inputs, **options)` returns a ScriptModule for `torch.jit.save` and `torch.jit.load`.
- Operators that neuron-cc does not support run on the CPU. With `fallback=False`, `AttributeError` names one.
- `compiler_args` is a list of strings. Shapes are those of the example.

`__double__` identifies the double. It needs torch (1.13 or later) and the double of torch_neuronx beside it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch_neuronx._traced import UNSUPPORTED as _NO_HLO
from torch_neuronx._traced import refused, traced

__version__ = "1.13.1.2.11.0+double"
__double__ = True

UNSUPPORTED = _NO_HLO | {"aten::embedding", "aten::gather", "aten::scatter", "aten::cumsum"}
"""Operators of sequence models that are missing in the published list."""


def trace(
    model: torch.nn.Module,
    example_inputs: Any,
    *,
    compiler_args: Sequence[str] | None = None,
    compiler_workdir: str | None = None,
    fallback: bool = True,
) -> Any:
    """Compile `model` for inputs like `example_inputs`."""
    if isinstance(compiler_args, str):
        raise TypeError("compiler_args must be a list of strings")
    module = traced(model, example_inputs, separated=False)
    if (kinds := refused(module, UNSUPPORTED)) and not fallback:
        raise AttributeError(f"Neuron compile failed: the operator {kinds[0]} is not supported")
    if compiler_workdir is not None:
        Path(compiler_workdir).mkdir(parents=True, exist_ok=True)
        (Path(compiler_workdir) / "graph_def.txt").write_text(str(module.inlined_graph), encoding="utf-8")
    return module
