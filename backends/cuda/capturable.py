"""Programs that can be captured: no call waits for a value, and no size depends on one.

Used while packaging only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from ..interface import CompileError

_aten = torch.ops.aten
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)
_READ_ON_HOST = frozenset({"cond", "while_loop"})


def capture_refusal(node: Node) -> str | None:
    """Return why a call of an exported program cannot be part of a CUDA graph; None if it can."""
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"{target.name()} decides by a value of a tensor" if target.name() in _READ_ON_HOST else None
    if not isinstance(target, torch._ops.OpOverload) or not (node.users or target._schema.is_mutable):
        return None
    if target in _INDEXED:
        return f"{target} selects by a mask, so that a size depends on data" if _has_mask(node) else None
    if torch.Tag.data_dependent_output in target.tags:
        return f"{target} reads a value of a tensor"
    if torch.Tag.dynamic_output_shape in target.tags or _has_new_size(node):
        return f"{target} returns a size that depends on data"
    return None


def check_capturable(module: GraphModule) -> None:
    """Check every call of a graph and of its branches.

    Raises:
        CompileError: calls cannot be part of a CUDA graph; all of them are named.
    """
    graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
    found = [reason for graph in graphs for node in graph.nodes if (reason := capture_refusal(node)) is not None]
    if found:
        raise CompileError(
            f"cuda records the calls of a program once, as a CUDA graph, and {'; '.join(dict.fromkeys(found))}. Write "
            f"partitioner_config: {{}} to run such calls on the CPU, or use another backend"
        )


def place_factories(module: GraphModule) -> None:
    """Name the CPU in calls that make tensors and name no device.

    Loading replaces it by the name of the GPU.
    """
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                if _is_factory(node) and node.kwargs.get("device") is None:
                    node.kwargs = {**node.kwargs, "device": torch.device("cpu")}


def _is_factory(node: Node) -> bool:
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    arguments = target._schema.arguments
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments)
    return not takes_tensors and any(argument.name == "device" for argument in arguments)


def _has_new_size(node: Node) -> bool:
    """Whether a size first appears in the outputs of a call. Composite operators have no tag for it."""
    given = {symbol for argument in node.all_input_nodes for symbol in _data_dependent(argument)}
    return bool(_data_dependent(node) - given)


def _data_dependent(node: Node) -> set[Any]:
    """The symbols of a node's sizes that depend on data."""
    tensors = [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    return {symbol for tensor in tensors for symbol in free_unbacked_symbols(tensor)}


def _has_mask(node: Node) -> bool:
    indices: Any = node.args[1]
    tensors = [index for index in indices if isinstance(index, Node)]
    return any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in tensors)
