import json
from pathlib import Path
from typing import Any

import pytest

from torchserve_neuron_lstm.config.manifest import ManifestError, read_manifest

from .example_manifest import GOLDEN, refusal


def changed(path: str, value: Any) -> str:
    """The golden text with the value at `a.b.0` replaced, or removed where it is Ellipsis."""
    manifest = json.loads(GOLDEN)
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    inner = manifest
    for part in outer:
        inner = inner[part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(manifest)


def padding(milliseconds: float) -> dict[str, Any]:
    return {"part": "sequence", "bucket": {"batch": 1, "length": 16}, "milliseconds": milliseconds}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("backend", 3, "backend: expected a string, got 3"),
        ("backend", ..., "backend is missing"),
        ("requires.0", ["torch"], "requires[0]: expected an object, got ['torch']"),
        ("requires.0.version", None, "requires[0].version: expected a string, got None"),
        ("inputs", {}, "inputs: expected a list, got {}"),
        ("inputs.0.dtype", "int46", "inputs[0].dtype: expected float32 or float64 or"),
        ("inputs.0.shape", ["batch", "tiem"], "inputs[0].shape[1]: expected an integer or batch or time, got 'tiem'"),
        ("inputs.0.shape", ["batch", "batch"], "inputs[0].shape: expected batch once at most"),
        ("inputs.0.shape", ["batch", True], "inputs[0].shape[1]: expected an integer or batch or time, got True"),
        ("inputs.0.shape", [["batch"]], "inputs[0].shape[0]: expected an integer or batch or time, got ['batch']"),
        ("inputs.0.pad_value", "0", "inputs[0].pad_value: expected a number, got '0'"),
        ("inputs.0.vocabulary", 2.5, "inputs[0].vocabulary: expected an integer, got 2.5"),
        ("inputs.0.vocabulary", ..., "inputs[0].vocabulary is missing"),
        ("takes_lengths", 1, "takes_lengths: expected true or false, got 1"),
        ("overflow", "crop", "overflow: expected reject or truncate, got 'crop'"),
        ("grid.batches", [4, 1], "grid.batches: expected ascending sizes, each once, got [4, 1]: write [1, 4]"),
        ("grid.lengths", ["16"], "grid.lengths[0]: expected an integer, got '16'"),
        ("kind", "pieces", "kind: expected sequence or chunk, got 'pieces'"),
        ("kind_reason", ..., "kind_reason is missing"),
        ("carried", {}, "carried: expected a list, got {}"),
        ("carried.0.fill", ..., "carried[0].fill is missing"),
        ("carried.0.fill", "zero", "carried[0].fill: expected a number, got 'zero'"),
        ("carried.0.fill", "nan", "carried[0].fill: expected a number, got 'nan'"),
        ("carried.0.fill", True, "carried[0].fill: expected a number, got True"),
        ("carried.0.spec", "h", "carried[0].spec: expected an object, got 'h'"),
        ("carried.0.spec.dtype", "float", "carried[0].spec.dtype: expected float32 or"),
        ("carried.0.spec.shape", [1, 7], "carried[0].spec.shape: expected batch, then sizes, got [1, 7]"),
        ("carried.0.spec.shape", ["batch", "time"], "carried[0].spec.shape: expected batch, then sizes"),
        ("shapes", "every", "shapes: expected grid or any, got 'every'"),
        ("shapes", "any", "variants: expected a chunk program for every shape, got [Bucket("),
        ("longest", 0, "longest: expected a positive number, got 0"),
        ("longest", 16.0, "longest: expected an integer, got 16.0"),
        ("variants.0.part", "piece", "variants[0].part: expected sequence or start or chunk or head, got 'piece'"),
        ("variants.0.part", ..., "variants[0].part is missing"),
        ("variants.0.bucket", ..., "variants[0].bucket is missing"),
        ("variants.0.bucket", {"batch": 4, "length": 16}, "variants: expected each bucket of a part once, got ['chunk"),
        ("variants.0.bucket", {"batch": 0, "length": 16}, "variants[0].bucket: expected positive sizes, got "),
        ("variants.0.bucket", {"batch": 1, "length": 8}, "variants: expected a chunk program for 1 x 16, got ["),
        ("variants", [], "variants: expected a chunk program for 1 x 16, got []"),
        ("carried.0.fill", None, "variants: expected a start program for 1 x 1, got ["),
        ("outputs.0.shape", ["batch", 9], "variants: expected a head program for 1 x 1, got ["),
        ("checks.0.max_error", None, "checks[0].max_error: expected a number, got None"),
        ("checks.0.bucket", None, "checks[0].bucket: expected an object, got None"),
        ("costs", ..., "costs is missing"),
        ("costs.0.part", "all", "costs[0].part: expected sequence or start or chunk or head, got 'all'"),
        ("costs.0.milliseconds", 0, "costs[0].milliseconds: expected a positive number, got 0"),
        ("costs.0.milliseconds", -1.5, "costs[0].milliseconds: expected a positive number, got -1.5"),
        ("costs.1.bucket.length", -16, "costs[1].bucket: expected positive sizes, got "),
        ("padding_costs", ..., "padding_costs is missing"),
        ("padding_costs", {}, "padding_costs: expected a list, got {}"),
        ("padding_costs", [3], "padding_costs[0]: expected an object, got 3"),
        ("padding_costs", [{"part": "sequence"}], "padding_costs[0].bucket is missing"),
        ("padding_costs", [padding(0)], "padding_costs[0].milliseconds: expected a positive number, got 0"),
        ("padding_costs", [padding(1), padding(-1)], "padding_costs[1].milliseconds: expected a positive number"),
        ("padding_costs", [padding(1)], "padding_costs: expected none except for whole sequences in every shape, got"),
        ("variants.0.bucket.batch", True, "variants[0].bucket.batch: expected an integer, got True"),
        ("variants.0.directory", "/etc", "variants[0].directory: expected a path below the archive's root, got '/etc'"),
        ("variants.0.directory", "a/../../b", "variants[0].directory: expected a path below the archive's root"),
        ("weights", "C:\\weights.pt", "weights: expected a path below the archive's root"),
        ("weights", "", "weights: expected a path below the archive's root, got ''"),
        ("constants", "./constants.pt", "constants: expected a path below the archive's root"),
        ("tolerance.atol", False, "tolerance.atol: expected a number, got False"),
        ("placement", "sockets", "placement: expected cores, got 'sockets'"),
        ("variants.0.estimate_us", "fast", "variants[0].estimate_us: expected a number, got 'fast'"),
        ("threads", "4", "threads: expected an integer, got '4'"),
        ("format", "1", "format: expected an integer, got '1'"),
        ("format", ..., "format is missing"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, path: str, value: Any, said: str) -> None:
    message = refusal(tmp_path, changed(path, value))

    assert message.startswith(f"variants.json: {said}")
    assert message.endswith("package the model again")


def test_numbers_beyond_all_floats_are_refused(tmp_path: Path) -> None:
    """JSON can contain numbers that become an infinity."""
    text = GOLDEN.replace('"milliseconds": 0.5', '"milliseconds": 1e999')

    assert refusal(tmp_path, text).startswith("variants.json: costs[0].milliseconds: expected a finite number, got inf")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, '{"format": NaN}', '{"format": 1, "format": 1}', GOLDEN[:-3], "1" * 5000, "\ufeff{}"],
)
def test_malformed_json_is_refused(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path, text).startswith("variants.json is not JSON (")


def test_another_format_says_which_version_reads_it(tmp_path: Path) -> None:
    assert refusal(tmp_path, GOLDEN.replace('"format": 1', '"format": 2')) == (
        "variants.json has format 2, and this code reads format 1: serve the archive with "
        "torchserve-neuron-lstm 0.1.0, which wrote it, "
        "or package the model again with the version that is installed here"
    )
    assert "with another version of torchserve-neuron-lstm, which" in refusal(tmp_path, '{"format": 7}')


def test_what_is_no_manifest_at_all_is_refused(tmp_path: Path) -> None:
    for content in (None, b"\xff"):
        if content is not None:
            (tmp_path / "variants.json").write_bytes(content)
        with pytest.raises(ManifestError, match=r"variants\.json cannot be read"):
            read_manifest(tmp_path)
    assert refusal(tmp_path, "[]") == "variants.json: top level: expected an object, got []; package the model again"
