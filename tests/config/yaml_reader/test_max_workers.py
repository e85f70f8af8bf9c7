"""The number of workers of any YAML, or None."""

from __future__ import annotations

import pytest

from torchserve_neuron_lstm.config.yaml_reader.max_workers import max_workers

from ..config_texts import doubling_merges


@pytest.mark.parametrize("text", ["a: !!int x", "a: 2024-13-01", "a: !!bool x", "a: !!timestamp x", "[" * 5000])
def test_a_text_that_cannot_be_read_has_no_number_of_workers(text: str) -> None:
    """It may come from an archive of another handler."""
    assert max_workers(text) is None


def test_a_bomb_of_merge_keys_has_no_number_of_workers() -> None:
    """The entries are not copied."""
    assert max_workers("maxWorkers: 2\n" + doubling_merges(18)) is None
    assert max_workers("maxWorkers: 2\n" + doubling_merges(3)) == 2
