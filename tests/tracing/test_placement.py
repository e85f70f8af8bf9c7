"""move_trace_to_device(): a core of this host, for the length of a call."""

from __future__ import annotations

import os

import pytest
import torch
from traceable import Conv

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.tracing.core import on_core


@pytest.mark.parametrize("backend", ["eager", "onnxruntime"])
def test_the_answers_are_the_same_and_the_process_is_as_it_was(backend: str) -> None:
    """Cores and threads of the caller come back after the move and after each call."""
    model, x = Conv().eval(), torch.rand(1, 1, 3, 3)
    traced = tracing.trace(model, x, backend=backend)
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()

    assert tracing.move_trace_to_device(traced, 0) is None  # type: ignore[func-returns-value]

    with torch.no_grad():
        torch.testing.assert_close(traced(x), model(x))
    assert os.sched_getaffinity(0) == cores
    assert torch.get_num_threads() == threads


def test_a_call_is_on_its_core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from inside the program, with one thread."""
    traced = tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager")
    core = len(os.sched_getaffinity(0)) - 1
    tracing.move_trace_to_device(traced, core)
    seen: list[object] = []
    run = traced._runs[0]

    def looking(inputs: object) -> object:
        seen.append((os.sched_getaffinity(0), torch.get_num_threads()))
        return run(inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(traced, "_runs", [looking])
    traced(torch.rand(1, 1, 3, 3))

    assert seen == [({sorted(os.sched_getaffinity(0))[core]}, 1)]


def test_a_failed_call_gives_the_core_back() -> None:
    """Whatever happens on it."""
    cores = os.sched_getaffinity(0)
    with pytest.raises(RuntimeError), on_core(min(cores)):
        raise RuntimeError
    assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize("device", [-1, 100_000])
def test_a_core_that_is_not_there_is_refused(device: int) -> None:
    """With how many there are."""
    traced = tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager")
    with pytest.raises(ValueError, match=rf"device {device}: this process may use \d+ cores, 0 to \d+"):
        tracing.move_trace_to_device(traced, device)
