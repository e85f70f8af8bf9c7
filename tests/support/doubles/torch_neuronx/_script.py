"""Tracing of a function into a ScriptModule that checks its inputs, in any process that loads it.

This file has no `from __future__ import annotations`, because torch.jit.script reads the annotations.
"""

import linecache
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch

_numbers = count()


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


@torch.jit.script
def common_batch(inputs: list[torch.Tensor], likes: list[torch.Tensor]) -> int:
    """The rows of all inputs, which may differ from the compiled ones in dimension 0 only."""
    batch = inputs[0].size(0)
    for index in range(len(inputs)):
        x = inputs[index]
        like = likes[index]
        if x.dim() != like.dim():
            raise ValueError("input " + str(index) + " has another number of dimensions than was compiled for")
        for d in range(1, x.dim()):
            if x.size(d) != like.size(d):
                raise ValueError("input " + str(index) + " differs from the compiled shape in dimension " + str(d))
        if x.size(0) != batch:
            raise ValueError("the 0th dimension differs between the inputs")
    return batch


@torch.jit.script
def chunk_of(x: torch.Tensor, begin: int, size: int) -> torch.Tensor:
    """Rows from `begin` on, with zeros after the last."""
    rows = x[begin : begin + size]
    if rows.size(0) == size:
        return rows
    shape = list(x.size())
    shape[0] = size - rows.size(0)
    return torch.cat([rows, torch.zeros(shape, dtype=x.dtype)])


class Function(torch.nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


class Guarded(torch.nn.Module):
    """A module with checks of its inputs; torch.jit.trace keeps the scripted checks unchanged."""

    def __init__(self, model: torch.nn.Module, examples: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        for index, example in enumerate(examples):
            like = torch.zeros((), dtype=example.dtype).expand(example.shape)
            self.register_buffer(f"like{index}", like, persistent=False)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(*(checked(x, getattr(self, f"like{i}"), i) for i, x in enumerate(inputs)))


_FORWARD = """\
def forward(self, {parameters}):
    if not self.dynamic:
        {names} = self.inner({arguments})
        {writes}
        return {answers}
    batch = common_batch([{arguments}], [{likes}])
    size = self.inner.like0.size(0)
    {lists}
    for begin in range(0, batch, size):
        {names} = self.inner({chunks})
        {writes}
        {appends}
    return {joined}
"""


def scripted(inner: Any, inputs: int, outputs: int, states: dict[int, str], *, separated: bool) -> Any:
    """The traced module in a wrapper, which can take every batch and writes aliased outputs to states.

    `states` maps an output's index to the path of the tensor below `inner`. `outputs` is 0 for a single tensor.
    """
    kept = [index for index in range(max(outputs, 1)) if index not in states]
    parameters = [f"x{i}" for i in range(inputs)]
    names = [f"y{i}" for i in range(max(outputs, 1))]
    single = len(kept) == 1 and (outputs == 0 or bool(states))
    text = _FORWARD.format(
        parameters=", ".join(f"{name}: torch.Tensor" for name in parameters),
        names=", ".join(names) + ("," if outputs == 1 else ""),
        arguments=", ".join(parameters),
        writes="; ".join(f"self.inner.{path}.copy_(y{i})" for i, path in states.items()) or "pass",
        answers=_answers([f"y{i}" for i in kept], single=single),
        likes=", ".join(f"self.inner.like{i}" for i in range(inputs)),
        lists="; ".join(f"l{i}: list[torch.Tensor] = []" for i in kept) or "pass",
        chunks=", ".join(f"chunk_of({name}, begin, size)" for name in parameters),
        appends="; ".join(f"l{i}.append(y{i})" for i in kept) or "pass",
        joined=_answers([f"torch.cat(l{i})[:batch]" for i in kept], single=single),
    )
    namespace: dict[str, Any] = {"torch": torch, "common_batch": common_batch, "chunk_of": chunk_of}
    return script_module(
        text,
        namespace,
        inner=inner,
        dynamic=False,
        separated=separated,
        device=-1,
        start_core=-1,
        core_count=1,
        lazy=False,
        asynchronous=False,
    )


def _answers(expressions: Sequence[str], *, single: bool) -> str:
    return expressions[0] if single else "(" + ", ".join(expressions) + ("," if expressions else "") + ")"


def script_module(text: str, namespace: dict[str, Any], **attributes: Any) -> Any:
    """A scripted module with these attributes and the `forward` of `text`."""
    file = f"<torch_neuronx double {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), namespace)
    kind = type("Compiled", (torch.nn.Module,), {"forward": namespace["forward"]})
    module = kind()
    for name, value in attributes.items():
        setattr(module, name, value)
    return torch.jit.script(module.eval())
