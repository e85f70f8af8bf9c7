import re
from pathlib import Path

from torchserve_neuron_lstm.config.buckets import Buckets
from torchserve_neuron_lstm.config.forward import MaskConfig
from torchserve_neuron_lstm.config.schema import InputConfig, ModelArguments, NeuronLstmBlock

TEXT = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", TEXT, re.MULTILINE))


def test_every_key_has_a_row_in_the_order_of_the_schema() -> None:
    assert list(ROWS) == list(NeuronLstmBlock.model_fields)
    required = [name for name, field in NeuronLstmBlock.model_fields.items() if field.is_required()]
    assert [name for name, row in ROWS.items() if row.startswith("required |")] == required


def test_written_defaults_are_those_of_the_schema() -> None:
    for name, row in ROWS.items():
        said = row.partition(" | ")[0]
        default = NeuronLstmBlock.model_fields[name].default
        if isinstance(default, str):
            assert said == f"`{default}`"
        if said == "none":
            assert default in (None, ModelArguments())


def test_keys_within_keys_are_named() -> None:
    for key, block in (("model", ModelArguments), ("inputs", InputConfig), ("buckets", Buckets), ("mask", MaskConfig)):
        names = [field.alias or name for name, field in block.model_fields.items()]
        assert all(f"`{name}`" in ROWS[key] for name in names)
