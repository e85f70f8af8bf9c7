import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import torchserve_neuron_lstm.config
from torchserve_neuron_lstm.archiver_ext.commands.schema import json_schema
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.diagnostics import ConfigError
from torchserve_neuron_lstm.config.frontend import Frontend
from torchserve_neuron_lstm.config.load import load_config, parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig

from .config_texts import problems, small_block

PRESETS = sorted((Path(torchserve_neuron_lstm.config.__file__).parent / "presets").glob("*.yaml"))
IDS = "{ids: {dtype: int64, shape: [batch, time]}}"
BOTH = "{batch: [1], length: [8]}"
MISSING = "is missing: an input has a %s dimension, so its sizes must be given, ascending"


def parsed(around: str = "", **keys: str) -> ServingConfig:
    return parse_config(small_block(**keys) + around, "f")


def shaped(shape: str) -> str:
    return f"{{x: {{dtype: float32, shape: {shape}}}}}"


def refusal(around: str = "", **keys: str) -> str:
    return "\n".join(problems(small_block(**keys) + around))


@pytest.mark.parametrize(
    ("shape", "buckets", "grid"),
    [
        ("[batch, time]", "{batch: [1, 2], length: [3, 4]}", BucketGrid((1, 2), (3, 4))),
        ("[time, batch, 12]", "{batch: [2], length: [3]}", BucketGrid((2,), (3,))),
        ("[time, 128]", "{length: [3, 4]}", BucketGrid((1,), (3, 4))),
        ("[batch, 7]", "{batch: [1, 2]}", BucketGrid((1, 2), (1,))),
        ("[5]", "{}", BucketGrid((1,), (1,))),
    ],
)
def test_a_grid_has_the_dimensions_that_the_inputs_have(shape: str, buckets: str, grid: BucketGrid) -> None:
    assert parsed(inputs=shaped(shape), buckets=buckets).grid == grid


@pytest.mark.parametrize(
    ("inputs", "buckets", "said"),
    [
        (IDS, "{batch: [1]}", f"buckets.length: {MISSING % 'time'}"),
        (IDS, "{length: [1]}", f"buckets.batch: {MISSING % 'batch'}"),
        (shaped("[batch, 7]"), BOTH, "buckets.length: expected none: no input has a time dimension"),
        (shaped("[time]"), BOTH, "buckets.batch: expected none: no input has a batch dimension"),
        (
            f"{shaped('[batch, time]')[:-1]}, y: {{dtype: float32, shape: [time, 3]}}}}",
            BOTH,
            "inputs.y.shape: expected batch here as in x: all inputs have it, or none",
        ),
        ("{}", BOTH, "inputs: expected 1 or more entries, got none"),
        (IDS, "{batch: [], length: [8]}", "buckets.batch: expected 1 or more entries, got none"),
        (IDS, "{batch: [0], length: [8]}", "buckets.batch[0]: expected 1 or more, got 0"),
        (IDS, "{batch: [true], length: [8]}", "buckets.batch[0]: expected a whole number, got true"),
        (
            IDS,
            "{batch: [1, 1], length: [8]}",
            "buckets.batch: expected ascending sizes, each once, got [1, 1]: write [1]",
        ),
        (IDS, "{batch: 4, length: [8]}", "buckets.batch: expected a list, got 4"),
        (IDS, "[1]", "buckets: expected a mapping of keys, got a list"),
    ],
)
def test_buckets_that_do_not_fit_the_inputs_are_refused(inputs: str, buckets: str, said: str) -> None:
    assert refusal(inputs=inputs, buckets=buckets) == f"neuron_lstm.{said}"


def test_a_mask_is_true_for_timesteps_unless_it_says_otherwise() -> None:
    assert (
        parsed(mask="m").mask == parsed(mask="{name: m, dtype: bool, true_for: timesteps, shape: [batch, time]}").mask
    )


