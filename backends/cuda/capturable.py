"""Programs that can be captured: no call waits for a value, and no size depends on one.

Used while packaging only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from ..interface import CompileError
from .composite_calls import ExampleArguments, example_arguments, is_composite, tell_calls
from .waiting_operators import waits_for_value

_LOG = logging.getLogger(__name__)
_aten = torch.ops.aten
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)
_READ_ON_HOST = frozenset({"cond", "while_loop"})


class _CannotBeCaptured(Exception):
    """A call that cannot be part of a CUDA graph."""


def capture_refusal(node: Node) -> str | None:
    """Return why a call of an exported program cannot be part of a CUDA graph; None if it can."""
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"{target.name()} decides by a value of a tensor" if target.name() in _READ_ON_HOST else None
    if not isinstance(target, torch._ops.OpOverload) or not (node.users or target._schema.is_mutable):
        return None
    given = example_arguments(node)
    if is_composite(target):
        reason = _inner_refusal(target, given) if given.known else _tag_refusal(target)
    else:
        reason = _own_refusal(target, given.args, given.kwargs)
    if reason is None and _has_new_size(node):
        reason = "returns a size that depends on data"
    return None if reason is None else f"{target} {reason}"


def _inner_refusal(target: torch._ops.OpOverload, given: ExampleArguments) -> str | None:
    """Why one of the calls that a composite operator makes cannot be captured."""

    def check(inner: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if (reason := _own_refusal(inner, args, kwargs)) is not None:
            raise _CannotBeCaptured(reason)

    try:
        tell_calls(target, given, check)
    except _CannotBeCaptured as found:
        return str(found)
    except Exception as error:  # noqa: BLE001 - what torch cannot trace may still run; loading names it if not
        _LOG.debug("the calls of %s cannot be determined: %s", target, error)
    return None


def _own_refusal(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why an operator that is no composite cannot be captured."""
    if target in _INDEXED:
        return "selects by a mask, so that a size depends on data" if _has_mask(args[1]) else None
    if target == _aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
        return None  # the size is given, so nothing is read
    if waits_for_value(target, args, kwargs):
        return "reads a value of a tensor"
    return _tag_refusal(target)


def _tag_refusal(target: torch._ops.OpOverload) -> str | None:
    if torch.Tag.data_dependent_output in target.tags:
        return "reads a value of a tensor"
    if torch.Tag.dynamic_output_shape in target.tags:
        return "returns a size that depends on data"
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


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
