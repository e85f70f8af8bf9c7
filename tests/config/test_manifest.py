"""variants.json: its bytes, reading it back, and refusals on loading."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, CarriedValue, ProgramRole, TensorSpec
from torchserve_neuron_lstm.config.manifest import (
    CostMeasurement,
    ErrorTolerance,
    Manifest,
    ManifestError,
    MeasuredCost,
    MeasuredError,
    RequiredPackage,
    Variant,
    digest_files,
    manifest_text,
    parse_manifest,
    read_manifest,
    verify_files,
    write_manifest,
)

EXAMPLE = Manifest(
    backend="inductor",
    requires=(RequiredPackage("torch", "torch", "2.13.0"),),
    host={"machine": "x86_64", "isa": "avx512"},
    inputs=(TensorSpec("ids", "int64", ("batch", "time"), 0, 256),),
    takes_lengths=True,
    outputs=(TensorSpec("logits", "float32", ("batch", "time", 9)),),
    padding="masked",
    padding_reason="the model takes lengths",
    overflow="reject",
    kind="chunk",
    kind_reason="each chunk of time passes lstm.h, amax to the next",
    carried=(
        CarriedValue(TensorSpec("lstm.h", "float32", ("batch", 1, 7)), 0.0),
        CarriedValue(TensorSpec("amax", "float32", ("batch", 7)), float("-inf")),
    ),
    grid=BucketGrid((1, 4), (16,)),
    shapes="grid",
    longest=40,
    variants=(
        Variant("chunk", Bucket(1, 16), "programs/inductor/chunk/b1_t16"),
        Variant("chunk", Bucket(4, 16), "programs/inductor/chunk/b4_t16", 6.5),
    ),
    checks=(MeasuredError(Bucket(1, 16), 1e-07), MeasuredError(Bucket(4, 16), 0.0)),
    costs=(MeasuredCost("chunk", Bucket(1, 16), 0.5), MeasuredCost("chunk", Bucket(4, 16), 1.25)),
    weights="weights.pt",
    constants=None,
    codec="my_codec:TextCodec",
    threads=None,
    files={"weights.pt": "ab", "model.py": "cd"},
    produced_by={"torch": "2.13.0", "torchserve-neuron-lstm": "0.1.0"},
)

GOLDEN = """\
{
  "format": 5,
  "backend": "inductor",
  "requires": [
    {
      "distribution": "torch",
      "module": "torch",
      "version": "2.13.0"
    }
  ],
  "host": {
    "isa": "avx512",
    "machine": "x86_64"
  },
  "inputs": [
    {
      "name": "ids",
      "dtype": "int64",
      "shape": [
        "batch",
        "time"
      ],
      "pad_value": 0,
      "vocabulary": 256
    }
  ],
  "takes_lengths": true,
  "outputs": [
    {
      "name": "logits",
      "dtype": "float32",
      "shape": [
        "batch",
        "time",
        9
      ],
      "pad_value": 0,
      "vocabulary": null
    }
  ],
  "padding": "masked",
  "padding_reason": "the model takes lengths",
  "overflow": "reject",
  "kind": "chunk",
  "kind_reason": "each chunk of time passes lstm.h, amax to the next",
  "carried": [
    {
      "spec": {
        "name": "lstm.h",
        "dtype": "float32",
        "shape": [
          "batch",
          1,
          7
        ],
        "pad_value": 0,
        "vocabulary": null
      },
      "fill": 0.0
    },
    {
      "spec": {
        "name": "amax",
        "dtype": "float32",
        "shape": [
          "batch",
          7
        ],
        "pad_value": 0,
        "vocabulary": null
      },
      "fill": "-inf"
    }
  ],
  "grid": {
    "batches": [
      1,
      4
    ],
    "lengths": [
      16
    ]
  },
  "shapes": "grid",
  "longest": 40,
  "variants": [
    {
      "part": "chunk",
      "bucket": {
        "batch": 1,
        "length": 16
      },
      "directory": "programs/inductor/chunk/b1_t16",
      "estimate_us": null
    },
    {
      "part": "chunk",
      "bucket": {
        "batch": 4,
        "length": 16
      },
      "directory": "programs/inductor/chunk/b4_t16",
      "estimate_us": 6.5
    }
  ],
  "checks": [
    {
      "bucket": {
        "batch": 1,
        "length": 16
      },
      "max_error": 1e-07
    },
    {
      "bucket": {
        "batch": 4,
        "length": 16
      },
      "max_error": 0.0
    }
  ],
  "costs": [
    {
      "part": "chunk",
      "bucket": {
        "batch": 1,
        "length": 16
      },
      "milliseconds": 0.5
    },
    {
      "part": "chunk",
      "bucket": {
        "batch": 4,
        "length": 16
      },
      "milliseconds": 1.25
    }
  ],
  "padding_costs": [],
  "weights": "weights.pt",
  "constants": null,
  "codec": "my_codec:TextCodec",
  "kernel": null,
  "placement": null,
  "threads": null,
  "streaming": null,
  "precision": "float32",
  "tolerance": {
    "atol": 1e-05,
    "rtol": 1e-05
  },
  "produced_by": {
    "torch": "2.13.0",
    "torchserve-neuron-lstm": "0.1.0"
  },
  "files": {
    "model.py": "cd",
    "weights.pt": "ab"
  }
}
"""


def refusal(directory: Path, text: str) -> str:
    """The message for a manifest with this text."""
    (directory / "variants.json").write_text(text)
    with pytest.raises(RuntimeError) as refused:
        read_manifest(directory)
    assert isinstance(refused.value, ManifestError)
    return str(refused.value)


def test_the_bytes_are_these(tmp_path: Path) -> None:
    """The format does not change by accident."""
    write_manifest(EXAMPLE, tmp_path)

    assert (tmp_path / "variants.json").read_bytes() == GOLDEN.encode()


def test_the_order_of_mappings_does_not_change_the_bytes(tmp_path: Path) -> None:
    """Equal manifests give equal bytes."""
    shuffled: dict[str, Any] = {
        name: dict(reversed(getattr(EXAMPLE, name).items())) for name in ("host", "files", "produced_by")
    }
    write_manifest(replace(EXAMPLE, **shuffled), tmp_path)

    assert (tmp_path / "variants.json").read_bytes() == GOLDEN.encode()


def test_a_manifest_without_a_measurement_is_one_of_an_earlier_release(tmp_path: Path) -> None:
    """Nothing is known of its costs but that they were measured."""
    (tmp_path / "variants.json").write_text(GOLDEN)

    assert read_manifest(tmp_path).measurement is None


def test_doubts_of_the_costs_are_written_after_the_costs(tmp_path: Path) -> None:
    """With the reasons, and the number of threads."""
    marked = replace(EXAMPLE, measurement=CostMeasurement(2, ("the machine was busy",)))
    write_manifest(marked, tmp_path)
    written = json.loads((tmp_path / "variants.json").read_text())

    assert written["measurement"] == {"threads": 2, "doubts": ["the machine was busy"]}
    assert list(written)[list(written).index("padding_costs") + 1] == "measurement"
    assert read_manifest(tmp_path) == marked
    wrong = GOLDEN.replace('"padding_costs": []', '"padding_costs": [], "measurement": {"threads": 0, "doubts": []}')
    assert "measurement.threads: expected a positive number, got 0" in refusal(tmp_path, wrong)


names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)
amounts = st.floats(min_value=0, max_value=1e9)
endless = float("inf")
fills = (
    st.none()
    | st.sampled_from((0.0, 1, -0.5, endless, -endless, -(2**63), 2**63 - 1))
    | st.floats(allow_nan=False, allow_infinity=False)
)
sizes = st.lists(st.integers(1, 4096), min_size=1, max_size=4, unique=True).map(lambda found: tuple(sorted(found)))
specs = st.builds(
    TensorSpec,
    name=names,
    dtype=st.sampled_from(["float32", "int64", "bool"]),
    shape=st.sampled_from(
        [(), ("batch",), ("time", "batch", 3), ("batch", "time"), (7, "time"), ("batch", "time", "time")]
    ),
    pad_value=st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)),
    vocabulary=st.none() | st.integers(1, 10**6),
)


carried = st.builds(
    CarriedValue,
    spec=st.builds(
        TensorSpec,
        name=names,
        dtype=st.sampled_from(["float32", "int64", "bool"]),
        shape=st.sampled_from([("batch",), ("batch", 2, 3), ("batch", 1, 8)]),
    ),
    fill=fills,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests as packaging could write them: of both kinds, for engines of fixed shapes and of any."""
    grid = BucketGrid(draw(sizes), draw(sizes))
    kind: Literal["sequence", "chunk"] = draw(st.sampled_from(("sequence", "chunk")))
    shapes: Literal["grid", "any"] = draw(st.sampled_from(("grid", "any")))
    parts: tuple[ProgramRole, ...] = ("sequence",) if kind == "sequence" else ("start", "chunk", "head")
    ends = tuple(Bucket(batch, 1) for batch in grid.batches)
    where = {part: ends if part in ("start", "head") else grid.buckets for part in parts}
    shapeless = shapes == "any" or draw(st.booleans())
    return replace(
        EXAMPLE,
        inputs=tuple(draw(st.lists(specs, max_size=3))),
        outputs=tuple(draw(st.lists(specs, max_size=3))),
        kind=kind,
        kind_reason=draw(names),
        carried=tuple(draw(st.lists(carried, max_size=3))) if kind == "chunk" else (),
        grid=grid,
        shapes=shapes,
        longest=draw(st.integers(1, 10**6)),
        variants=tuple(
            Variant(part, bucket, f"programs/{draw(names)}", draw(st.none() | amounts))
            for part in parts
            for bucket in ([None] if shapeless else where[part])
        ),
        checks=tuple(MeasuredError(bucket, draw(amounts)) for bucket in grid.buckets),
        costs=tuple(
            MeasuredCost(part, bucket, draw(st.floats(1e-6, 1e6)))
            for part in parts
            for bucket in draw(st.permutations(ends))
        ),
        padding_costs=tuple(
            MeasuredCost("sequence", bucket, draw(st.floats(1e-6, 1e6))) for bucket in draw(st.permutations(ends))
        )
        if (kind, shapes) == ("sequence", "any") and draw(st.booleans())
        else (),
        measurement=draw(st.none() | st.builds(CostMeasurement, st.integers(1, 64), st.lists(names).map(tuple))),
        host=draw(st.dictionaries(names, names, max_size=3)),
        files=draw(st.dictionaries(names, names, max_size=3)),
        codec=draw(st.none() | names),
        kernel=draw(st.none() | names) if (kind, shapes) == ("sequence", "grid") else None,
        placement=draw(st.none() | st.just("cores")),
        threads=draw(st.none() | st.integers(1, 64)),
        tolerance=ErrorTolerance(draw(amounts), draw(amounts)),
    )


