import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.config import json_codec
from torchserve_neuron_lstm.config.json_codec import INFINITE, JsonError, from_json, parse_json, read_json, to_json


def even(number: int) -> None:
    if number % 2:
        raise ValueError(f"expected an even number, got {number}")


class Size(NamedTuple):
    rows: int
    columns: Annotated[int, even]


@dataclass(frozen=True)
class Layer:
    name: str
    kind: Literal["lstm", "gru"]
    size: Size | None
    shape: tuple[int | str, ...]
    bounds: tuple[float, Annotated[float, INFINITE]]
    operators: Collection[str]
    settings: Mapping[str, Path]
    extra: Any = None
    in_tree: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name: expected some text, got none")


@dataclass(frozen=True)
class Model:
    layers: tuple[Layer, ...]
    exact: Annotated[Size, json_codec.NO_OTHER_KEYS]


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=5)
layers = st.builds(
    Layer,
    name=texts,
    kind=st.sampled_from(["lstm", "gru"]),
    size=st.none() | st.builds(Size, st.integers(), st.integers().map(lambda number: 2 * number)),
    shape=st.lists(st.integers() | texts).map(tuple),
    bounds=st.tuples(numbers, numbers | st.sampled_from([float("inf"), float("-inf")])),
    operators=st.lists(texts).map(tuple),
    settings=st.dictionaries(texts, st.sampled_from([Path("a"), Path("b/c")])),
    extra=st.none() | st.lists(st.integers()),
    in_tree=st.text(st.characters(exclude_categories=("Cs", "Cc"))),
)
models = st.builds(Model, st.lists(layers, max_size=2).map(tuple), st.just(Size(1, 2)))


@given(models)
def test_a_value_is_read_back_as_it_was_written(model: Model) -> None:
    found = from_json(Model, parse_json(json.dumps(to_json(Model, model), allow_nan=False)))

    assert found == model
    assert [[type(bound) for bound in layer.bounds] for layer in found.layers] == [
        [type(bound) for bound in layer.bounds] for layer in model.layers
    ]


LAYER = {
    "name": "l0",
    "kind": "lstm",
    "size": {"rows": 1, "columns": 2},
    "shape": [1, "s0"],
    "bounds": [0, "-inf"],
    "operators": ["aten::sort"],
    "settings": {"workdir": "out"},
    "extra": None,
    "in_tree": "*",
}


def test_keys_are_those_of_the_fields() -> None:
    layer = from_json(Layer, LAYER)

    assert layer.in_tree == "*"
    assert list(layer.bounds) == [0, float("-inf")]
    assert to_json(Layer, layer) == LAYER


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 1}, "layers[0].name: expected a string, got 1"),
        ({"name": ""}, "layers[0].name: expected some text, got none"),
        ({"kind": "rnn"}, "layers[0].kind: expected lstm or gru, got 'rnn'"),
        ({"size": []}, "layers[0].size: expected an object, got []"),
        ({"size": {"rows": 1}}, "layers[0].size.columns is missing"),
        ({"size": {"rows": True, "columns": 2}}, "layers[0].size.rows: expected an integer, got True"),
        ({"size": {"rows": 1, "columns": 3}}, "layers[0].size.columns: expected an even number, got 3"),
        ({"shape": [1.5]}, "layers[0].shape[0]: expected an integer or a string, got 1.5"),
        ({"bounds": [0]}, "layers[0].bounds: expected 2 values, got 1"),
        ({"bounds": ["inf", 0]}, "layers[0].bounds[0]: expected a number, got 'inf'"),
        ({"bounds": [0, "nan"]}, "layers[0].bounds[1]: expected a number, got 'nan'"),
        ({"bounds": [float("inf"), 0]}, "layers[0].bounds[0]: expected a finite number, got inf"),
        ({"operators": "aten::sort"}, "layers[0].operators: expected a list, got 'aten::sort'"),
        ({"settings": {"workdir": 3}}, "layers[0].settings.workdir: expected a string, got 3"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(JsonError) as refused:
        from_json(Model, {"layers": [LAYER | change], "exact": {"rows": 1, "columns": 2}})
    assert str(refused.value) == message


def test_other_keys_are_refused_only_where_the_annotation_says_so() -> None:
    written = {"layers": [LAYER | {"more": 1}], "exact": {"rows": 1, "columns": 2}}
    assert from_json(Model, written).layers == (from_json(Layer, LAYER),)
    with pytest.raises(JsonError, match=r"^exact: expected rows, columns, got rows, columns, more$"):
        from_json(Model, written | {"exact": {"rows": 1, "columns": 2, "more": 3}})


def test_a_value_that_is_too_deep_to_be_written_is_refused_too() -> None:
    """The parser takes more levels than `repr`."""
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]

    with pytest.raises(JsonError, match="a: expected a string, got a list of too many levels"):
        from_json(dict[str, str], {"a": deep})


@pytest.mark.parametrize("written", [{"a": "x\ud800"}, {"a\udfff": "x"}, {"a": "\x1b[31m"}, {"\x9b0m": ""}])
def test_half_a_character_and_a_control_character_are_refused(written: dict[str, str]) -> None:
    """JSON can name half of a surrogate pair. A file in UTF-8 cannot hold it; a terminal obeys escape sequences."""
    with pytest.raises(JsonError, match=r"text without control characters, got '(x.ud800|a.udfff|.x1b.*|.x9b.*)'"):
        from_json(dict[str, str], written)


def test_the_top_level_is_named_too() -> None:
    with pytest.raises(JsonError, match=r"^top level: expected an object, got \[\]$"):
        from_json(Model, [])


@pytest.mark.parametrize("text", ["", "{", "NaN", "[-Infinity]", '{"a": 1, "a": 2}', "[" * 100_000])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_a_damaged_file_is_named_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "size.json"
    json_codec.write_json(Size, Size(1, 2), path)
    assert read_json(Size, path) == Size(1, 2)
    for text, reason in ((b'{"rows": 1}', "columns is missing"), (b"{", "Expecting"), (b"\xff", "decode"), (None, "")):
        if text is None:
            path.unlink()
        else:
            path.write_bytes(text)
        with pytest.raises(JsonError, match=rf"size\.json cannot be read \(.*{reason}.*\): package the model again$"):
            read_json(Size, path)
