"""An MLP whose outputs are sorted on the CPU: `python -m examples.seeds.partitioned onnxruntime`."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from torchserve_neuron_lstm import tracing

from .shown import Engine, Shown


class MLP(nn.Module):
    """A classifier of 28 x 28 pixels into ten classes: log-probabilities in ascending order."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(28 * 28, 4096)
        self.fc2 = nn.Linear(4096, 2048)
        self.fc3 = nn.Linear(2048, 10)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, 10], in ascending order."""
        hidden = self.relu(self.fc2(self.relu(self.fc1(x))))
        ascending, _ = torch.sort(torch.log_softmax(self.fc3(hidden), dim=1))
        return ascending


def show(engine: Engine) -> Shown:
    """Run the example on an engine, after an operator query."""
    shown = Shown(engine)
    model = MLP()
    model.eval()
    inputs = torch.rand(32, 784)
    found = tracing.analyze(model, inputs, backend=engine.name)
    refused = {one["kind"] for one in found["unsupported_operators"]}
    # an engine without sort leaves it to the CPU by itself; for any other, an option does
    on_cpu = {"aten::sort"} - refused
    config = tracing.PartitionerConfig(ops_to_partition=on_cpu)
    trace = tracing.trace(model, inputs, partitioner_config=config, backend=engine.name, **engine.options)
    with torch.no_grad():
        shown.compare(trace(inputs), model(inputs))

    # a limit that cannot be kept is a ValueError
    for strict in (
        tracing.PartitionerConfig(ops_to_partition=on_cpu, max_subgraph_count=1),
        tracing.PartitionerConfig(ops_to_partition=on_cpu, min_subgraph_size=3),
    ):
        shown.refuses(ValueError, partial(_trace, model, inputs, strict, engine))
    shown.refuses(ValueError, lambda: tracing.PartitionerConfig(model_support_percentage_threshold=2))
    if refused:
        shown.refuses(RuntimeError, lambda: _trace(model, inputs, None, engine))
    return shown


def _trace(
    model: nn.Module, inputs: torch.Tensor, config: tracing.PartitionerConfig | None, engine: Engine
) -> tracing.Traced:
    return tracing.trace(model, inputs, partitioner_config=config, backend=engine.name, **engine.options)


if __name__ == "__main__":
    from .command_line import main

    raise SystemExit(main(show))
