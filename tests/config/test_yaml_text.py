import re

import pytest

from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.yaml_text import max_workers

from .config_texts import SMALL, complaints, small_block


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
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "f")

    assert str(refused.value) == said


def test_a_tab_is_explained() -> None:
    assert complaints("a:\n\t- b\n").endswith("that cannot start any token: indent with spaces")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "text", ["a: " + "[" * 5000 + "]" * 5000, "a: " + "[" * 5000, small_block(model="{args: {x: &x [*x]}}")]
)
def test_what_has_no_end_or_is_too_deep_for_python_is_refused(text: str) -> None:
    assert "nested too deep" in complaints(text)


def test_aliases_that_multiply_are_refused() -> None:
    lists = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))

    found = complaints(f"a0: &a0 [x, x]\n{lists}{small_block(model='{args: {x: *a9}}')}")
    assert "neuron_lstm.model.args.x[0]" in found
    assert "is one of more than 200,000 values, with all aliases (*) written out" in found


def test_merge_keys_that_multiply_are_refused() -> None:
    maps = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: 1}}\n" for n in range(1, 12))

    assert "a11: has more than 200,000 values, with all aliases (*) written out" in complaints(
        f"a0: &a0 {{x: 1}}\n{maps}{small_block()}"
    )


def test_anchors_and_aliases_work() -> None:
    config = parse_config(small_block(buckets="{batch: &sizes [1, 2], length: *sizes}"), "a.yaml")

    assert config.grid == BucketGrid((1, 2), (1, 2))


@pytest.mark.parametrize(
    "value",
    [
        *("1:30", "010", "!!int '010'", '!!int "_010\\n"', "!!float '1:30'"),
        *("!!int x", "!!python/name:os.system x", "!!set {a}", "!x [a]"),
    ],
)
def test_values_that_yaml_reads_otherwise_than_people_are_refused(value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(small_block(model=f"{{args: {{x: {value}}}}}"), "f")

    assert re.fullmatch(r"f:4: neuron_lstm\.model\.args\.x: expected [^\n]*", str(refused.value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (small_block(on="{}"), "expected a text as key, but YAML reads 'on' as true or false: put it in quotes"),
        (small_block(**{"3": "{}"}), "expected a text as key, but YAML reads '3' as a number: put it in quotes"),
        (small_block(**{"? [a, b]\n  ": "{}"}), "expected a text as key, got a list or a mapping"),
        (small_block(**{"<<": "{}"}), "expected no merge key: write the keys out"),
        (small_block(buckets="!!map [1]"), "expected a plain mapping or list, got the tag"),
        ("!theirs\n" + SMALL, "expected a plain mapping, got the tag"),
        (
            small_block(threads="0x" + "f" * 6000),
            "neuron_lstm.threads: expected a value that YAML can read as int, got '0xfff",
        ),
    ],
    ids=["on", "3", "a list", "a merge key", "a list as a mapping", "a tag", "a number too long for Python"],
)
def test_what_yaml_would_read_as_another_value_is_refused(text: str, said: str) -> None:
    assert said in complaints(text)


def test_other_blocks_are_left_alone() -> None:
    others = "handler: {3: y, on: 010}\nmicro_batching: {parallelism: {a: 1}}\npt2: {compile: {enable: false}}\n"

    assert parse_config(SMALL + others + "torchrun: {nnodes: 1}\n", "f").frontend.torchrun == {"nnodes": 1}


@pytest.mark.parametrize("value", ["!!int x", "2024-13-01", "!theirs {a: 1}", "[1, !!timestamp x]", "!!map [1]"])
def test_a_value_that_stops_every_worker_is_refused_in_other_blocks_too(value: str) -> None:
    """TorchServe's workers read the whole file, before the handler is asked."""
    assert complaints(SMALL + f"theirs: {value}\n") == (
        "model-config.yaml:4: theirs: is a value that TorchServe's workers cannot read: expected plain YAML, "
        "without tags"
    )


def test_merge_keys_of_other_blocks_are_left_alone() -> None:
    parse_config(SMALL + "theirs: [&a {x: 1}, &b {<<: *a, y: 2}, {<<: [*a, *b]}]\nlist: &x [*x]\n", "f")


def test_duplicate_keys_are_refused() -> None:
    """YAML would silently keep the last one."""
    assert complaints(SMALL + "  model: {args: {c: 1, c: 2}}\nneuron_lstm: {}\n").splitlines() == [
        "model-config.yaml:4: neuron_lstm.model.args.c: is given twice, first on line 4: expected each key once",
        "model-config.yaml:5: neuron_lstm: is given twice, first on line 1: expected each key once",
    ]


@pytest.mark.parametrize("text", ["a: !!int x", "a: 2024-13-01", "a: !!bool x", "a: !!timestamp x", "[" * 5000])
def test_a_text_that_cannot_be_read_has_no_number_of_workers(text: str) -> None:
    assert max_workers(text) is None


@pytest.mark.timeout(20)
def test_aliases_within_aliases_are_not_multiplied() -> None:
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12))]
    assert max_workers("\n".join([*lines, "maxWorkers: 2"])) == 2
