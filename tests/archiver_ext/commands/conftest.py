"""Archives of one model on a real engine, made by the standard command once in a test process."""

from pathlib import Path

import pytest
from archiving import archived, write_source
from served_models import TAGGER

_BLOCK = """
inputs:
  ids: {dtype: int64, shape: [batch, time]}
  frames: {dtype: float32, shape: [batch, time, 3]}
lengths: lengths
outputs: [tags, label]
buckets: {batch: [1, 2], length: [4]}
"""


@pytest.fixture(scope="session")
def native_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .mar whose engine stops each row at its own end."""
    return _packaged(tmp_path_factory, "native", "backend: native\n")


@pytest.fixture(scope="session")
def divided_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = "backend: onnxruntime\npartitioner_config: {ops_to_partition: ['aten::linear']}\n"
    return _packaged(tmp_path_factory, "divided", keys)


def _packaged(folders: pytest.TempPathFactory, name: str, keys: str) -> Path:
    place = folders.mktemp(name)
    archived(write_source(place / "source", TAGGER, _BLOCK + keys), name, place)
    return place / f"{name}.mar"
