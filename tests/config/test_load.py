from pathlib import Path

import pytest

from torchserve_neuron_lstm.bucketing.shapes import BucketGrid, TensorSpec
from torchserve_neuron_lstm.config.diagnostics import ConfigError, Diagnostic
from torchserve_neuron_lstm.config.load import load_block, load_config, parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig

from .config_texts import SMALL, complaints, small_block

FULL = """\
# TorchServe frontend parameters
minWorkers: 1
maxWorkers: 2
batchSize: 32
maxBatchDelay: 2
# another's block
handler: {profile: true}
# the plug-in
neuron_lstm:
  model: {args: {hidden: 256}, forward: {use_pack_unpack: true}}
  inputs:
    ids: {dtype: int64, shape: [batch, time], pad_value: 0}
    side: {dtype: float32, shape: [batch, 3]}
  lengths: lengths
  outputs: [logits]
  buckets: {batch: [1, 4, 16, 32], length: [16, 32, 64, 128]}
  backend: onnxruntime
  precision: float32
  tolerance: {atol: 1.0e-4, rtol: 1.0e-6}
  overflow: truncate
  codec: my_codec:TextCodec
  threads: 4
"""


def test_every_key_is_read() -> None:
    config = parse_config(FULL, "model-config.yaml")

    assert (config.frontend.minWorkers, config.frontend.maxWorkers) == (1, 2)
    assert (config.frontend.batchSize, config.frontend.maxBatchDelay, config.frontend.responseTimeout) == (32, 2, 120)
    assert config.model.args == {"hidden": 256}
    assert config.model.forward == {"use_pack_unpack": True}
    assert config.input_specs == (
        TensorSpec("ids", "int64", ("batch", "time")),
        TensorSpec("side", "float32", ("batch", 3)),
    )
    assert config.lengths is not None
    assert (config.lengths.names, config.lengths.type, config.outputs) == (("lengths",), "tensor", ("logits",))
    assert config.grid == BucketGrid((1, 4, 16, 32), (16, 32, 64, 128))
    assert (config.backend, config.precision, config.overflow) == ("onnxruntime", "float32", "truncate")
    assert (config.tolerance.atol, config.tolerance.rtol) == (1e-4, 1e-6)
    assert (config.codec, config.threads) == ("my_codec:TextCodec", 4)


@pytest.mark.parametrize(
    ("written", "bounds"),
    [
        ("precision: bfloat16", (1e-2, 1e-2)),
        ("precision: bfloat16\n  tolerance: {}", (1e-2, 1e-2)),
        ("precision: bfloat16\n  tolerance: {atol: 0.5}", (0.5, 1e-2)),
        ("tolerance: {rtol: 0.0}\n  precision: bfloat16", (1e-2, 0.0)),
        ("precision: float16", (2e-3, 2e-3)),
        ("precision: float32", (1e-5, 1e-5)),
        ("tolerance: {atol: 0.5}", (0.5, 1e-5)),
    ],
)
def test_what_a_tolerance_leaves_out_follows_from_the_precision(written: str, bounds: tuple[float, float]) -> None:
    config = parse_config(f"{SMALL}  {written}\n", "a.yaml")

    assert (config.tolerance.atol, config.tolerance.rtol) == bounds


def test_only_inputs_and_buckets_are_required() -> None:
    config = parse_config(SMALL, "a.yaml")

    assert config.model.args == config.model.forward == {}
    assert (config.lengths, config.outputs, config.codec, config.threads) == (None, None, None, None)
    assert (config.backend, config.precision, config.overflow) == ("auto", "float32", "reject")
    assert (config.tolerance.atol, config.tolerance.rtol) == (1e-5, 1e-5)
    assert config.input_specs[0].pad_value == 0
    assert (config.frontend.batchSize, config.frontend.maxBatchDelay) == (1, 100)


def test_a_configuration_does_not_change() -> None:
    config = parse_config(SMALL, "a.yaml")

    with pytest.raises(ValueError, match="frozen"):
        config.overflow = "truncate"


def test_a_configuration_made_in_python_is_checked_alike() -> None:
    config = parse_config(FULL, "a.yaml")
    values = {name: getattr(config, name) for name in ServingConfig.model_fields}

    assert ServingConfig(**values) == config
    with pytest.raises(ValueError, match="expected no lengths"):
        ServingConfig(**{**values, "inputs": {"side": config.inputs["side"]}})


EVERYTHING_WRONG = """\
minWorkers: 2
batch_size: 8
maxBatchDelay: 0
responseTimeout: "60"
startupTimeout: 2.0
deviceType: neuron
useVenv:
jobQueueSize: 3000000000
handler: {3: [4], 3: 5}
neuron_lstm:
  model: {args: {hidden: 010}, forward: {ids: 1}}
  inputs:
    ids: {dtype: int46, shape: [batch, tiem], pad_value: .nan}
    x: {shape: [batch, 0]}
    y: {dtype: float32, shape: [batch, time, time]}
    class: {dtype: int8, shape: [batch, time], pad_value: 300}
    ids: 3
  lengths: no
  outputs: [a, a]
  buckets:
    batch: [4, 1]
    lenght: [16, 32.5]
  backend: a/b
  precision: bf16
  tolerance: {atol: 1e-5, rtol: -1}
  overflow: crop
  codec: my_codec
  threads: 0
  yes: 3
"""


