"""Texts that are no mapping, no YAML, or too large are refused with one line."""

from __future__ import annotations

import pytest

from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.load import parse_config

from ..config_texts import SMALL, complaints


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f:1: is empty: expected TorchServe's keys and a neuron_lstm: block"),
        ("# nothing\n", "f:1: is empty: expected TorchServe's keys and a neuron_lstm: block"),
        ("- a\n", "f:1: expected keys with values, got a list"),
        ("\n\nhello\n", "f:3: expected keys with values, got 'hello'"),
        ("neuron_lstm:\n", "f:1: neuron_lstm: expected a mapping of keys, got nothing"),
        ("neuron_lstm: [a]\n", "f:1: neuron_lstm: expected a mapping of keys, got a list"),
        (
            "batchSize: 1\n",
            "f:1: neuron_lstm: is missing: this block names the model's inputs and the buckets to compile them for",
        ),
        (
            "neuron_lsmt: {}\n",
            "f:1: neuron_lsmt: is not a key of TorchServe or of the plug-in: did you mean neuron_lstm?",
        ),
        ("a: {b: 1\nc: 2}\nd: [\n", "f:2: is not YAML: while parsing a flow mapping expected ',' or '}', but got ':'"),
        ("a: 1\n---\nb: 2\n", "f:2: is not YAML: expected a single document in the stream but found another document"),
        ('a: "\\U00110000"\n', "f:1: is not YAML: chr() arg not in range(0x110000)"),
        ("a: \x00\n", "f:1: is not YAML: the character '\\x00' is not allowed"),
        ("\n\nb: \ud800\n", "f:3: is not YAML: the character '\\ud800' is not allowed"),
        (SMALL + "handler: &a {b: *c}\n", "f:4: is not YAML: found undefined alias 'c'"),
    ],
)
def test_what_is_no_configuration_at_all_is_refused(text: str, said: str) -> None:
    """Empty, truncated, foreign and broken files give one clear line."""
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "f")

    assert str(refused.value) == said


def test_a_tab_is_explained() -> None:
    """The message says what to do."""
    assert complaints("a:\n\t- b\n").endswith("that cannot start any token: indent with spaces")


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 5000 + "]" * 5000,
        "a: " + "{b: " * 40 + "1" + "}" * 40,
        "a: " + "[" * 5000,
        "neuron_lstm:\n" + "".join(f"{'  ' * n}- \n" for n in range(1, 200)),
    ],
)
def test_absurd_nesting_is_refused(text: str) -> None:
    """Depth is refused before any recursive code runs."""
    assert "nested at most 32 deep" in complaints(text)


def test_an_oversized_file_is_refused() -> None:
    """A file far larger than any configuration is not parsed."""
    assert complaints("#" * 100_000) == "model-config.yaml:1: expected at most 65536 characters, got 100000"