def test_elements_of_a_tuple_have_dotted_names() -> None:
    state = "{state.0: {dtype: float32, shape: [time, batch, 3]}, state.1: {dtype: float32, shape: [2, batch, 3]}}"

    assert list(parsed(inputs=state).inputs) == ["state.0", "state.1"]
    assert "model.forward.state: expected a constant" in refusal(inputs=state, model="{forward: {state: 1}}")
    assert "model.forward['state.1']: expected a constant" in refusal(inputs=state, model="{forward: {state.1: 1}}")
    assert "model.forward['state.1.0']: expected a constant" in refusal(inputs=state, model="{forward: {state.1.0: 1}}")
    assert parsed(inputs=state, model="{forward: {state.2: null}}").model.forward == {"state.2": None}
    for name in ("0.state", "state.", "state.1x", "class.0"):
        assert "expected the name of a Python argument" in refusal(inputs=state.replace("state.0", name))


def test_inputs_of_one_request_have_the_batch_in_front() -> None:
    one = "{batched: false}"

    assert parsed(model=one).model.batched is False
    said = refusal(model=one, inputs=shaped("[time, batch, 3]")).removeprefix("neuron_lstm.inputs.x.")
    assert said == "shape: expected batch in front of what forward() takes: model.batched is false"


def test_a_packed_input_begins_with_batch_and_time() -> None:
    """These are the dimensions that pack_padded_sequence takes."""
    packed = "{x: {dtype: float32, shape: %s, packed: true}}"

    assert parsed(inputs=packed % "[time, batch, 3]").inputs["x"].packed
    assert refusal(inputs=packed % "[batch, 3, time]") == (
        "neuron_lstm.inputs.x.packed: expected batch and time as the first two dimensions of a packed input"
    )


def test_a_batch_may_exceed_the_largest_bucket() -> None:
    """The handler splits such batches."""
    assert parsed("batchSize: 500\n").frontend.batchSize == 500


@pytest.mark.parametrize(
    ("dtype", "pad_value", "kept"),
    [
        ("int64", "-9223372036854775808", -(2**63)),
        ("int32", "3.0", 3),
        ("uint8", "255", 255),
        ("bool", "true", 1),
        ("float16", "65504", 65504),
        ("float32", "-1.5", -1.5),
    ],
)
def test_a_pad_value_of_the_dtype_is_kept(dtype: str, pad_value: str, kept: float) -> None:
    config = parsed(inputs=f"{{x: {{dtype: {dtype}, shape: [batch, time], pad_value: {pad_value}}}}}")

    assert config.input_specs[0].pad_value == kept
    assert isinstance(config.input_specs[0].pad_value, type(kept))


@pytest.mark.parametrize(("values", "padding"), [("[1, 9]", 1), ("[-9, -2]", -2), ("[-1, 1]", 0), ("[0, 4]", 0)])
def test_a_pad_value_that_is_left_out_is_the_value_of_the_range_next_to_0(values: str, padding: int) -> None:
    config = parsed(inputs=f"{{x: {{dtype: int64, shape: [batch, time], range: {values}}}}}")

    assert config.input_specs[0].pad_value == padding


