"""Choice of the engine in the YAML: a name, or `auto` with its options."""

from __future__ import annotations

from typing import Any

import pytest

from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig

YAML = """\
minWorkers: 1
maxWorkers: 1
batchSize: 4
maxBatchDelay: 2
neuron_lstm:
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
  buckets: {batch: [1], length: [4]}
  BACKEND
"""


def parsed(backend: str) -> ServingConfig:
    """A configuration with this line."""
    return parse_config(YAML.replace("BACKEND", backend), "model-config.yaml")


@pytest.mark.parametrize("line", ["", "backend: auto", "backend: {auto: {}}", "backend: {auto: {try: }}"])
def test_auto_names_no_engines_of_its_own(line: str) -> None:
    """Left out, as a word, and without options it means the same."""
    config = parsed(line)

    assert config.engine == "auto"
    assert config.auto.engines is None


def test_the_engines_of_auto_are_in_the_order_of_the_yaml() -> None:
    """It is the order of preference."""
    config = parsed("backend: {auto: {try: [native, inductor]}}")

    assert config.engine == "auto"
    assert config.auto.engines == ("native", "inductor")


def test_an_engine_by_name_has_no_options() -> None:
    """The name is the engine."""
    assert parsed("backend: native").engine == "native"


@pytest.mark.parametrize(
    ("backend", "path", "message"),
    [
        ("{auto: {try: []}}", ".auto.try", "expected 1 or more entries, got none"),
        ("{auto: {try: native}}", ".auto.try", "expected a list, got the text 'native'"),
        ("{auto: {try: [native, native]}}", ".auto.try", "expected different names, got native twice"),
        ("{auto: {try: [auto]}}", ".auto.try", "expected the names of backends, got auto"),
        ("{auto: {names: [native]}}", ".auto.names", "is not a key here: expected one of try"),
        ("{native: {}}", ".native", "is not a key here"),
        ("{auto: 60s}", ".auto", "expected a mapping of keys, got the text '60s'"),
        ("[native]", "", "expected text, got a list"),
    ],
)
def test_an_error_has_its_path_and_line(backend: str, path: str, message: str) -> None:
    """The same as for every other key."""
    with pytest.raises(ConfigError) as refused:
        parsed(f"backend: {backend}")

    assert f"model-config.yaml:8: neuron_lstm.backend{path}: {message}" in str(refused.value)


def test_compiler_options_need_one_engine() -> None:
    """`auto` tries several, in both forms."""
    with pytest.raises(ConfigError, match="compiler_args: requires the name of one backend as well"):
        parsed("backend: {auto: {try: [inductor]}}\n  compiler_args: -O1")


def test_a_valid_configuration_may_be_given_again() -> None:
    """A model is accepted in place of the mapping."""
    given: Any = parsed("backend: {auto: {try: [native]}}")

    assert ServingConfig.model_validate({**dict(given)}).auto.engines == ("native",)
