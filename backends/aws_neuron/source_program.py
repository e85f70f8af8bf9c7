"""An exported program at the sizes of one bucket, written out in operators that every version of torch has.

Compilers that are tied to an old torch cannot read what a new one exports, nor trace operators of ours. Of what an old
torch does read, the text of a function is the least bound to versions: TorchScript carries versions of its operators,
and its archives of the format. A function can be read by people too, and the same text runs here, so that it can be
held against the model where its compiler, or what that compiles for, is not at hand.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...bucketing.shapes import Bucket
from ..interface import CompileError, Weights
from ..signature import Signature, signature_of, weights_of
from . import unrolled
from .source_module import SourceModule

OPERATORS: Mapping[str, Callable[..., Any]] = {"lstm": unrolled.lstm, "rnn": unrolled.rnn}
"""What the text calls beside torch: the recurrences, which a compiler unrolls while it traces."""

_OURS = {f"neuron_lstm.{name}.default": name for name in OPERATORS}
_SAME = ("aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default")
"""Operators whose answer is what they are given."""

_LEGACY_OPERATORS: Mapping[str, str] = {
    "aten._to_copy.default": "{0}.to({kwargs})",
    "aten._unsafe_view.default": "torch.ops.aten.reshape.default({args})",
    "aten._native_batch_norm_legit_no_training.default": (
        "(torch.nn.functional.batch_norm({0}, {3}, {4}, {1}, {2}, False, {5}, {6}),)"
    ),
}
"""What torch.export has made of operators that old compilers know by their first names."""


@dataclass(frozen=True)
class SourceProgram:
    """A program in text, for exactly the sizes of its signature."""

    source: str
    """Defines `forward(tensors, *inputs)`."""
    names: tuple[str, ...]
    """The tensors it takes, by their names in the model's state dict and among its constants."""
    extra_tensors: dict[str, torch.Tensor]
    """Those of them that neither the state dict nor the constants hold: exporting for fixed sizes brought them."""
    signature: Signature

    def module(self, weights: Weights) -> SourceModule:
        """The program as a module over these weights, shared and not copied."""
        return build_source_module(self.source, {**weights, **self.extra_tensors}, self.names)

    @property
    def examples(self) -> tuple[torch.Tensor, ...]:
        """Inputs of the right sizes and dtypes: ones, which are lengths and ids too."""
        kinds = self.signature.inputs.values()
        return tuple(torch.ones([int(size) for size in kind.shape], dtype=kind.torch_dtype) for kind in kinds)


def parameter_name(index: int) -> str:
    """What a tensor is called in a module: state dicts have dots in names, modules and compilers' files may not.

    >>> parameter_name(3)
    'w3'
    """
    return f"w{index}"


def build_source_module(source: str, weights: Weights, names: tuple[str, ...]) -> SourceModule:
    """The module of a text that takes the tensors called `names`."""
    return SourceModule(source, {parameter_name(i): weights[name].detach() for i, name in enumerate(names)}, OPERATORS)


def export_source(program: torch.export.ExportedProgram, bucket: Bucket) -> SourceProgram:
    """Write a program out for one bucket.

    Raises:
        CompileError: it branches on data, which a traced program cannot.
    """
    signature = signature_of(program, bucket)
    fixed = _fixed(program, signature)
    given = fixed.graph_signature
    taken = {**given.inputs_to_parameters, **given.inputs_to_buffers, **given.inputs_to_lifted_tensor_constants}
    placeholders = [node for node in fixed.graph.nodes if node.op == "placeholder"]
    used = tuple(dict.fromkeys(taken[node.name] for node in placeholders if node.name in taken and node.users))
    known, all_of_fixed = weights_of(program), weights_of(fixed)
    return SourceProgram(
        source="\n".join(_lines(fixed, placeholders, taken, used)) + "\n",
        names=used,
        extra_tensors={name: all_of_fixed[name] for name in used if name not in known},
        signature=signature,
    )


def _fixed(program: torch.export.ExportedProgram, signature: Signature) -> torch.export.ExportedProgram:
    inputs = tuple(
        torch.ones([int(size) for size in kind.shape], dtype=kind.torch_dtype) for kind in signature.inputs.values()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its internals
        # Without in-place operators first: on a constant of a saved program torch refuses to trace them again.
        functional = program.run_decompositions({})
        fixed: torch.export.ExportedProgram = torch.export.export(functional.module(), inputs, strict=False)
        decomposed: torch.export.ExportedProgram = fixed.run_decompositions({})
    return decomposed


def _lines(
    program: torch.export.ExportedProgram,
    placeholders: list[torch.fx.Node],
    taken: Mapping[str, str],
    used: tuple[str, ...],
) -> Iterator[str]:
    inputs = [python_literal(node) for node in placeholders if node.name not in taken]
    yield f"def forward(tensors, {', '.join(inputs)}):"
    # Compilers trace on devices of their own: what is made on the way must be where the inputs are.
    yield f"    device = {inputs[0]}.device"
    for node in placeholders:
        if node.name in taken and node.users:
            yield f"    {python_literal(node)} = tensors[{used.index(taken[node.name])}]  # {taken[node.name]!r}"
    for node in program.graph.nodes:
        if node.op == "placeholder" or (node.op == "call_function" and _only_asserts(node)):
            continue
        if node.op == "output":
            yield f"    return ({''.join(f'{python_literal(value)}, ' for value in node.args[0])})"
        elif node.op == "call_function":
            yield f"    {python_literal(node)} = {_call(node)}"
        else:
            raise CompileError(f"the program branches on data ({node.target}), and a traced program cannot")


def _only_asserts(node: torch.fx.Node) -> bool:
    return not node.users and any(word in str(node.target) for word in ("assert", "sym_constrain"))


def _call(node: torch.fx.Node) -> str:
    target = str(node.target)
    if node.target is operator.getitem:
        return f"{python_literal(node.args[0])}[{python_literal(node.args[1])}]"
    if target in _SAME:
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
    return f"{_OURS.get(target, f'torch.ops.{target}')}({', '.join([*args, *kwargs])})"


def python_literal(value: Any) -> str:
    """A value as Python's text.

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
