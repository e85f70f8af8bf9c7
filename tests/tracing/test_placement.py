"""move_trace_to_device(): a core of this host for the time of a call."""

import os
from typing import Any

import pytest
import torch
from neuron_doubles import on_path
from traceable import Conv

from torchserve_neuron_lstm import tracing
from torchserve_neuron_lstm.backends.aws_neuron.neuronx import NeuronX
from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.tracing.options import pinned_to_core


@pytest.mark.parametrize("backend", ["eager", "onnxruntime"])
def test_the_answers_are_the_same_and_the_process_is_as_it_was(backend: str) -> None:
    model, x = Conv().eval(), torch.rand(1, 1, 3, 3)
    traced = tracing.trace(model, x, backend=backend)
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()

    assert tracing.move_trace_to_device(traced, 0) is None  # type: ignore[func-returns-value]  # it returns nothing, as documented

    with torch.no_grad():
        torch.testing.assert_close(traced(x), model(x))
    assert os.sched_getaffinity(0) == cores
    assert torch.get_num_threads() == threads


def test_a_call_is_on_its_core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager")
    core = len(os.sched_getaffinity(0)) - 1
    tracing.move_trace_to_device(traced, core)
    seen: list[object] = []
    run = traced._runs[0]

    def looking(inputs: Any) -> Any:
        seen.append((os.sched_getaffinity(0), torch.get_num_threads()))
        return run(inputs)

    monkeypatch.setattr(traced, "_runs", [looking])
    traced(torch.rand(1, 1, 3, 3))

    assert seen == [({sorted(os.sched_getaffinity(0))[core]}, 1)]


def test_a_failed_call_gives_the_core_back() -> None:
    cores = os.sched_getaffinity(0)
    with pytest.raises(RuntimeError), pinned_to_core(Eager(), min(cores)):
        raise RuntimeError
    assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize("device", [-1, 100_000])
def test_a_core_that_is_not_there_is_refused(device: int) -> None:
    traced = tracing.trace(Conv(), torch.rand(1, 1, 3, 3), backend="eager")
    with pytest.raises(ValueError, match=rf"device {device}: this process may use \d+ cores, 0 to \d+"):
        tracing.move_trace_to_device(traced, device)


@pytest.mark.ci
def test_traces_take_turns_on_the_cores_of_a_device() -> None:
    model, x = Conv().eval(), torch.rand(1, 1, 3, 3)
    options: dict[str, Any] = {"compiler_args": "--target trn1", "cpu_backend": True, "backend": "neuronx"}
    with on_path() as environment, torch.no_grad():
        environment.setenv("NEURON_RT_NUM_CORES", "2")
        config = tracing.PartitionerConfig(ops_to_partition={"aten::add"}, model_support_percentage_threshold=0.1)
        traces = [
            tracing.trace(model, x, **options),
            tracing.trace(model, x, **options, partitioner_config=config),
            tracing.trace(model, x, **options, inline_weights_to_neff=False),
        ]

        assert traces[0].core != traces[1].core
        assert traces[0].core == traces[2].core
        tracing.move_trace_to_device(traces[1], 1)
        assert traces[1].core == 1
        for traced in traces:
            torch.testing.assert_close(traced(x), model(x))
        with pytest.raises(ValueError, match="device 2: this process may use 2 cores, 0 to 1"):
            tracing.move_trace_to_device(traces[0], 2)


@pytest.mark.parametrize(("listed", "count"), [("", 4), ("3-6", 4), ("2,3", 2), ("5", 1), ("0,2-4", 4)])
def test_cores_of_neuronx_are_those_of_the_runtimes_environment(
    listed: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "4")
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", listed)

    assert NeuronX().cores() == count
