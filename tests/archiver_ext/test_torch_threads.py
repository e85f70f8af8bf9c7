"""Number of torch's own threads of a call."""

from __future__ import annotations

import torch

from torchserve_neuron_lstm.archiver_ext.torch_threads import on_threads


def test_a_call_runs_with_the_threads_of_its_engine() -> None:
    """Loading one engine leaves torch one thread, loading another one all of them."""
    before = torch.get_num_threads()
    try:
        assert on_threads(1, torch.get_num_threads)() == 1
        assert on_threads(2, torch.get_num_threads)() == 2
    finally:
        torch.set_num_threads(before)
