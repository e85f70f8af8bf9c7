import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.commands.schema import json_schema
from torchserve_neuron_lstm.bucketing.bucket_lengths import geometric_lengths, optimal_lengths
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.buckets import AutoLengths, Buckets
from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.load import load_config, parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig

from .config_texts import small_block

SEEN = {3: 50, 5: 20, 9: 10, 30: 2, 31: 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lengths.txt").write_text(" ".join(f"{length}:{number}" for length, number in SEEN.items()))
    return tmp_path


def written(length: str, more: str = "") -> str:
    return small_block(buckets=f"\n    batch: [1, 4]\n    length: {length}") + more


def loaded(folder: Path, length: str, more: str = "") -> ServingConfig:
    (folder / "model-config.yaml").write_text(written(length, more))
    return load_config(folder / "model-config.yaml")


def refusal(folder: Path, length: str, more: str = "") -> str:
    with pytest.raises(ConfigError) as refused:
        loaded(folder, length, more)
    return str(refused.value).replace(f"{folder}/", "")


def test_lengths_are_chosen_for_a_histogram_beside_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    config = loaded(folder, "{auto: 3, histogram: lengths.txt}")

    assert config.histogram == SEEN
    assert config.grid == BucketGrid((1, 4), (3, 9, 31)) == BucketGrid((1, 4), optimal_lengths(SEEN, 3))


def test_without_a_histogram_lengths_are_evenly_spaced_in_proportion(folder: Path) -> None:
    config = loaded(folder, "{auto: 5, longest: 200}")

    assert (config.grid.lengths, config.histogram) == (geometric_lengths(200, 5), None)


def test_the_longest_that_is_accepted_need_not_have_been_seen(folder: Path) -> None:
    config = loaded(folder, "{auto: 3, histogram: lengths.txt, longest: 64}")

    assert (config.grid.lengths[-1], len(config.grid.lengths)) == (64, 3)


def test_longer_sequences_than_are_accepted_do_not_count(folder: Path) -> None:
    auto = "{auto: 1, histogram: lengths.txt, longest: 9}"
    two = auto.replace("1,", "2,")

    assert loaded(folder, auto).grid.lengths == (9,)
    assert loaded(folder, two).grid.lengths == optimal_lengths({3: 50, 5: 20, 9: 10}, 2)
    assert loaded(folder, two, "  overflow: truncate\n").grid.lengths == optimal_lengths({3: 50, 5: 20, 9: 13}, 2)
    assert loaded(folder, two.replace("9}", "2}"), "  overflow: truncate\n").grid.lengths == (2,)


@pytest.mark.parametrize(
    ("length", "said"),
    [
        ("{auto: 0, longest: 9}", ".auto: expected 1 or more, got 0"),
        ("{auto: 257, longest: 9}", ".auto: expected 256 or less, got 257"),
        ("{auto: yes, longest: 9}", ".auto: expected a whole number, got true (YAML reads yes as a boolean: quote it"),
        (
            "{auto: 8}",
            ": expected histogram: FILE with lengths seen in traffic, or longest: N without one, got neither",
        ),
        ("{longest: 9}", ".auto: is missing: The largest number of lengths"),
        ("{auto: 8, longest: 0}", ".longest: expected 1 or more, got 0"),
        ("{auto: 8, longst: 9}", ".longst: is not a key here: did you mean longest?"),
        ("{auto: 8, histogram: [3]}", ".histogram: expected text, got a list"),
        ("{auto: 8, histogram: ''}", ".histogram: "),
        ("{auto: 8, histogram: none.txt}", ".histogram: none.txt: cannot be read: No such file or directory"),
        ("{auto: 8, histogram: .}", ".histogram: .: cannot be read: it is not a regular file"),
        (
            "{auto: 8, histogram: lengths.txt, longest: 2}",
            ".longest: expected 3 or more, the shortest in the histogram",
        ),
        ("8", ": expected a list, or {auto: 8, histogram: FILE} to have the lengths chosen, got 8"),
        ("auto", ": expected a list, or {auto: 8, histogram: FILE} to have the lengths chosen, got the text 'auto'"),
        ("[4, 2]", ": expected ascending sizes, each once, got [4, 2]: write [2, 4]"),
        ("[4, '8']", "[1]: expected a whole number, got the text '8'"),
        ("[]", ": expected 1 or more entries, got none"),
    ],
)
def test_wrong_lengths_are_named_with_their_line(folder: Path, length: str, said: str) -> None:
    message = refusal(folder, length)

    assert message.startswith(f"model-config.yaml:5: neuron_lstm.buckets.length{said}")
    assert "\n" not in message


def test_all_errors_are_reported_at_once(folder: Path) -> None:
    (folder / "lengths.txt").write_text("12\n13\nfourteen\n")
    length = "\n      auto: 0\n      histogram: lengths.txt\n      longest: 0"

    said = refusal(folder, length, "  threads: 0\nbatchSize: many\n").splitlines()

    assert [line.split(": expected")[0] for line in said] == [
        "model-config.yaml:6: neuron_lstm.buckets.length.auto",
        "model-config.yaml:7: neuron_lstm.buckets.length.histogram: lengths.txt",
        "model-config.yaml:8: neuron_lstm.buckets.length.longest",
        "model-config.yaml:9: neuron_lstm.threads",
        "model-config.yaml:10: batchSize",
    ]
    assert "got 'fourteen' in line 3" in said[1]


def test_an_empty_histogram_is_refused(folder: Path) -> None:
    (folder / "lengths.txt").write_text("# to come\n")

    assert refusal(folder, "{auto: 8, histogram: lengths.txt}").endswith("histogram: lengths.txt: holds no lengths")


def test_a_model_without_time_has_no_lengths_to_choose() -> None:
    text = written("{auto: 1, longest: 4}").replace("time", "3")

    with pytest.raises(ConfigError, match="length: expected none: no input has a time dimension"):
        parse_config(text, "f")


def test_what_is_made_in_python_is_checked_alike(folder: Path) -> None:
    config = loaded(folder, "{auto: 3, histogram: lengths.txt}")
    values = {name: getattr(config, name) for name in ServingConfig.model_fields}

    assert ServingConfig(**values) == config
    with pytest.raises(ValueError, match="expected lengths in the file"):
        ServingConfig(**{**values, "histogram": None})
    assert Buckets(length=(1, 2)).length == (1, 2)
    assert Buckets(length=AutoLengths(auto=1, longest=2)).length == AutoLengths(auto=1, longest=2)


@given(st.dictionaries(st.integers(1, 100), st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 9))
def test_chosen_lengths_are_always_a_grid(observed: dict[int, int], count: int) -> None:
    lengths = AutoLengths(auto=count, histogram="f").lengths_for(observed, truncate=False)

    assert BucketGrid((1,), lengths).lengths[-1] == max(observed)
    assert len(lengths) <= count


_keys = st.sampled_from(["auto", "histogram", "longest"]) | st.text(max_size=3)
_scalars = st.none() | st.booleans() | st.integers(-1, 300) | st.floats() | st.text(max_size=5)
_anything = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4), max_leaves=6
)


