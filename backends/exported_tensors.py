"""Tensors of an exported program: its weights, and its inputs in the sizes of a bucket.

A symbol does not say whether it is batch or time: recurrent operators show it, and marks that lowering makes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..bucketing.shapes import Bucket
from .recurrent_operators import is_recurrent

_TIME_MARK = "neuron_lstm_time"


def weights_of(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return every tensor that a program holds, by the name under which `load` gets it."""
    constants = {name: value for name, value in program.constants.items() if isinstance(value, torch.Tensor)}
    return {**constants, **program.state_dict}


def weight_names(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the name of the weight, as in `weights_of`, by the placeholder that stands for it."""
    signature = program.graph_signature
    lifted = signature.inputs_to_lifted_tensor_constants
    return {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **lifted}


def inputs_of(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the fake tensors of the user's inputs, by placeholder."""
    names = program.graph_signature.user_inputs
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    return {str(name): values[name] for name in names}


def mark_time(program: torch.export.ExportedProgram, dims: Mapping[str, int]) -> None:
    """Mark the time dimension of inputs, given by their names in the program."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in dims:
            node.meta[_TIME_MARK] = dims[node.name]


def time_dims(program: torch.export.ExportedProgram) -> dict[str, int]:
    """Return the dimensions that `mark_time` marked."""
    return {node.name: node.meta[_TIME_MARK] for node in program.graph.nodes if _TIME_MARK in node.meta}


def symbol_sizes(program: torch.export.ExportedProgram, bucket: Bucket) -> dict[str, int]:
    """Return the value of each symbol of the program in a bucket.

    Time symbols are those of marked dimensions, and T in x[B, T, F] of recurrent operators.
    """
    symbols = {name for value in inputs_of(program).values() for size in value.shape for name in _symbols(size)}
    recurrent = [node for node in program.graph.nodes if node.op == "call_function" and is_recurrent(node.target)]
    time = {name for node in recurrent for name in _symbols(node.args[0].meta["val"].shape[1])}
    marked, inputs = time_dims(program), inputs_of(program)
    time |= {name for key in marked.keys() & inputs.keys() for name in _symbols(inputs[key].shape[marked[key]])}
    return {name: bucket.length if name in time else bucket.batch for name in symbols}


def _symbols(size: int | torch.SymInt) -> set[str]:
    return set() if isinstance(size, int) else {str(symbol) for symbol in size.node.expr.free_symbols}
