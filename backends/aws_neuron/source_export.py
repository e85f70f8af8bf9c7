"""Source export: a program at one bucket's sizes as a Python function of operators of every torch.

Used only while packaging: archives do not contain this file.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...bucketing.shapes import Bucket
from ..exported_program import is_assertion, quiet, specialize
from ..exported_tensors import weight_names, weights_of
from ..interface import CompileError
from ..program_source.write import python_literal
from ..signature import signature_of
from .source_program import OPERATORS, SourceProgram

_CUSTOM_OPERATORS = {f"neuron_lstm.{name}.default": name for name in OPERATORS}
_IDENTITIES = ("aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default")
"""Operators that return their input."""

_LEGACY_OPERATORS: Mapping[str, str] = {
    "aten._to_copy.default": "{0}.to({kwargs})",
    "aten._unsafe_view.default": "torch.ops.aten.reshape.default({args})",
    "aten._native_batch_norm_legit_no_training.default": (
        "(torch.nn.functional.batch_norm({0}, {3}, {4}, {1}, {2}, False, {5}, {6}),)"
    ),
}
"""Calls that old compilers support, in place of the operators that torch.export makes of them."""


def export_source(program: torch.export.ExportedProgram, bucket: Bucket) -> SourceProgram:
    """Export a program as Python source for one bucket.

    Raises `CompileError`: it branches on data, which a traced program cannot.
    """
    signature = signature_of(program, bucket)
    with quiet():
        fixed = specialize(program, bucket).run_decompositions({})
    held = weight_names(fixed)
    placeholders = [node for node in fixed.graph.nodes if node.op == "placeholder"]
    inputs = [node for node in placeholders if node.name not in held]
    weights = {node: held[node.name] for node in placeholders if node.name in held and node.users}
    names = tuple(dict.fromkeys(weights.values()))
    known, all_tensors = weights_of(program), weights_of(fixed)
    return SourceProgram(
        source="\n".join(_lines(fixed, inputs, weights, names)) + "\n",
        names=names,
        extra_tensors={name: all_tensors[name] for name in names if name not in known},
        signature=signature,
    )


def _lines(
    program: torch.export.ExportedProgram,
    inputs: list[torch.fx.Node],
    weights: Mapping[torch.fx.Node, str],
    names: tuple[str, ...],
) -> Iterator[str]:
    yield f"def forward({', '.join(['tensors', *map(_expression, inputs)])}):"
    # Compilers trace on their own devices: new tensors must be on the device of the inputs.
    yield f"    device = {_device_expression(inputs, names)}"
    for node, name in weights.items():
        yield f"    {_expression(node)} = tensors[{names.index(name)}]  # {name!r}"
    for node in program.graph.nodes:
        if node.op == "placeholder" or is_assertion(node):
            continue
        if node.op == "output":
            yield f"    return ({''.join(f'{_expression(value)}, ' for value in node.args[0])})"
        elif node.op == "call_function":
            yield f"    {_expression(node)} = {_call(node)}"
        else:
            raise CompileError(f"the program branches on data ({node.target}), and a traced program cannot")


def _device_expression(inputs: list[torch.fx.Node], names: tuple[str, ...]) -> str:
    """Return the device of the first input, else of the first weight, else the CPU."""
    if inputs:
        return f"{_expression(inputs[0])}.device"
    return "tensors[0].device" if names else "torch.device('cpu')"


def _call(node: torch.fx.Node) -> str:
    target = str(node.target)
    if node.target is operator.getitem:
        return f"{_expression(node.args[0])}[{_expression(node.args[1])}]"
    if target in _IDENTITIES:
        return _expression(node.args[0])
    if not isinstance(node.target, torch._ops.OpOverload):
        raise CompileError(f"the program branches on data ({target}), and a traced program cannot")
    args = [_expression(value) for value in node.args]
    kwargs = [f"{name}={'device' if name == 'device' else _expression(value)}" for name, value in node.kwargs.items()]
    if target in _LEGACY_OPERATORS:
        return _LEGACY_OPERATORS[target].format(*args, args=", ".join(args), kwargs=", ".join(kwargs))
    if target == "aten.bitwise_not.default" and node.meta["val"].dtype is torch.bool:
        return f"torch.logical_not({args[0]})"
    return f"{_CUSTOM_OPERATORS.get(target, f'torch.ops.{target}')}({', '.join([*args, *kwargs])})"


def _expression(value: Any) -> str:
    """Return the Python source of an argument: of a value in the program, or of a constant."""
    if isinstance(value, torch.fx.Node):
        return f"v_{value.name}"  # an input may be called `torch`
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_expression, value))}]"
    return "device" if isinstance(value, torch.device) else python_literal(value)
