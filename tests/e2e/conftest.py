"""One TorchServe for most end-to-end tests of a process; the standard command packages every model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from archiving import Source, archived, write_source
from served_models import NATIVE, SCORER, SCORING, TAGGER, TAGGING, scoring
from torchserve_process import TorchServe, serving

HERE = Path(__file__).parent
SEED_MODELS = HERE / "seed_models"

PACKED = """
inputs: {inputs: {dtype: float32, shape: [time, batch, 3]}}
lengths: lengths
outputs: [padded_result, ht, ct]
buckets: {batch: [4], length: [8]}
"""
DECIDING = """
inputs: {frames: {dtype: float32, shape: [batch, time, 3]}}
buckets: {batch: [4], length: [8, 16]}
"""
STREAMING = scoring("{batch: [1, 8], length: [16]}", f"backend: {NATIVE}", "streaming: {store: disk}")
MODELS = {
    "packed_unsorted": (SEED_MODELS / "packed_unsorted" / "model.py", f"{PACKED}backend: {NATIVE}"),
    "tagger": (TAGGER, TAGGING),
    "scorer": (SCORER, SCORING),
    "stream": (SCORER, STREAMING),
    "decider": (HERE / "models" / "decider.py", DECIDING),
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, which start servers.

    They get more time, and stay on one server (`--dist loadgroup`).
    """
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.xdist_group("e2e"))
            if item.path.parent.name == "sessions":  # a server with six models and a Redis cluster
                item.add_marker(pytest.mark.ci)


@dataclass(frozen=True)
class Store:
    """Packaged models: the folder that TorchServe reads, and the sources of each."""

    folder: Path
    sources: dict[str, Source]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return packaged(MODELS, tmp_path_factory)


def packaged(models: Mapping[str, tuple[Path, str]], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Package models: the file and the YAML block of each name."""
    folder = tmp_path_factory.mktemp("store")
    work = tmp_path_factory.mktemp("sources")
    sources = {}
    for name, (file, block) in models.items():
        sources[name] = write_source(work / name, file, block)
        archived(sources[name], name, folder)
    return Store(folder, sources)


@pytest.fixture(scope="session")
def server(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServe]:
    """An unmodified TorchServe that serves them; it also has the paths of health of the Open Inference Protocol."""
    models = {name: f"{name}.mar" for name in store.sources}
    environment = {"NEURON_LSTM_SESSIONS": str(tmp_path_factory.mktemp("sessions"))}
    settings = {"ts_open_inference_protocol": "true"}
    with serving(store.folder, models, settings=settings, environment=environment) as running:
        yield running
