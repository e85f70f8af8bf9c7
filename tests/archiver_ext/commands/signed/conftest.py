"""An archive in three forms, signed and not, and the command that verifies it."""

import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from signing_keys import write_key
from tiny_archive import make_archive

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.archiver_ext.cli import main

Said = tuple[int, str, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("signed")
    folder = make_archive(place / "tiny")
    shutil.rmtree(folder / "torchserve_neuron_lstm" / "lowering")
    write_list(folder)
    pack(folder, place / "tiny.mar")
    with tarfile.open(place / "tiny.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.add(folder, "tiny")
    write_key(place / "own.pem")
    write_key(place / "other.pem")
    for name in ("tiny", "tiny.mar"):
        assert (
            main(["sign", str(place / name), "--key", str(place / "own.pem"), "-o", str(place / f"signed-{name}")]) == 0
        )
    return place


def pack(folder: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(folder))


@pytest.fixture
def verify(made: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(*archives: Path, keys: Path | None = None) -> Said:
        words = ["verify", "--trusted-keys", str(keys or made / "own.pub"), *map(str, archives)]
        capfd.readouterr()
        return main(words), *capfd.readouterr()

    return run
