"""Source export: a program at one bucket's sizes as a Python function of operators of every torch.

Compilers that require an old torch cannot read the exported programs of a new one, nor trace custom operators. Of the
formats that an old torch reads, Python source depends least on versions: TorchScript records versions of its operators,
and its archives record the version of their format. People can read the function too, and it runs here as well, so it
can be verified against the model without its compiler or its device.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...bucketing.shapes import Bucket
from ..exported_program import quiet, specialize
from ..interface import CompileError, Weights
from ..signature import Signature, signature_of, weight_names, weights_of
from . import unrolled
from .source_module import SourceModule

OPERATORS: Mapping[str, Callable[..., Any]] = {"lstm": unrolled.lstm, "rnn": unrolled.rnn}
"""Functions that the source calls beside torch: recurrences, which a compiler unrolls while it traces."""

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


@dataclass(frozen=True)
class SourceProgram:
    """A program as Python source, for exactly the sizes of its signature."""

    source: str
    """Definition of `forward(tensors, *inputs)`."""
    names: tuple[str, ...]
    """Tensors that it takes, by their names in the model's state dict and among its constants."""
    extra_tensors: dict[str, torch.Tensor]
    """Tensors that neither the state dict nor the constants hold: export at fixed sizes created them."""
    signature: Signature

    def module(self, weights: Weights) -> SourceModule:
        """Build a module over these weights, shared and not copied."""
        return build_source_module(self.source, {**weights, **self.extra_tensors}, self.names)

    @property
    def examples(self) -> tuple[torch.Tensor, ...]:
        """Inputs of the right sizes and dtypes: ones, which are valid lengths and ids as well."""
        return self.signature.example_inputs()


def parameter_name(index: int) -> str:
    """Return the name of a tensor in a module: unlike names in state dicts, it has no dots.

    >>> parameter_name(3)
    'w3'
    """
    return f"w{index}"


def build_source_module(source: str, weights: Weights, names: tuple[str, ...]) -> SourceModule:
    """Build the module of a source over the weights of these names, shared and not copied."""
    return SourceModule(source, {parameter_name(i): weights[name].detach() for i, name in enumerate(names)}, OPERATORS)


def export_source(program: torch.export.ExportedProgram, bucket: Bucket) -> SourceProgram:
    """Export a program as Python source for one bucket.

    Raises:
        CompileError: it branches on data, which a traced program cannot.
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
    yield f"def forward({', '.join(['tensors', *map(python_literal, inputs)])}):"
    # Compilers trace on devices of their own: new tensors must be on the device of the inputs.
    yield f"    device = {_device_expression(inputs, names)}"
    for node, name in weights.items():
        yield f"    {python_literal(node)} = tensors[{names.index(name)}]  # {name!r}"
    for node in program.graph.nodes:
        if node.op == "placeholder" or (node.op == "call_function" and _only_asserts(node)):
            continue
        if node.op == "output":
            yield f"    return ({''.join(f'{python_literal(value)}, ' for value in node.args[0])})"
        elif node.op == "call_function":
            yield f"    {python_literal(node)} = {_call(node)}"
        else:
            raise CompileError(f"the program branches on data ({node.target}), and a traced program cannot")


def _device_expression(inputs: list[torch.fx.Node], names: tuple[str, ...]) -> str:
    """Return the device of the first input, else of the first weight, else the CPU."""
    if inputs:
        return f"{python_literal(inputs[0])}.device"
    return "tensors[0].device" if names else "torch.device('cpu')"


def _only_asserts(node: torch.fx.Node) -> bool:
    return not node.users and any(word in str(node.target) for word in ("assert", "sym_constrain"))


def _call(node: torch.fx.Node) -> str:
    target = str(node.target)
    if node.target is operator.getitem:
        return f"{python_literal(node.args[0])}[{python_literal(node.args[1])}]"
    if target in _IDENTITIES:
        return python_literal(node.args[0])
    if not isinstance(node.target, torch._ops.OpOverload):
        raise CompileError(f"the program branches on data ({target}), and a traced program cannot")
    args = [python_literal(value) for value in node.args]
    kwargs = [
        f"{name}={'device' if name == 'device' else python_literal(value)}" for name, value in node.kwargs.items()
    ]
    if target in _LEGACY_OPERATORS:
        return _LEGACY_OPERATORS[target].format(*args, args=", ".join(args), kwargs=", ".join(kwargs))
    if target == "aten.bitwise_not.default" and node.meta["val"].dtype is torch.bool:
        return f"torch.logical_not({args[0]})"
    return f"{_CUSTOM_OPERATORS.get(target, f'torch.ops.{target}')}({', '.join([*args, *kwargs])})"


def python_literal(value: Any) -> str:
    """Return the Python source of a value.

    >>> python_literal([1, float("inf"), torch.float32, None])
    "[1, float('inf'), torch.float32, None]"
    """
    if isinstance(value, torch.fx.Node):
        return f"v_{value.name}"  # an input may be called `torch`
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(python_literal, value))}]"
    if isinstance(value, torch.device):
        return "device"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)
