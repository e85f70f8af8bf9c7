"""The manifest of a streaming model without its programs, for tests that only read it."""

import json
from pathlib import Path
from typing import Any

from fake_model import GRID, make_manifest

from torchserve_neuron_lstm.bucketing.shapes import CarriedValue, TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest, MeasuredCost, MeasuredError, Variant
from torchserve_neuron_lstm.config.manifest_writer import write_manifest
from torchserve_neuron_lstm.sessions.settings import SessionSettings

CARRIED = (CarriedValue(TensorSpec("lstm.h", "float32", ("batch", 1, 2)), 0.0),)


def streaming_manifest(streaming: SessionSettings | None, **facts: object) -> Manifest:
    """The manifest of a chunked model with an answer for each timestep. Each call takes 1 ms."""
    given: dict[str, Any] = {
        "kind": "chunk",
        "carried": CARRIED,
        "variants": tuple(Variant("chunk", bucket, "programs/fake") for bucket in GRID.buckets),
        "checks": tuple(MeasuredError(bucket, 0.0) for bucket in GRID.buckets),
        "costs": tuple(MeasuredCost("chunk", bucket, 1.0) for bucket in GRID.buckets),
        "streaming": streaming,
    }
    return make_manifest(**(given | facts))


def write_streaming_archive(folder: Path, manifest: Manifest) -> Path:
    """Write both manifests to a new folder, as `--archive-format no-archive` does."""
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": {"modelName": "tiny"}}))
    write_manifest(manifest, folder)
    return folder
