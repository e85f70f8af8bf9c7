"""Test double of torch_neuron (Inf1): the documented contract of `trace`, on a CPU.

- `trace(model, example_inputs, **options)` returns a ScriptModule for `torch.jit.save` and `torch.jit.load`.
- Operators that neuron-cc does not support run on the CPU. With `fallback=False`, `AttributeError` names one.
- `compiler_args` is a list of strings.
- Shapes are those of the example; with `dynamic_batch_size` the 0th dimension may differ.

`__double__` identifies the double. It needs torch (1.13 or later) and the double of torch_neuronx beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch_neuronx._script import Function, Guarded, scripted
from torch_neuronx._trace import UNSUPPORTED as _NO_HLO
from torch_neuronx._trace import example_tensors, jit_trace, operators

__version__ = "1.13.1.2.11.0+double"
__double__ = True

UNSUPPORTED = _NO_HLO | {"aten::embedding", "aten::gather", "aten::scatter", "aten::cumsum"}
"""Operators of sequence models that are missing in the published list."""


def get_supported_operations() -> list[str]:
    """Return some supported operators."""
    return ["aten::add", "aten::linear", "aten::mul", "aten::sigmoid", "aten::slice", "aten::stack", "aten::tanh"]


def trace(
    model: Callable[..., Any],
    example_inputs: Any,
    *,
    compiler_args: Sequence[str] | None = None,
    compiler_timeout: int | None = None,
    compiler_workdir: str | None = None,
    subgraph_builder_function: Callable[[Any], bool] | None = None,
    minimum_segment_size: int = 2,
    single_fusion_ratio_threshold: float = 0.6,
    fallback: bool = True,
    dynamic_batch_size: bool = False,
    optimizations: Sequence[Any] | None = None,
) -> Any:
    """Compile `model` for inputs like `example_inputs`."""
    if isinstance(compiler_args, str):
        raise TypeError("compiler_args must be a list of strings")
    examples = example_tensors(example_inputs)
    module = model if isinstance(model, torch.nn.Module) else Function(model)
    traced = jit_trace(Guarded(module, examples), examples)
    refused = sorted(kind for kind in operators(traced.model.inlined_graph) if not _is_supported(kind))
    if refused and not fallback:
        raise AttributeError(f"Neuron compile failed: the operator {refused[0]} is not supported")
    if compiler_workdir is not None:
        Path(compiler_workdir).mkdir(parents=True, exist_ok=True)
        (Path(compiler_workdir) / "graph_def.txt").write_text(str(traced.inlined_graph), encoding="utf-8")
    answer = traced(*examples)
    compiled = scripted(
        traced, len(examples), 0 if isinstance(answer, torch.Tensor) else len(answer), {}, separated=False
    )
    compiled.dynamic = dynamic_batch_size
    return compiled


def _is_supported(kind: str) -> bool:
    return kind.startswith("aten::") and kind not in UNSUPPORTED