@given(manifest=manifests())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_back(tmp_path: Path, manifest: Manifest) -> None:
    """read_manifest is the inverse of write_manifest."""
    write_manifest(manifest, tmp_path)
    found = read_manifest(tmp_path)

    assert found == manifest
    # A whole number stays one: 2**63 - 1 is no float.
    assert [type(value.fill) for value in found.carried] == [type(value.fill) for value in manifest.carried]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tolerance": (float("nan"), 0.0)}, "the manifest cannot be written: Out of range float values"),
        ({"weights": "../weights.pt"}, "weights: expected a path below the archive's root, got '../weights.pt'"),
        (
            {"kernel": "my_kernel:choose"},
            "kernel: expected none except for whole sequences in the grid's buckets, got 'my_k",
        ),
        ({"host": {"isa": 3}}, "host.isa: expected a string, got 3"),
        ({"host": {"isa": object()}}, "the manifest cannot be written: Object of type object is not JSON serializable"),
        ({"variants": EXAMPLE.variants * 2}, "variants: expected each bucket of a part once, got ['chunk', Bucket("),
        ({"variants": ()}, "variants: expected a chunk program for 1 x 16, got []"),
        ({"kind": "sequence"}, "variants: expected a sequence program for 1 x 16, got [Bucket("),
        ({"shapes": "any"}, "variants: expected a chunk program for every shape, got [Bucket("),
        (
            {"carried": (CarriedValue(EXAMPLE.carried[0].spec, float("nan")),)},
            "carried[0].fill: expected a number, got 'nan'",
        ),
        ({"costs": (MeasuredCost("chunk", Bucket(1, 16), float("inf")),)}, "the manifest cannot be written"),
        (
            {"padding_costs": EXAMPLE.costs},
            "padding_costs: expected none except for whole sequences in every shape, got ['chunk']",
        ),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    """Packaging stops, and no file is written."""
    with pytest.raises(ManifestError) as refused:
        write_manifest(replace(EXAMPLE, **wrong), tmp_path)

    assert said in str(refused.value)
    assert not (tmp_path / "variants.json").exists()


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
    """One of the manifest's `padding_costs`."""
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
        ("padding", "some", "padding: expected masked or exact_lengths, got 'some'"),
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
        (
            "variants.0.bucket",
            {"batch": 4, "length": 16},
            "variants: expected each bucket of a part once, got ['chunk',",
        ),
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
        (
            "padding_costs",
            [padding(1)],
            "padding_costs: expected none except for whole sequences in every shape, got [",
        ),
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
        ("files", {"../model.py": "ab"}, "files: expected a path below the archive's root, got '../model.py'"),
        ("files", {"/etc/passwd": "ab"}, "files: expected a path below the archive's root, got '/etc/passwd'"),
        ("files", {"a\0b": "ab"}, "files: expected a path below the archive's root"),
        ("files", {"model.py": 3}, "files.model.py: expected a string, got 3"),
        ("format", "1", "format: expected an integer, got '1'"),
        ("format", ..., "format is missing"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, path: str, value: Any, said: str) -> None:
    """Types, ranges and paths are all checked before the first use."""
    message = refusal(tmp_path, changed(path, value))

    assert message.startswith(f"variants.json: {said}")
    assert message.endswith("package the model again")


