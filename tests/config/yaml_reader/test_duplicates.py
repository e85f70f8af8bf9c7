"""A key that is given twice is refused, in every mapping of the file."""

from __future__ import annotations

from ..config_texts import SMALL, complaints


def test_duplicate_keys_are_refused_wherever_they_are() -> None:
    """YAML would silently keep the last one."""
    assert complaints(SMALL + "neuron_lstm: {}\nhandler: {a: 1, b: {c: 1, c: 2}}\n").splitlines() == [
        "model-config.yaml:4: neuron_lstm: is given twice, first on line 1: expected each key once",
        "model-config.yaml:5: handler.b.c: is given twice, first on line 5: expected each key once",
    ]
