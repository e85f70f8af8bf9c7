"""Tracing of a module into a ScriptModule that checks its inputs, in any process that loads it.

This file has no `from __future__ import annotations`, because torch.jit.script reads the annotations.
"""

import warnings
from collections.abc import Collection, Sequence
from typing import Any

import torch

UNSUPPORTED = frozenset(
    {
        *("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu", "aten::mkldnn_rnn_layer"),
        *("aten::_pack_padded_sequence", "aten::_pad_packed_sequence", "aten::sort", "aten::argsort", "aten::nonzero"),
        *("aten::nonzero_numpy", "aten::masked_select", "aten::unique_dim", "aten::_unique2", "aten::fft_fft"),
        "aten::linalg_svd",
    }
)
"""Operators that the compilers refuse, in addition to all namespaces other than aten."""


@torch.jit.script
def checked(x: torch.Tensor, like: torch.Tensor, index: int) -> torch.Tensor:
    """`x`, if it has the compiled shape and dtype."""
    if x.dtype != like.dtype:
        raise RuntimeError("input " + str(index) + " has another dtype than the model was compiled for")
    if x.size() != like.size():
        raise RuntimeError(
            "input " + str(index) + " has shape " + str(x.size()) + ", the model was compiled for " + str(like.size())
        )
    if not x.device.type == "cpu":
        raise RuntimeError("input " + str(index) + " is no CPU tensor")
    return x


class Guarded(torch.nn.Module):
    """A module with checks of its inputs; torch.jit.trace keeps the scripted checks unchanged."""

    def __init__(self, model: torch.nn.Module, examples: Sequence[torch.Tensor], *, separated: bool) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("separated", torch.tensor(separated), persistent=False)
        for index, example in enumerate(examples):
            like = torch.zeros((), dtype=example.dtype).expand(example.shape)
            self.register_buffer(f"like{index}", like, persistent=False)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(*(checked(x, getattr(self, f"like{i}"), i) for i, x in enumerate(inputs)))


def traced(model: torch.nn.Module, examples: Any, *, separated: bool) -> Any:
    """torch.jit.trace without its warnings on constants: this is the documented contract."""
    given = (examples,) if isinstance(examples, torch.Tensor) else examples
    if not isinstance(given, (tuple, list)) or not all(isinstance(one, torch.Tensor) for one in given) or not given:
        raise TypeError("example_inputs must be a tensor or a tuple of tensors")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.jit.trace(Guarded(model, given, separated=separated), tuple(given), check_trace=False)


def refused(module: Any, unsupported: Collection[str]) -> list[str]:
    """The operators of a traced module that a compiler does not support, in order of their names."""
    kinds = {node.kind() for node in module.model.inlined_graph.nodes()} - {"aten::Int"}
    others = {kind for kind in kinds if not kind.startswith(("aten::", "prim::"))}
    return sorted(others | (kinds & set(unsupported)))