def test_numbers_beyond_all_floats_are_refused(tmp_path: Path) -> None:
    """JSON can contain numbers that become an infinity."""
    text = GOLDEN.replace('"milliseconds": 0.5', '"milliseconds": 1e999')

    assert refusal(tmp_path, text).startswith("variants.json: costs[0].milliseconds: expected a finite number, got inf")


@pytest.mark.parametrize("part", ["sequence", "chunk"])
def test_only_programs_for_every_shape_have_padding_costs(part: ProgramRole) -> None:
    """Only programs for whole sequences in every shape have them; other costs would plan wrongly."""
    whole = replace(
        EXAMPLE, kind="sequence", shapes="any", carried=(), variants=(Variant("sequence", None, "programs/any"),)
    )
    known = replace(whole, padding_costs=(MeasuredCost(part, Bucket(4, 16), 0.75),))
    if part == "sequence":
        assert parse_manifest(manifest_text(known)) == known
    else:
        with pytest.raises(ManifestError, match="padding_costs: expected none except for whole sequences"):
            manifest_text(known)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, '{"format": NaN}', '{"format": 1, "format": 1}', GOLDEN[:-3], "1" * 5000, "\ufeff{}"],
)
def test_malformed_json_is_refused(tmp_path: Path, text: str) -> None:
    """Constants and repeated keys, which json accepts, are refused too."""
    assert refusal(tmp_path, text).startswith("variants.json is not JSON (")


