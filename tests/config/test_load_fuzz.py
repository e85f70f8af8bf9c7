from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torchserve_neuron_lstm.config
from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.load import load_config, parse_config

PRESETS = [
    path.read_text()
    for path in sorted((Path(torchserve_neuron_lstm.config.__file__).parent / "presets").glob("*.yaml"))
]
SETTINGS = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

AWKWARD = st.sampled_from(
    [
        *("", "~", "no", "yes", "on", "010", "0x1F", "1:30", "1e5", "1_0", ".nan", "-.inf", "._", "0b_", "2024-13-45"),
        *("&a", "*a", "<<: *a", "!!int x", "!!python/object:x.y"),
        *("!!binary '#'", "!!timestamp x", "!!set {a}", "!<x> 1"),
        *("|", ">-", "---", "...", "%YAML 1.1", "%TAG ! x", "\t"),
        *("\u2028", "\x85", "\ufeff", "\0", "'", '"', "\\", "#"),
        *('"\\ud800"', '"\\UFFFFFFFF"', "[", "]", "{", "}", "? "),
        *(": ", "- ", ",", "\r", "\r\n", "\n", "  ", "9" * 5000),
        *("[batch, time]", "neuron_lstm:", "inputs:", "batchSize: -1", "é", "\U0001f600", "{{}: 1}", "? [a]\n: b", "="),
    ]
)
TEXTS = st.one_of(st.text(max_size=200), st.lists(st.one_of(AWKWARD, st.text(max_size=5)), max_size=30).map("".join))


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """A preset with some parts removed, repeated, or replaced by awkward texts."""
    text = draw(st.sampled_from(PRESETS))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 20)))
        middle = draw(st.one_of(AWKWARD, st.just(text[start:end] * 2), st.text(max_size=3)))
        text = text[:start] + middle + text[end:]
    return text


def refusal(text: str) -> ConfigError | None:
    """The reason for the refusal of a text; None for a valid configuration."""
    try:
        config = parse_config(text, "f.yaml")
    except ConfigError as refused:
        return refused
    assert config.grid.buckets
    assert config.input_specs
    return None


def check(text: str) -> None:
    """Check that it loads, or that each problem is one line of words about a line of the file."""
    refused = refusal(text)
    if refused is not None:
        lines = 1 + sum(map(text.count, ("\n", "\r", "\x85", "\u2028", "\u2029"))) - text.count("\r\n")
        assert refused.diagnostics
        assert all(1 <= problem.line <= lines for problem in refused.diagnostics)
        assert len(str(refused).splitlines()) == len(refused.diagnostics)
        assert str(refused).encode()


_KEYS = st.sampled_from(["inputs", "buckets", "model", "lengths", "outputs", "codec", "tolerance"])
_VALUES = st.tuples(_KEYS, AWKWARD).map(lambda pair: f"{PRESETS[1]}\n  {pair[0]}: {pair[1]}\n")


@pytest.mark.ci
@pytest.mark.parametrize(
    "texts",
    [TEXTS, mutations(), TEXTS.map("neuron_lstm: {}".format), _VALUES],
    ids=["texts", "damaged files", "blocks", "values"],
)
@given(data=st.data())
@SETTINGS
def test_any_text_is_loaded_or_refused(texts: st.SearchStrategy[str], data: st.DataObject) -> None:
    check(data.draw(texts))


@given(st.binary(max_size=100))
@settings(SETTINGS, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_loaded_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(data)
    refused = None
    try:
        load_config(path)
    except ConfigError as error:
        refused = error

    assert refused is not None  # a hundred random bytes are no configuration
    assert refused.diagnostics[0].line >= 1
