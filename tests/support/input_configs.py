"""Configurations of models by the part that differs between tests: their inputs."""

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig


def config_of(inputs: str, more: str = "", *, batch: str = "[1, 8]", length: str = "[4, 16]") -> ServingConfig:
    """Return a configuration with these inputs; `more` is a further line below `neuron_lstm`."""
    buckets = f"{{batch: {batch}, length: {length}}}"
    return parse_config(f"neuron_lstm:\n  inputs: {inputs}\n  {more}\n  buckets: {buckets}\n", "model-config.yaml")


def one_input(
    shape: str, more: str = "", *, dtype: str = "float32", batch: str = "[1, 8]", length: str = "[4, 16]"
) -> ServingConfig:
    """Return a configuration with the input `x` of this shape."""
    return config_of(f"{{x: {{dtype: {dtype}, shape: {shape}}}}}", more, batch=batch, length=length)