@given(_anything)
def test_anything_for_lengths_is_loaded_or_refused(value: object) -> None:
    lines = [5]
    try:
        assert parse_config(written(json.dumps(value)), "f").grid.lengths
    except ConfigError as refused:
        lines = [problem.line for problem in refused.diagnostics]

    assert lines
    assert all(1 <= line <= 5 for line in lines)


@pytest.mark.parametrize(
    ("length", "good"),
    [
        ("[1, 2]", True),
        ("{auto: 8, histogram: f}", True),
        ("{auto: 8, longest: 9}", True),
        ("{auto: 8}", False),
        ("{auto: 0, longest: 9}", False),
        ("{longest: 9}", False),
        ("{auto: 8, longest: 9, x: 1}", False),
        ("8", False),
    ],
)
def test_an_editor_knows_both_forms(length: str, good: bool) -> None:
    assert jsonschema.Draft202012Validator(json_schema()).is_valid(yaml.safe_load(written(length))) == good


@pytest.mark.parametrize(("rows", "accepted"), [(65_536, True), (65_537, False), (1_000_000, False)])
def test_a_batch_that_takes_long_to_load_is_refused(rows: int, accepted: bool) -> None:
    """More rows run in several calls of a smaller bucket; the JSON schema has the same bound."""
    file = written("[16]").replace("batch: [1, 4]", f"batch: [1, {rows}]")
    assert jsonschema.Draft202012Validator(json_schema()).is_valid(yaml.safe_load(file)) == accepted
    if accepted:
        assert parse_config(file, "model-config.yaml").grid.batches == (1, rows)
    else:
        with pytest.raises(ConfigError, match=rf"buckets.batch\[1\]: expected 65536 or less, got {rows}"):
            parse_config(file, "model-config.yaml")
