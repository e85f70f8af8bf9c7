import shutil
from pathlib import Path

import pytest
from tiny_archive import make_archive

from .small_archive import write_small


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archive(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def archive(pristine: Path, tmp_path: Path) -> Path:
    compiled = shutil.ignore_patterns("__pycache__")  # by another test that loaded it
    return Path(shutil.copytree(pristine, tmp_path / "archive", ignore=compiled))


@pytest.fixture(scope="session")
def pristine_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("small") / "archive")


@pytest.fixture
def small_archive(pristine_small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine_small, tmp_path / "archive"))
