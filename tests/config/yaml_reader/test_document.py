"""Values are read as people mean them, or refused: tags, keys, aliases, duplicates."""

from __future__ import annotations

import re
import time

import pytest

from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.load import parse_config

from ..config_texts import SMALL, complaints, doubling_merges, small_block


def test_a_bomb_of_aliases_is_refused() -> None:
    """Ten levels of ten aliases are refused before they are expanded."""
    levels = "".join(f"    a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    text = f"neuron_lstm:\n  model:\n   args:\n    a0: &a0 [1]\n{levels}"

    assert "expected at most 10000 values" in complaints(text)


def test_an_alias_to_itself_is_refused() -> None:
    """The list contains itself."""
    assert "nested 32 deep" in complaints(small_block(model="{args: {x: &x [*x]}}"))


def test_anchors_and_aliases_work() -> None:
    """An alias stands for its value."""
    config = parse_config(small_block(buckets="{batch: &sizes [1, 2], length: *sizes}"), "a.yaml")

    assert config.grid == BucketGrid((1, 2), (1, 2))


@pytest.mark.parametrize(
    "value",
    [
        "1:30",
        "010",
        "!!int '010'",
        '!!int "_010\\n"',
        "!!float '1:30'",
        "!!int x",
        "!!python/name:os.system x",
        "!!set {a}",
        "!x [a]",
    ],
)
def test_values_that_yaml_reads_otherwise_than_people_are_refused(value: str) -> None:
    """Sexagesimal and octal numbers, and tags."""
    with pytest.raises(ConfigError) as refused:
        parse_config(small_block(model=f"{{args: {{x: {value}}}}}"), "f")

    assert re.fullmatch(r"f:4: neuron_lstm\.model\.args\.x: expected [^\n]*", str(refused.value))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("on", "expected a text as key, but YAML reads 'on' as true or false: put it in quotes"),
        ("3", "expected a text as key, but YAML reads '3' as a number: put it in quotes"),
        ("? [a, b]\n  ", "expected a text as key, got a list or a mapping"),
        ("<<", "expected no merge key: write the keys out"),
    ],
)
def test_a_key_that_is_no_text_is_refused(key: str, said: str) -> None:
    """This includes keys that look like text but are booleans in YAML."""
    assert said in complaints(small_block(**{key: "{}"}))


def test_other_blocks_are_left_alone() -> None:
    """Blocks of other programs are neither checked nor refused."""
    others = "handler: {3: y, on: 010}\nmicro_batching: {parallelism: {a: 1}}\npt2: {compile: {enable: false}}\n"

    assert parse_config(SMALL + others + "torchrun: {nnodes: 1}\n", "f").frontend.torchrun == {"nnodes": 1}


@pytest.mark.parametrize("value", ["!!int x", "2024-13-01", "!theirs {a: 1}", "[1, !!timestamp x]", "!!map [1]"])
def test_a_value_that_stops_every_worker_is_refused_in_other_blocks_too(value: str) -> None:
    """TorchServe's workers read the whole file, before the handler is asked."""
    assert complaints(SMALL + f"theirs: {value}\n") == (
        "model-config.yaml:4: theirs: is a value that TorchServe's workers cannot read: expected plain YAML, "
        "without tags"
    )


def test_a_list_with_the_tag_of_a_mapping_is_refused() -> None:
    """Neither PyYAML nor TorchServe could make a value of it."""
    assert "expected a plain mapping or list, got the tag" in complaints(small_block(buckets="!!map [1]"))
    assert "expected a plain mapping, got the tag" in complaints("!theirs\n" + SMALL)


def test_a_bomb_of_merge_keys_is_refused() -> None:
    """Each level would have twice the entries of the one before it."""
    begun = time.process_time()

    assert complaints(SMALL + doubling_merges(18)) == (
        "model-config.yaml:4: foo: expected merge keys that copy at most 10000 entries: write the keys out"
    )
    assert complaints(SMALL + doubling_merges(2000)).startswith("model-config.yaml:4: foo: expected merge keys")
    assert time.process_time() - begun < 10


def test_a_mapping_that_is_merged_into_itself_is_refused() -> None:
    """It has no end."""
    assert "foo: expected merge keys that copy" in complaints(SMALL + "foo: &a {<<: *a, k: 1}\n")


def test_merge_keys_of_other_blocks_are_left_alone() -> None:
    """A few of them are usual."""
    parse_config(SMALL + "theirs: [&a {x: 1}, &b {<<: *a, y: 2}, {<<: [*a, *b]}]\nlist: &x [*x]\n", "f")


def test_a_number_that_python_does_not_write_out_is_refused() -> None:
    """Its message has the beginning of the number."""
    message = complaints(small_block(threads="0x" + "f" * 6000))

    assert message == (
        f"model-config.yaml:4: neuron_lstm.threads: expected a number of at most 2048 bits, got 0x{'f' * 55}..."
    )