@pytest.mark.parametrize(
    ("key", "dtype", "value", "said"),
    [
        ("pad_value", "int64", "0.5", f"expected a whole number from {-(2**63)} to {2**63 - 1} for int64, got 0.5"),
        ("pad_value", "uint8", "-1", "expected a whole number from 0 to 255 for uint8, got -1"),
        ("pad_value", "bool", "2", "expected a whole number from 0 to 1 for bool, got 2"),
        ("pad_value", "float16", "65505", "expected a finite float16, got 65505"),
        ("pad_value", "float64", "1" + "0" * 400, "expected a finite float64, got 1" + "0" * 56 + "..."),
        ("pad_value", "float32", ".nan", "expected a finite number, got nan"),
        ("pad_value", "float32", "-.inf", "expected a finite number, got -inf"),
        ("pad_value", "float32", "zero", "expected a finite number, got the text 'zero'"),
        ("pad_value", "float32", "", "expected a finite number, got nothing"),
        ("range", "float16", "[0, 100000]", "expected a finite float16, got 100000"),
        ("range", "float32", "[-1.0e+39, 0]", "expected a finite float32, got -1e+39"),
        ("range", "uint8", "[0, 256]", "expected a whole number from 0 to 255 for uint8, got 256"),
    ],
)
def test_values_that_the_dtype_cannot_hold_are_refused(key: str, dtype: str, value: str, said: str) -> None:
    inputs = f"{{x: {{dtype: {dtype}, shape: [batch, time], {key}: {value}}}}}"

    assert refusal(inputs=inputs) == f"neuron_lstm.inputs.x.{key}: {said}"


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("[batch, time, batch]", "shape: expected batch once at most, got it 2 times"),
        ("[batch, time, 0]", "shape[2]: expected batch, time or a size of 1 or more, got 0"),
        ("[batch, time, true]", "shape[2]: expected batch, time or a size of 1 or more, got true"),
        ("[batch, length]", "shape[1]: expected batch, time or a size of 1 or more, got the text 'length'"),
        ("[]", "shape: expected 1 or more entries, got none"),
        ("batch", "shape: expected a list, got the text 'batch'"),
    ],
)
def test_a_shape_names_each_axis_once(shape: str, said: str) -> None:
    assert refusal(inputs=shaped(shape), buckets=BOTH).splitlines()[-1] == f"neuron_lstm.inputs.x.{said}"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"lengths": "ids"}, "lengths: expected an argument of forward() that is not an input, got the input ids"),
        (
            {"lengths": "n", "model": "{forward: {n: 1}}"},
            "model.forward.n: expected a constant argument, but inputs, lengths or mask give it per request",
        ),
        (
            {"lengths": "n", "inputs": "{x: {dtype: float32, shape: [batch, 7]}}", "buckets": "{batch: [1]}"},
            "lengths: expected no lengths: no input has a time dimension",
        ),
        ({"lengths": "[n, ids]"}, "lengths: expected an argument of forward() that is not an input, got the input ids"),
        ({"lengths": "{names: [n], type: array}"}, "lengths.type: expected 'tensor', 'numpy' or 'list', got the text"),
        ({"lengths": "[]"}, "lengths.names: expected 1 or more entries, got none"),
        ({"lengths": "[1x]"}, "lengths.names[0]: expected the name of a Python argument"),
        ({"lengths": "n", "mask": "n"}, "mask: expected another argument of forward() than n, which is named above"),
        (
            {"mask": "{name: m}", "model": "{forward: {m: 1}}"},
            "model.forward.m: expected a constant argument, but inputs, lengths or mask give it per request",
        ),
        (
            {"mask": "m", "inputs": "{x: {dtype: float32, shape: [batch, 7]}}", "buckets": "{batch: [1]}"},
            "mask: expected no mask: no input has a batch and a time dimension",
        ),
        (
            {"mask": "{name: m, shape: [batch, 2, time]}"},
            "mask.shape: expected batch and time, each once, and sizes of 1, as in [batch, 1, time], got a list",
        ),
        ({"mask": "{name: m, true_for: pad}"}, "mask.true_for: expected 'timesteps' or 'padding', got the text 'pad'"),
        ({"mask": "{dtype: bool}"}, "mask.name: is missing"),
        ({"outputs": "[]"}, "outputs: expected 1 or more entries, got none"),
        ({"outputs": "[a, b, a]"}, "outputs: expected different names, got a 2 times"),
        ({"outputs": '["a\\n"]'}, "outputs: expected printable names, got the text 'a\\n'"),
        ({"tolerance": "{atol: .inf}"}, "tolerance.atol: expected a finite number, got inf"),
        ({"threads": "1.0"}, "threads: expected a whole number, got 1.0"),
        ({"threads": "99999999999999999999"}, "threads: expected 4096 or less, got 99999999999999999999"),
        ({"limits": "{body_bytes: 2147483648}"}, "limits.body_bytes: expected 2147483647 or less, got 2147483648"),
        (
            {"limits": "{sequences: 99999999999999999999}"},
            "limits.sequences: expected 9223372036854775807 or less, got 99999999999999999999",
        ),
        ({"device": '"cuda:\u0663"'}, "device: String should match pattern"),
        (
            {"model": "{args: {a b: 1}}"},
            "model.args['a b']: expected the name of a Python argument, got the text 'a b'",
        ),
        ({"lowering": "never"}, "lowering: expected 'auto', 'required' or 'off', got the text 'never'"),
        ({"shadow": "{share: 0.1}", "streaming": "{}"}, "shadow: expected none: the model's own code answers whole"),
        ({"shadow": "{share: 0.1}", "lowering": "off"}, "shadow: expected none: with `lowering: off`"),
        ({"shadow": "{share: 0}"}, "shadow.share: expected more than 0"),
        ({"shadow": "{share: 1.5}"}, "shadow.share: expected 1.0 or less"),
        ({"shadow": "{share: 0.1, on_difference: stop}"}, "shadow.on_difference: expected 'log' or 'model'"),
        ({"lowering": "off", "streaming": "{}"}, "lowering: expected auto or required: only a lowered model serves"),
        ({"bakend": "auto"}, "bakend: is not a key here: did you mean backend?"),
        (
            {"colour": "red"},
            "colour: is not a key here: expected one of model, inputs, lengths, mask, outputs, buckets, backend",
        ),
        ({"frontend": "{}"}, "frontend: is not a key here: expected one of"),
    ],
)
def test_keys_of_the_block_are_checked(keys: dict[str, str], said: str) -> None:
    assert refusal(**keys).startswith(f"neuron_lstm.{said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("minWorkers: 1", "minWorkers: requires maxWorkers as well: TorchServe ignores the one without the other"),
        ("maxWorkers: 1", "maxWorkers: requires minWorkers as well: TorchServe ignores the one without the other"),
        (
            "minWorkers: 3\nmaxWorkers: 2",
            "maxWorkers: expected minWorkers (3) or more, got 2: TorchServe would ignore both",
        ),
        (
            "maxBatchDelay: 0",
            "maxBatchDelay: expected 1 or more, got 0: TorchServe takes 0 as not given and waits 100 ms",
        ),
        (
            "deviceType: neuron",
            "deviceType: expected 'cpu' or 'gpu', got the text 'neuron'; TorchServe would ignore it",
        ),
        ("deviceIds: [a]", "deviceIds[0]: expected a whole number, got the text 'a'"),
        ("deviceIds: [-1]", "deviceIds[0]: expected 0 or more, got -1"),
        ("deviceType:", "deviceType: expected a value, got nothing: write one or leave the key out"),
        ("batchSize: '8'", "batchSize: expected a whole number, got the text '8'"),
        ("batchSize: 8.0", "batchSize: expected a whole number, got 8.0"),
        ("batchSize: true", "batchSize: expected a whole number, got true"),
        ("batchsize: 8", "batchsize: is not a key of TorchServe or of the plug-in: did you mean batchSize?"),
        ("max_workers: 8", "max_workers: is not a key of TorchServe or of the plug-in: did you mean maxWorkers?"),
        ("torchrun: 3", "torchrun: expected a mapping of keys, got 3"),
        ("useJobTicket: 1", "useJobTicket: expected true or false, got 1"),
    ],
)
def test_what_torchserve_would_silently_ignore_is_refused(text: str, said: str) -> None:
    assert refusal(f"{text}\n").startswith(said)


