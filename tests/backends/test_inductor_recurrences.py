"""Recurrences of a program, as inductor's library calls them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recurrent import BATCH, TIME, Case, Recurrent, exported, ragged_batch
from torch.utils._python_dispatch import TorchDispatchMode

from torchserve_neuron_lstm.backends.exported_program import quiet
from torchserve_neuron_lstm.backends.inductor import Inductor
from torchserve_neuron_lstm.backends.inductor_compiler import _specialized
from torchserve_neuron_lstm.bucketing.shapes import Bucket

NAMES = {"aten.mkldnn_rnn_layer.default", "neuron_lstm.lstm.default", "neuron_lstm.rnn.default"}
CASES = (
    Case(),
    Case(layers=2, bidirectional=True, need_cell=False),
    Case(layers=2, projected=True, given_state=True),
    Case(ragged=False, bias=False),
    Case("gru", layers=2, bidirectional=True),
    Case("rnn_tanh", given_state=True),
)


class Counting(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one call."""
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def counted(call: Callable[[], object]) -> Counter[str]:
    """The operators that a call calls."""
    counting = Counting()
    with counting:
        call()
    return counting.calls


class Headed(torch.nn.Module):
    """A recurrence between other operators."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.core, self.head = Recurrent(case), torch.nn.LazyLinear(3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.head(self.core(torch.tanh(x), lengths)[0])  # type: ignore[no-any-return]  # a tensor


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_calls_are_those_of_the_program_that_inductor_is_given(case: Case) -> None:
    """As many calls of each operator, and none of what inductor fuses."""
    torch.manual_seed(0)
    inputs = ragged_batch(0.0)
    module = Headed(case)
    module(*inputs)
    program = exported(module, *inputs)
    with quiet(), torch.no_grad():
        given = _specialized(program, Bucket(BATCH, TIME))
    wanted = Counter(str(node.target) for node in given.graph.nodes if str(node.target) in NAMES)
    call = Inductor().lower_bound(program, inputs)

    assert call is not None
    found = counted(call)
    assert {name: count for name, count in found.items() if name in NAMES} == wanted
    assert sum(wanted.values()) > 0
    assert not {"aten.linear.default", "aten.tanh.default"} & {name for name in found if case.cell == "lstm"}
    assert counted(call) == found


def test_a_program_without_recurrences_has_no_bound() -> None:
    """Inductor fuses all of it, so that its time is not known before it is compiled."""
    module = torch.nn.Linear(5, 3)
    x = torch.zeros(2, 4, 5)

    assert Inductor().lower_bound(exported(module, x), [x]) is None
