"""Lengths are changed in the text of a configuration; other text stays as the author wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchserve_neuron_lstm.config
from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import replace_lengths
from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.load import parse_config

PRESETS = sorted((Path(torchserve_neuron_lstm.config.__file__).parent / "presets").glob("*.yaml"))

HEAD = """\
# mine
batchSize: 8  # eight
neuron_lstm:
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
"""


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("buckets: {batch: [1], length: [8, 9]}  # all\n", "buckets: {batch: [1], length: [4, 16]}  # all\n"),
        ("buckets: {length: [8,\n    9], batch: [1]}", "buckets: {length: [4, 16], batch: [1]}"),
        (
            "buckets:\n    batch: [1]\n    length: [8]   # the sizes\n  threads: 2\n",
            "buckets:\n    batch: [1]\n    length: [4, 16]   # the sizes\n  threads: 2\n",
        ),
        (
            "buckets:\n    length:\n      - 8\n      - 9\n    batch:\n    - 1\n",
            "buckets:\n    length: [4, 16]\n    batch:\n    - 1\n",
        ),
        ("buckets:\n    length:\n    - 8\n    batch: [1]", "buckets:\n    length: [4, 16]\n    batch: [1]"),
        (
            (
                "buckets:\n    batch: [1]\n    length:  # the sizes\n      # short\n      - 8\n"
                "      # more\n      - 9 # long\n\n  threads: 2 # two\n"
            ),
            (
                "buckets:\n    batch: [1]\n    length: [4, 16]  # the sizes\n      # short\n      # long\n"
                "\n  threads: 2 # two\n"
            ),
        ),
        (
            "buckets:\n    batch: [1]\n    length: {auto: 3, longest: 9}\n",
            "buckets:\n    batch: [1]\n    length: [4, 16]\n",
        ),
        (
            "buckets:\n    batch: [1]\n    length:\n      auto: 3\n      longest: 9  # minutes\n",
            "buckets:\n    batch: [1]\n    length: [4, 16]\n      # minutes\n",
        ),
        (
            "buckets:\r\n    length:\r\n      - 8\r\n    batch: [1]\r\n",
            "buckets:\r\n    length: [4, 16]\r\n    batch: [1]\r\n",
        ),
        ('buckets: {batch: [1], "length" : [8]}', 'buckets: {batch: [1], "length" : [4, 16]}'),
        ("buckets: {batch: &sizes [8], length: [9]}", "buckets: {batch: &sizes [8], length: [4, 16]}"),
    ],
)
def test_only_the_value_changes(written: str, expected: str) -> None:
    changed = replace_lengths(f"{HEAD}  {written}", "f", (4, 16))

    assert changed == f"{HEAD}  {expected}"
    assert parse_config(changed, "f").grid.lengths == (4, 16)


@pytest.mark.parametrize("written", ["{batch: &b [8], length: *b}", "{length: &b [8], batch: *b}"])
def test_aliased_values_are_not_changed(written: str) -> None:
    """An alias and its anchor cannot be changed separately."""
    with pytest.raises(ConfigError, match=r"f:1: neuron_lstm.buckets.length: cannot be changed .* \[4, 16\] there"):
        replace_lengths(f"{HEAD}  buckets: {written}\n", "f", (4, 16))


def test_a_model_without_time_has_no_lengths() -> None:
    text = "neuron_lstm: {inputs: {x: {dtype: bool, shape: [batch]}}, buckets: {batch: [1]}}"

    with pytest.raises(ConfigError, match="no input has a time dimension"):
        replace_lengths(text, "f", (4, 16))


def test_a_configuration_that_is_wrong_already_is_refused() -> None:
    with pytest.raises(ConfigError, match="threads: expected 1 or more"):
        replace_lengths(f"{HEAD}  buckets: {{batch: [1], length: [8]}}\n  threads: 0\n", "f", (4, 16))


def test_lengths_replace_the_histogram(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("1 2 3")
    text = f"{HEAD}  buckets: {{batch: [1], length: {{auto: 3, histogram: lengths.txt}}}}\n"

    assert replace_lengths(text, "f", (4,), tmp_path) == f"{HEAD}  buckets: {{batch: [1], length: [4]}}\n"


@pytest.mark.few(3)
@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
@settings(max_examples=30)
@given(lengths=st.sets(st.integers(1, 10**6), min_size=1, max_size=40))
def test_presets_can_be_changed(path: Path, lengths: set[int]) -> None:
    text = path.read_text()
    wanted = tuple(sorted(lengths))

    changed = replace_lengths(text, path.name, wanted)

    assert parse_config(changed, "f").grid.lengths == wanted
    assert sum(old != new for old, new in zip(text.splitlines(), changed.splitlines(), strict=True)) <= 1