def test_a_preset_is_there_for_each_way_of_serving() -> None:
    assert [path.name for path in PRESETS] == [
        *("cpu-low-latency.yaml", "cpu.yaml", "final-state-classifier.yaml", "frames.yaml"),
        *("neuronx.yaml", "streaming-low-latency.yaml", "streaming-throughput.yaml", "vollo.yaml"),
    ]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_are_valid(path: Path) -> None:
    config = load_config(path)

    assert config.frontend.minWorkers == config.frontend.maxWorkers is not None
    jsonschema.Draft202012Validator(json_schema()).validate(yaml.safe_load(path.read_text()))


def test_the_json_schema_is_one() -> None:
    assert json_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_every_key_of_the_json_schema_is_described() -> None:
    schema = json_schema()
    keys = {
        f"{place}.{key}": entry
        for place, part in (("", schema), *schema["$defs"].items())
        for key, entry in part["properties"].items()
        if key != "neuron_lstm"
    }

    assert len(keys) > len(Frontend.model_fields) + 10
    assert [key for key, entry in keys.items() if not entry.get("description")] == []
    assert all(part.get("description") for part in schema["$defs"].values())


@pytest.mark.parametrize(
    "change",
    [
        {"minWorkers": "1"},
        {"maxBatchDelay": 0},
        {"deviceType": "neuron"},
        {"deviceType": None},
        {"maxWorkers": None},
        {"neuron_lstm": {}},
        {"neuron_lstm": {"inputs": {}, "buckets": {"batch": [1], "length": [1]}}},
        {"neuron_lstm": {"inputs": {"a b": {"dtype": "int64", "shape": ["batch"]}}, "buckets": {"batch": [1]}}},
        {"neuron_lstm": {"inputs": {"a": {"dtype": "int64", "shape": ["batch", 0]}}, "buckets": {"batch": [1]}}},
        {"neuron_lstm": {"inputs": {"a": {"dtype": "int64", "shape": ["batch"]}}, "buckets": {"batch": [1, 1]}}},
        {"neuron_lstm": {"inputs": {"a": {"dtype": "int64", "shape": ["batch"]}}, "buckets": {"batch": []}}},
        {"neuron_lstm": {"inputs": {"a": {"dtype": "int64", "shape": ["batch"]}}, "buckets": {"batch": [1]}, "x": 1}},
    ],
)
def test_an_editor_sees_what_the_loader_refuses(change: dict[str, Any]) -> None:
    text = yaml.safe_dump({**yaml.safe_load(PRESETS[0].read_text()), **change})

    assert not jsonschema.Draft202012Validator(json_schema()).is_valid(yaml.safe_load(text))
    with pytest.raises(ConfigError):
        parse_config(text, "f")


