"""Archives of one model on a real engine, made by the standard command once in a test process."""

from pathlib import Path

import pytest
from archiving import archived, write_source
from served_models import TAGGER, tagging


@pytest.fixture(scope="session")
def native_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .mar whose engine stops each row at its own end."""
    return _packaged(tmp_path_factory, "native", "backend: native")


@pytest.fixture(scope="session")
def divided_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    division = "partitioner_config: {ops_to_partition: ['aten::linear']}"
    return _packaged(tmp_path_factory, "divided", "backend: onnxruntime", division)


def _packaged(folders: pytest.TempPathFactory, name: str, *keys: str) -> Path:
    place = folders.mktemp(name)
    block = tagging("{batch: [1, 2], length: [4]}", *keys)
    archived(write_source(place / "source", TAGGER, block), name, place)
    return place / f"{name}.mar"
