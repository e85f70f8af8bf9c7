"""Digest of an exported program without the values of its weights.

Programs of one digest compile to the same code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import torch
from torch.fx import GraphModule, Node

from ..exported_tensors import time_dims

_ADDRESS = " at 0x"
"""Part of the text of an object whose content is unknown."""


class _UnknownContent(Exception):
    """A part of a program that cannot be written as text."""


def program_digest(program: torch.export.ExportedProgram) -> Optional[str]:
    """Return the digest of the graph, its types and constants; None if a part cannot be described.

    Of weights it has the names, types and layouts, and which share memory. Constants are values of the model's code:
    engines may write them into the program, so their values count.
    """
    hasher = hashlib.sha256()
    try:
        for line in _lines(program):
            if _ADDRESS in line:
                return None
            hasher.update(line.encode() + b"\n")
    except _UnknownContent:
        return None
    return hasher.hexdigest()


def _lines(program: torch.export.ExportedProgram) -> Iterator[str]:
    yield f"signature {program.graph_signature}"
    yield f"ranges {sorted((str(symbol), str(bounds)) for symbol, bounds in program.range_constraints.items())}"
    yield f"call {program.call_spec}"
    yield f"time {json.dumps(time_dims(program), sort_keys=True)}"
    yield from _weight_lines(program.state_dict)
    for name, value in program.constants.items():
        yield f"constant {name} {_value(value)}"
    for name, module in program.graph_module.named_modules():
        yield f"module {name} {type(module).__name__}"
        if isinstance(module, GraphModule):
            yield from map(_node_line, module.graph.nodes)
        for owned, value in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if (f"{name}.{owned}" if name else owned) not in program.state_dict:
                yield f"tensor {owned} {_value(value)}"


def _weight_lines(weights: Mapping[str, Any]) -> Iterator[str]:
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in weights.items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        shared = first.setdefault(place, name) if tensor.numel() else name
        yield f"weight {name} {_layout(tensor)} {isinstance(tensor, torch.nn.Parameter)} {shared}"


def _node_line(node: Node) -> str:
    return (
        f"{node.op} {node.name} {_target(node.target)} {node.args} {node.kwargs} "
        f"{_kind(node.meta.get('val'))} {[user.name for user in node.users]}"
    )


def _target(target: Any) -> str:
    if isinstance(target, str | torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return str(target)
    return f"{target.__module__}.{target.__qualname__}"


def _kind(value: Any) -> str:
    """The type of a node's value."""
    if isinstance(value, torch.Tensor):
        return _layout(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_kind, value))}]"
    return f"{type(value).__name__} {value}"


def _layout(tensor: torch.Tensor) -> str:
    sizes, strides = [str(size) for size in tensor.shape], [str(step) for step in tensor.stride()]
    return f"{tensor.dtype} {sizes} {strides} {tensor.device} {tensor.requires_grad}"


def _value(value: Any) -> str:
    """The type and content of a constant.

    Raises:
        _UnknownContent: it is no plain tensor.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
        raise _UnknownContent
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return f"{_layout(value)} {hashlib.sha256(content.numpy().tobytes()).hexdigest()}"
