from pathlib import Path

import pytest
import torch
import yaml
from shown import blocks
from vollo_models import InTime, program_of

from torchserve_neuron_lstm.backends.exported_program import specialize
from torchserve_neuron_lstm.backends.partitioning.partition import partition
from torchserve_neuron_lstm.backends.vollo import compiler as vollo_build
from torchserve_neuron_lstm.backends.vollo import engine as vollo
from torchserve_neuron_lstm.backends.vollo import rewrite, translate
from torchserve_neuron_lstm.backends.vollo import streaming as vollo_streaming
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.partitioner import PartitionerConfig

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "vollo.md").read_text(encoding="utf-8")
PRESET = (ROOT / "config" / "presets" / "vollo.yaml").read_text(encoding="utf-8")


def test_the_licence_is_told_before_the_command_that_accepts_it() -> None:
    assert TEXT.index("EULA") < TEXT.index("pip install")
    assert vollo.INSTALL_HINT.index("pip install") < vollo.INSTALL_HINT.index("EULA")
    assert "torchserve-neuron-lstm[vollo]" in "".join(blocks(TEXT, "bash"))


def test_nothing_installs_it_by_itself() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    naming = [line for line in lines if "vollo-" in line]

    assert naming == ['vollo = ["vollo-compiler==29.0.0", "vollo-torch==29.0.0"]']
    assert not any("[vollo" in line or ",vollo" in line for line in lines)


def test_its_yaml_is_one_that_is_taken() -> None:
    for text in (*blocks(TEXT, "yaml"), PRESET):
        config = parse_config(text, "model-config.yaml")

        assert (config.backend, config.precision) == ("vollo", "bfloat16")
        assert (config.tolerance.atol, config.tolerance.rtol) == (1e-2, 1e-2)
        assert config.compiler_args == ("--config", "bittware_ia840f_c3b64")
    assert "streaming" in yaml.safe_load(PRESET.replace("# streaming", "streaming"))["neuron_lstm"]


def test_its_numbers_and_names_are_the_codes() -> None:
    assert f"up to {rewrite._MOST_STEPS} timesteps" in TEXT
    assert vollo_build._FORMER_NAMES["ia_840f_c3b64"] in TEXT
    assert "ia_840f_c3b64" in TEXT
    (code,) = blocks(TEXT, "python")
    for name in ("compile", "step", "restart"):
        assert f".{name}(" in code
        assert callable(getattr(vollo_streaming.StreamingProgram, name))


@pytest.mark.ci
def test_a_model_in_time_is_one_program_and_a_last_state_two() -> None:
    class Last(InTime):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
            zeros = x.new_zeros(1, x.shape[0], 16)
            weights = [getattr(self.core, name) for name in self.core._flat_weights_names]
            _, h, _ = torch.ops.neuron_lstm.lstm(x, lengths, zeros, zeros, weights, True, 1, False, False)
            return (self.linear(h[-1]),)

    for module, ways in ((InTime(), 1), (Last(), 2)):
        program = rewrite.rewrite_program(specialize(program_of(module), Bucket(4, 6)))
        config = PartitionerConfig(model_support_percentage_threshold=0)
        segments = partition(program, lambda node: translate.refusal(node) is None, config).segments

        assert sum(segment.place == "device" for segment in segments) == ways
