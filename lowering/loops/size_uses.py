"""Tests and reads of the number of timesteps that a model with loops makes in forward()."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable
from functools import partialmethod
from itertools import islice
from types import FrameType
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ...config.schema import ServingConfig
from ..eager_call import copy_of
from ..errors import calling_frame, calling_line, is_model_file, is_torch_file, raising_line
from ..exporter.export import example_tensor
from ..exporter.model_attributes import replaced_each
from ..exporter.shape_conditions import Branch
from ..one_request.single_request import request_forward
from .each_length import OtherCalls

Place = tuple[Any, ...]
"""Code of the model, and the expression in it that tests or reads a size, or calls torch with it."""
Uses = dict[Place, dict[sympy.Basic, Branch]]
"""Tests, reads and calls by place.

A read is a branch of which nothing is known, on the size itself. A call is a branch on what the size is in the trace:
one that is the same in two traces is a constant of the program.
"""
_READS: dict[str, type] = {"__index__": int, "__int__": int, "__float__": float, "__repr__": str, "__str__": str}
"""Methods of sizes that return a plain number, or its text."""
_TIMES = (5, 18)
"""Arguments of the instruction BINARY_OP for `*` and `*=`."""


class SizeUses:
    """Conditions on the number of timesteps that forward() tests, without those that each step of a loop tests.

    forward() runs once more for each trace, without values and with a symbolic number of timesteps. What it tests or
    reads at one place alike in both runs depends on the request, and not on the step of a loop.
    """

    def __init__(self, model: torch.nn.Module, config: ServingConfig, traced: tuple[int, int]) -> None:
        """Run forward() at the traced numbers of timesteps."""
        self.branches: list[Branch] = []
        self.unknown: list[str | None] = []
        """Lines on which a branch may follow that is not known here; None: such a line that is not known either."""
        try:
            few, many = (_uses(copy_of(model), config, timesteps) for timesteps in traced)
        except Exception as error:  # noqa: BLE001 - the user's code, which may need plain numbers
            self.unknown.append(raising_line(error))
            return
        alike = [uses for place, uses in many.items() if few.get(place, {}).keys() == uses.keys()]
        noted = [use for uses in alike for use in uses.values()]
        self.branches += [use for use in noted if use.result_at(traced[1]) is not None]
        self.unknown += [use.line for use in noted if use.result_at(traced[1]) is None]

    def first_other(self, lengths: Iterable[int]) -> OtherCalls | None:
        """Return the first of some numbers of timesteps that takes another branch; None without one."""
        return next((OtherCalls(n, b.line) for n in lengths for b in self.branches if b.differs_at(n)), None)


def _uses(model: torch.nn.Module, config: ServingConfig, timesteps: int) -> Uses:
    """Run forward() for one request without values; no condition is kept, so that sizes stay symbolic."""
    sizes = ShapeEnv()
    mode = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)
    specs = config.input_specs
    inputs = []
    for spec in specs:
        dims: Any = [DimDynamic.DUCK if size == "time" else DimDynamic.STATIC for size in spec.shape]
        tensor = example_tensor(spec, 1, timesteps)
        inputs.append(mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dims)))
    time = next(t.shape[s.time_dim] for s, t in zip(specs, inputs, strict=True) if s.time_dim is not None)
    uses: Uses = {}
    with torch.no_grad(), sizes.suppress_guards(), mode, replaced_each(_noting(uses)), _Calls(uses):
        request_forward(model, config, set())(time, inputs)
    return uses


def _noting(uses: Uses) -> Iterable[tuple[Any, str, Any]]:
    """Yield methods of sizes that note where the model's code tests a condition, or reads a size as a plain number."""

    def tested(condition: torch.SymBool, original: Callable[[Any], bool]) -> bool:
        taken = original(condition)
        _note(uses, _place(sys._getframe(1), through=_is_no_operator), condition.node.expr, taken)
        return taken

    def read(size: Any, original: Callable[[Any], Any], number: type) -> Any:
        frame = sys._getframe(1)
        place = _place(frame, through=_is_of_sizes)
        if place is None or _repeats_a_list(frame):
            return original(size)
        value = _number(size)
        _note(uses, place, size.node.expr, value)
        return number(value)

    yield torch.SymBool, "__bool__", partialmethod(tested, torch.SymBool.__bool__)
    for kind in (torch.SymInt, torch.SymFloat):
        for name, number in _READS.items():
            if hasattr(kind, name):
                yield kind, name, partialmethod(read, getattr(kind, name), number=number)


class _Calls(TorchFunctionMode):
    """Mode that notes the sizes with which the model's code calls torch."""

    def __init__(self, uses: Uses) -> None:
        super().__init__()
        self._uses = uses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        cuts = (edge for leaf in leaves if isinstance(leaf, slice) for edge in (leaf.start, leaf.stop))
        for size in (value for value in (*leaves, *cuts) if isinstance(value, (torch.SymInt, torch.SymFloat))):
            if (frame := calling_frame()) is not None:
                expression = size.node.expr
                place = (frame.f_code, _expression(frame), expression)
                _note(self._uses, place, sympy.Eq(expression, _number(size)), taken=True)
        return func(*args, **(kwargs or {}))


def _note(uses: Uses, place: Place | None, expression: Any, taken: Any) -> None:
    if place is not None and sympy.sympify(expression).free_symbols:
        uses.setdefault(place, {})[expression] = Branch(expression, taken, calling_line())


def _number(size: Any) -> Any:
    """Return a size of the trace as a plain number."""
    return size.node.guard_int("", 0) if isinstance(size, torch.SymInt) else size.node.guard_float("", 0)


def _place(frame: FrameType | None, through: Callable[[str], bool]) -> Place | None:
    """Return the place of the first frame that is not to be passed through, if it is of the model or a library."""
    while frame is not None and through(frame.f_code.co_filename):
        frame = frame.f_back
    is_model = frame is not None and is_model_file(frame.f_code.co_filename)
    return (frame.f_code, _expression(frame)) if frame is not None and is_model else None


def _expression(frame: FrameType) -> Any:
    """Return what is equal for one expression: newer Pythons run several instructions for a call in turn."""
    positions: Any = getattr(frame.f_code, "co_positions", None)
    return frame.f_lasti if positions is None else next(islice(positions(), frame.f_lasti // 2, None))


def _is_of_sizes(file: str) -> bool:
    """Whether a file has the types of sizes."""
    return file == torch.__file__


def _is_no_operator(file: str) -> bool:
    """Whether a file is neither the model's nor torch's, as that of a `max` of sizes, or has the types of sizes."""
    return _is_of_sizes(file) or not (is_torch_file(file) or is_model_file(file))


def _repeats_a_list(frame: FrameType) -> bool:
    """Whether an instruction is a product: of a list, a size is how often its elements come."""
    code, at = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[at]]
    return name == "BINARY_MULTIPLY" or (name == "BINARY_OP" and code[at + 1] in _TIMES)
