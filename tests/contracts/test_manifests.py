"""`variants.json` of small projects, as read by the serving code in archives and by users' programs."""

from __future__ import annotations

import json

import pytest

from .conftest import Packaged
from .projects import DATA, PROJECTS
from .shapes import golden, keys

LONG = ("divided_onnxruntime", "tagger_inductor", "tagger_neuron", "speech_neuronx", "kernel_openvino")
"""Those whose own part, the engine, has tests elsewhere."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in PROJECTS]
)
def test_a_manifest_is_the_one_that_was_kept(name: str, packaged: Packaged) -> None:
    """Digests, versions, measurements and the wording of reasons may differ."""
    manifest = packaged.manifest(name)
    kept = json.loads((DATA / "manifests" / f"{name}.json").read_text())

    assert golden(manifest) == kept
    assert list(golden(manifest)) == list(kept)
    assert {"torch", "python", "torch-model-archiver", "torchserve-neuron-lstm"} <= set(manifest["produced_by"])
    assert all(len(digest) == 64 for digest in manifest["files"].values())
    if packaged.told(name) is not None:
        assert keys(packaged.told(name)) == json.loads((DATA / "keys.json").read_text())["archive"][name]