EVERYTHING_SAID = """\
model-config.yaml:1: minWorkers: requires maxWorkers as well: TorchServe ignores the one without the other
model-config.yaml:2: batch_size: is not a key of TorchServe or of the plug-in: did you mean batchSize?
model-config.yaml:3: maxBatchDelay: expected 1 or more, got 0: TorchServe takes 0 as not given and waits 100 ms
model-config.yaml:4: responseTimeout: expected a whole number, got the text '60'; TorchServe would ignore it without \
an error (without the quotes it is no text)
model-config.yaml:5: startupTimeout: expected a whole number, got 2.0; TorchServe would ignore it without an error
model-config.yaml:6: deviceType: expected 'cpu' or 'gpu', got the text 'neuron'; TorchServe would ignore it without an \
error
model-config.yaml:7: useVenv: expected true or false, got nothing; TorchServe would ignore it without an error
model-config.yaml:8: jobQueueSize: expected 2147483647 or less, got 3000000000; TorchServe would ignore it without an \
error
model-config.yaml:11: neuron_lstm.model.args.hidden: expected a decimal number, got 010, which YAML reads in base 8 \
or 60
model-config.yaml:11: neuron_lstm.model.forward.ids: expected a constant argument, but inputs, lengths or mask give it \
per request
model-config.yaml:13: neuron_lstm.inputs.ids.dtype: expected 'float32', 'float64', 'float16', 'bfloat16', 'int64', \
'int32', 'int16', 'int8', 'uint8' or 'bool', got the text 'int46'
model-config.yaml:13: neuron_lstm.inputs.ids.pad_value: expected a finite number, got nan
model-config.yaml:13: neuron_lstm.inputs.ids.shape[1]: expected batch, time or a size of 1 or more, got the text \
'tiem': did you mean time?
model-config.yaml:14: neuron_lstm.inputs.x.dtype: is missing: The element type that forward() expects, as in int64 \
for ids or float32 for features.
model-config.yaml:14: neuron_lstm.inputs.x.shape[1]: expected batch, time or a size of 1 or more, got 0
model-config.yaml:15: neuron_lstm.inputs.y.shape: expected time once at most, got it 2 times
model-config.yaml:16: neuron_lstm.inputs.class: expected the name of a Python argument, got the text 'class'
model-config.yaml:16: neuron_lstm.inputs.class.pad_value: expected a whole number from -128 to 127 for int8, got 300
model-config.yaml:17: neuron_lstm.inputs.ids: is given twice, first on line 13: expected each key once
model-config.yaml:18: neuron_lstm.lengths: expected text, got false (YAML reads no as a boolean: quote it if a text \
is meant)
model-config.yaml:19: neuron_lstm.outputs: expected different names, got a 2 times
model-config.yaml:21: neuron_lstm.buckets.batch: expected ascending sizes, each once, got [4, 1]: write [1, 4]
model-config.yaml:22: neuron_lstm.buckets.lenght: is not a key here: did you mean length?
model-config.yaml:23: neuron_lstm.backend: expected auto or the name of a backend, as in onnxruntime, got the text \
'a/b'
model-config.yaml:24: neuron_lstm.precision: expected 'float32', 'bfloat16', 'float16' or 'int8', got the text 'bf16'
model-config.yaml:25: neuron_lstm.tolerance.atol: expected a number, got the text '1e-5' (YAML takes 1e-5 for text: \
write 1.0e-5)
model-config.yaml:25: neuron_lstm.tolerance.rtol: expected 0 or more, got -1
model-config.yaml:26: neuron_lstm.overflow: expected 'reject' or 'truncate', got the text 'crop'
model-config.yaml:27: neuron_lstm.codec: expected module:Class, as in my_codec:TextCodec, got the text 'my_codec'
model-config.yaml:28: neuron_lstm.threads: expected 1 or more, got 0
model-config.yaml:29: neuron_lstm.yes: expected a text as key, but YAML reads 'yes' as true or false: put it in quotes
"""


def test_every_problem_is_reported_at_once_with_its_line() -> None:
    assert complaints(EVERYTHING_WRONG) == EVERYTHING_SAID.rstrip("\n")


def test_problems_are_there_as_values() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(small_block(threads="0"), "a.yaml")

    assert refused.value.diagnostics == (Diagnostic("neuron_lstm.threads", 4, "expected 1 or more, got 0"),)
    assert refused.value.source == "a.yaml"


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model-config.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + FULL.encode())
    assert load_config(path) == parse_config(FULL, "x")

    path.write_bytes(b"# caf\xc3\xa9\n# caf\xe9\n" + SMALL.encode())
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert str(refused.value) == f"{path}:2: expected UTF-8 text, got the byte 0xe9: save the file as UTF-8"


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / name)


def test_the_name_of_a_histogram_cannot_break_a_message() -> None:
    buckets = '{batch: [1], length: {auto: 2, histogram: "a\\nb"}}'
    (line,) = complaints(small_block(buckets=buckets)).splitlines()
    assert "'a\\nb': cannot be read" in line


def test_an_empty_block_of_an_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model-config.yaml"
    path.write_text("batchSize: 1\nneuron_lstm:\n")

    with pytest.raises(ConfigError) as refused:
        load_block(path)

    assert str(refused.value) == f"{path}:2: neuron_lstm: expected a mapping of keys, got nothing"
