"""Recurrences of a program, as inductor's library calls them.

Inductor fuses other operators, and calls these as they are: oneDNN's layer for an LSTM, the abstract operator for GRUs
and plain RNNs. So their time, measured without compiling, is a lower bound of the time of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Interpreter

from . import masked
from .exported_program import quiet
from .inductor_compiler import calls_onednn, onednn_lstm
from .recurrent_calls import is_recurrent

_LSTM = "neuron_lstm.lstm.default"

Call = Callable[[], object]


def recurrences_of(program: ExportedProgram, inputs: Sequence[Tensor]) -> Call | None:
    """Return a function that computes only the recurrences of one call of `program`; None if it has none.

    The program runs once, for the tensors that its recurrences take.
    """
    if not any(is_recurrent(node.target) for node in program.graph.nodes):
        return None
    with quiet(), torch.no_grad():
        recorded = _RecordedRecurrences(program.module())
        recorded.run(*inputs)

    def run() -> None:
        with torch.no_grad():
            for call in recorded.calls:
                call()

    return run


class _RecordedRecurrences(Interpreter):
    """An interpreter that records the calls of recurrences."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.calls: list[Call] = []

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator."""
        if not is_recurrent(target):
            return super().call_function(target, args, kwargs)
        if str(target) == _LSTM and calls_onednn(args[0]):
            return masked.fused_lstm(self._layer, *args, **kwargs)
        self.calls.append(lambda: target(*args, **kwargs))
        return target(*args, **kwargs)

    def _layer(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        self.calls.append(lambda: onednn_lstm(x, states, weights))
        return onednn_lstm(x, states, weights)
