"""Texts of configurations, and the messages for those that are refused."""

import pytest

from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.load import parse_config

SMALL = """\
neuron_lstm:
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
  buckets: {batch: [1], length: [8]}
"""
"""A file with the required keys only."""


def small_block(**replaced: str) -> str:
    """A small valid file with some keys of the block replaced or added."""
    keys = {"inputs": "{ids: {dtype: int64, shape: [batch, time]}}", "buckets": "{batch: [1], length: [8]}", **replaced}
    return "neuron_lstm:\n" + "".join(f"  {key}: {value}\n" for key, value in keys.items())


def complaints(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "model-config.yaml")
    return str(refused.value)


def problems(text: str) -> list[str]:
    """The path and message of each problem of a text that is refused."""
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "f")
    return [f"{problem.path}: {problem.message}" for problem in refused.value.diagnostics]
