import re
from pathlib import Path

import pytest
import torch

from torchserve_neuron_lstm.backends import versions
from torchserve_neuron_lstm.backends.aws_neuron import neuron, neuronx, unrolled
from torchserve_neuron_lstm.config.load import load_config

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "neuron.md").read_text("utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
REST = "inputs: {x: {dtype: float32, shape: [batch, time]}}\nbuckets: {batch: [1], length: [4]}\n"


@pytest.mark.parametrize("block", BLOCKS)
def test_its_yaml_is_valid(block: str, tmp_path: Path) -> None:
    indented = "".join(f"  {line}\n" for line in (block + REST).splitlines())
    (tmp_path / "model-config.yaml").write_text(f"minWorkers: 1\nmaxWorkers: 1\nneuron_lstm:\n{indented}")

    assert load_config(tmp_path / "model-config.yaml").backend in ("neuronx", "neuron")


def test_it_names_what_is_installed_as_the_refusals_do() -> None:
    for word in ("pip.repos.neuron.amazonaws.com", "torch 2.9", "SDK 2.31 or earlier"):
        assert word in neuronx.NeuronX.toolchain.install
        assert word in TEXT
    assert "torch 1.13 and Python up to 3.10" in neuron.Neuron.toolchain.install
    assert "torch 1.13 and Python up to 3.10" in TEXT
    assert f"`{versions.VARIABLE}=cpu`" in TEXT


def test_programs_grow_with_time_as_it_says() -> None:
    weights = [torch.zeros(8, 3), torch.zeros(8, 2), torch.zeros(8), torch.zeros(8)]
    state = torch.zeros(1, 4, 2)

    def layer(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return unrolled.lstm(x, lengths, state, state, weights, True, 1, False, True)

    counts = []
    for time in (64, 128):
        graph = torch.jit.trace(layer, (torch.zeros(4, time, 3), torch.ones(4).long()), check_trace=False).graph
        counts.append(sum(node.kind().startswith("aten::") for node in graph.nodes()))

    assert round((counts[1] - counts[0]) / 64) == 19
    assert counts[1] == pytest.approx(2443, abs=10)
