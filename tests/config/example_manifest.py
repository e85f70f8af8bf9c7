"""A manifest, the bytes of its `variants.json`, and the message for a wrong one."""

from pathlib import Path

import pytest

from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, CarriedValue, TensorSpec
from torchserve_neuron_lstm.config import manifest
from torchserve_neuron_lstm.config.manifest import Manifest, MeasuredCost, MeasuredError, Variant, read_manifest

EXAMPLE = Manifest(
    backend="inductor",
    requires=(manifest.RequiredPackage("torch", "torch", "2.13.0"),),
    host={"machine": "x86_64", "isa": "avx512"},
    inputs=(TensorSpec("ids", "int64", ("batch", "time"), 0, 256),),
    takes_lengths=True,
    outputs=(TensorSpec("logits", "float32", ("batch", "time", 9)),),
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
    produced_by={"torch": "2.13.0", "torchserve-neuron-lstm": "0.1.0"},
)


GOLDEN = Path(__file__).with_name("variants.json").read_text(encoding="utf-8")
"""The text of the example, as it is written."""


def refusal(directory: Path, text: str) -> str:
    (directory / "variants.json").write_text(text)
    with pytest.raises(RuntimeError) as refused:
        read_manifest(directory)
    assert isinstance(refused.value, manifest.ManifestError)
    return str(refused.value)