def test_a_manifest_that_is_no_object_is_refused(tmp_path: Path) -> None:
    """A list is valid JSON, but no manifest."""
    assert refusal(tmp_path, "[]") == "variants.json: top level: expected an object, got []; package the model again"


def test_another_format_says_which_version_reads_it(tmp_path: Path) -> None:
    """The message has the version that wrote the archive, if the archive has it."""
    assert refusal(tmp_path, GOLDEN.replace('"format": 5', '"format": 1')) == (
        "variants.json has format 1, and this code reads format 5: serve the archive with "
        "torchserve-neuron-lstm 0.1.0, which wrote it, "
        "or package the model again with the version that is installed here"
    )
    assert "with another version of torchserve-neuron-lstm, which" in refusal(tmp_path, '{"format": 7}')


def test_a_missing_or_unreadable_manifest_is_refused(tmp_path: Path) -> None:
    """The message has the path."""
    with pytest.raises(ManifestError, match=r"variants\.json cannot be read"):
        read_manifest(tmp_path)

    (tmp_path / "variants.json").write_bytes(b"\xff")
    with pytest.raises(ManifestError, match=r"variants\.json cannot be read"):
        read_manifest(tmp_path)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An unpacked archive with two files of its own and the manifests."""
    files = {
        "weights.pt": "w",
        "programs/inductor/b1_t16/model.so": "so",
        "MAR-INF/MANIFEST.json": "{}",
        "__pycache__/model.pyc": "x",
        "programs/.hidden/file": "x",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    write_manifest(replace(EXAMPLE, files=digest_files(tmp_path)), tmp_path)
    return tmp_path


def test_digests_are_those_of_the_files_that_are_archived(archive: Path) -> None:
    """The manifests, and files that the archiver leaves out, have no digest."""
    assert digest_files(archive) == {
        "programs/inductor/b1_t16/model.so": "a1d9890884c1b4b960c279cfe7554a900d169422d6cec980beef67761487d3b9",
        "weights.pt": "50e721e49c013f00c62cf59f2163542a9d8df02464efeb615d31051b0fddc326",
    }


def test_an_untouched_archive_is_accepted_with_files_besides(archive: Path) -> None:
    """TorchServe itself puts files into an unpacked archive."""
    (archive / "venv").mkdir()
    (archive / "venv" / "pyvenv.cfg").write_text("home = /usr")

    verify_files(archive, read_manifest(archive))


def remove(path: Path) -> None:
    """Remove a file."""
    path.unlink()


def append(path: Path) -> None:
    """Append bytes to a file."""
    path.write_text(path.read_text() + "!")


def replace_by_folder(path: Path) -> None:
    """Replace a file by a folder."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "said"), [(remove, "is missing"), (append, "was changed"), (replace_by_folder, "is missing")]
)
def test_every_damaged_file_is_named(archive: Path, damage: Callable[[Path], None], said: str) -> None:
    """One RuntimeError names all of them."""
    damage(archive / "weights.pt")
    damage(archive / "programs/inductor/b1_t16/model.so")

    with pytest.raises(RuntimeError) as refused:
        verify_files(archive, read_manifest(archive))
    assert str(refused.value) == (
        f"the archive is not as it was packaged: programs/inductor/b1_t16/model.so {said}, weights.pt {said}; "
        "package the model again"
    )


def test_weights_without_a_digest_are_refused(archive: Path) -> None:
    """A file that is loaded must be listed."""
    with pytest.raises(ManifestError, match=r"weights\.pt has no digest"):
        verify_files(archive, replace(EXAMPLE, files={}))


def test_only_the_standard_library_is_imported() -> None:
    """The file is copied into archives, which are served without pydantic and yaml."""
    check = (
        "import sys; import torchserve_neuron_lstm.config.manifest; "
        "print([name for name in ('pydantic', 'yaml', 'torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
