"""Source export: a program at one bucket's sizes as a Python function of operators of every torch.

Used only while packaging: archives do not contain this file.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from ...bucketing.shapes import Bucket
from ..exported_program import quiet, specialize
from ..exported_tensors import weight_names, weights_of
from ..interface import CompileError
from ..program_source.write import graph_source
from ..signature import signature_of
from .source_program import SourceProgram

_aten = torch.ops.aten


def export_source(program: torch.export.ExportedProgram, bucket: Bucket) -> SourceProgram:
    """Export a program as Python source for one bucket.

    Raises `CompileError`: it branches on data, which a traced program cannot.
    """
    signature = signature_of(program, bucket)
    with quiet():
        fixed = specialize(program, bucket).run_decompositions({})
    if any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in fixed.graph.nodes):
        raise CompileError("the program branches on data, and a traced program cannot")
    held = weight_names(fixed)
    weights = {node: held[node.name] for node in fixed.graph.find_nodes(op="placeholder") if node.name in held}
    names = tuple(dict.fromkeys(name for node, name in weights.items() if node.users))
    named, all_tensors = weights_of(program), weights_of(fixed)
    for node in list(fixed.graph.nodes):
        _use_legacy_operator(node)
    source = graph_source(
        fixed.graph_module, {node: f"w{names.index(name)}" if node.users else name for node, name in weights.items()}
    )
    return SourceProgram(
        # Compilers trace on their own devices: new tensors must be on the device of the inputs.
        source=source.replace("torch.device('cpu')", "tensors['device']"),
        names=names,
        extra_tensors={name: all_tensors[name] for name in names if name not in named},
        signature=signature,
    )


def _use_legacy_operator(node: Node) -> None:
    """Call an operator that old compilers support, in place of the one that torch.export makes of it."""
    if node.target == _aten._to_copy.default:
        node.target, node.args, node.kwargs = _aten.to.dtype, (node.args[0], node.meta["val"].dtype), {}
    elif node.target == _aten._unsafe_view.default:
        node.target = _aten.reshape.default
    elif node.target == _aten.lift_fresh_copy.default:
        node.target = _aten.alias.default
    elif node.target == _aten.bitwise_not.default and node.meta["val"].dtype is torch.bool:
        node.target = _aten.logical_not.default
    elif node.target == _aten._native_batch_norm_legit_no_training.default:
        *tensors, momentum, eps = node.args
        node.target, node.args = _aten.batch_norm.default, (*tensors, False, momentum, eps, True)
        for result in [user for user in node.users if user.target is operator.getitem]:
            result.replace_all_uses_with(node)
            node.graph.erase_node(result)
