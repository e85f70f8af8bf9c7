import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, CarriedValue, ProgramRole, TensorSpec
from torchserve_neuron_lstm.config import manifest as manifest_file
from torchserve_neuron_lstm.config.manifest import Manifest, ManifestError, MeasuredCost, Variant, read_manifest
from torchserve_neuron_lstm.config.manifest_writer import write_manifest

from .example_manifest import EXAMPLE, GOLDEN, refusal


def test_the_bytes_are_these_in_any_order_of_mappings(tmp_path: Path) -> None:
    """The format does not change by accident."""
    shuffled: dict[str, Any] = {
        name: dict(reversed(getattr(EXAMPLE, name).items())) for name in ("host", "produced_by")
    }
    for example in (EXAMPLE, replace(EXAMPLE, **shuffled)):
        write_manifest(example, tmp_path)
        assert (tmp_path / "variants.json").read_bytes() == GOLDEN.encode()


def test_the_spread_of_the_costs_is_written_after_the_costs(tmp_path: Path) -> None:
    marked = replace(EXAMPLE, measurement=manifest_file.CostMeasurement(2, 1.5))
    write_manifest(marked, tmp_path)
    written = json.loads((tmp_path / "variants.json").read_text())

    assert written["measurement"] == {"threads": 2, "spread": 1.5, "device": None}
    assert list(written)[list(written).index("padding_costs") + 1] == "measurement"
    assert read_manifest(tmp_path) == marked
    wrong = GOLDEN.replace('"measurement": null', '"measurement": {"threads": 0, "spread": 1.0, "device": null}')
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
    pad_value=st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(-1e18, 1e18)),
    vocabulary=st.none() | st.integers(1, 10**6),
)


some_specs = st.lists(specs, min_size=1, max_size=3, unique_by=lambda spec: spec.name)
references = st.builds("{}:{}".format, names, names)
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
        inputs=tuple(draw(some_specs)),
        outputs=tuple(draw(some_specs)),
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
        checks=tuple(manifest_file.MeasuredError(bucket, draw(amounts)) for bucket in grid.buckets),
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
        measurement=draw(st.none() | st.builds(manifest_file.CostMeasurement, st.integers(1, 64), st.floats(1, 1e3))),
        host=draw(st.dictionaries(names, names, max_size=3)),
        codec=draw(st.none() | references),
        kernel=draw(st.none() | references) if (kind, shapes) == ("sequence", "grid") else None,
        placement=draw(st.none() | st.just("cores")),
        threads=draw(st.none() | st.integers(1, 64)),
        tolerance=manifest_file.ErrorTolerance(draw(amounts), draw(amounts)),
    )


@given(manifest=manifests())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_back(tmp_path: Path, manifest: Manifest) -> None:
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
        ({"host": {"isa": object()}}, "the manifest cannot be written: Object of type object is not JSON serializable"),
        ({"kind": "sequence"}, "variants: expected a sequence program for 1 x 16, got [Bucket("),
        ({"costs": (MeasuredCost("chunk", Bucket(1, 16), float("inf")),)}, "the manifest cannot be written"),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError) as refused:
        write_manifest(replace(EXAMPLE, **wrong), tmp_path)

    assert said in str(refused.value)
    assert not (tmp_path / "variants.json").exists()


def test_only_the_standard_library_is_imported() -> None:
    """The file is copied into archives, which are served without pydantic and yaml."""
    check = (
        "import sys; import torchserve_neuron_lstm.config.manifest; "
        "print([name for name in ('pydantic', 'yaml', 'torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