def test_slips_do_not_reach_into_other_blocks() -> None:
    for key in (
        *("handler", "micro_batching", "pt2", "pippy", "deepspeed", "parallelism", "batching", "model", "metrics"),
    ):
        assert re.fullmatch(r"[a-z0-9_]+", key)
        parsed(f"{key}: {{}}\n")


TWO = "{x: {argument: ids, dtype: int64, shape: [batch, time]}, y: {argument: %s, dtype: int64, shape: [batch, time]}}"


@pytest.mark.parametrize("second", ["ids", "ids.0"])
def test_an_argument_of_another_input_is_refused(second: str) -> None:
    assert f"y.argument: expected an argument of its own, got {second}, which the input x" in refusal(
        inputs=TWO % second
    )
    assert "lengths: expected an argument of forward() that is not an input" in refusal(inputs=TWO % "x", lengths="x")
    assert parsed(inputs=TWO % "x", lengths="y").arguments == ("ids", "x")


def test_only_floats_have_missing_values() -> None:
    missing = "{x: {dtype: %s, shape: [batch, time], missing: %s}}"

    assert parsed(inputs=missing % ("float32", ".nan")).input_specs[0].nan
    assert "x.missing: expected a float dtype, which has NaN, got int64" in refusal(inputs=missing % ("int64", "nan"))
