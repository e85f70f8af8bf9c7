"""Archives in every format: their files, their manifest, and their answers."""

import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

from torchserve_neuron_lstm.config.manifest import Manifest, read_manifest
from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive
from torchserve_neuron_lstm.inference.reader import ArchiveReader

Said = tuple[int, str, str]
Replace = Callable[..., Said]


def as_format(archive: Path, suffix: str) -> Path:
    """The same archive in another format, as made by `--archive-format`."""
    with ArchiveReader(archive).unpacked() as folder:
        if suffix == "":
            return Path(shutil.copytree(folder, archive.with_suffix("")))
        if suffix == ".tar.gz":
            named = Path(shutil.copytree(folder, folder.parent / "tiny"))
            return Path(shutil.make_archive("tiny", "gztar", named.parent, named.name)).absolute()
    if suffix == ".stored":
        with zipfile.ZipFile(archive) as old, zipfile.ZipFile("stored.mar", "w", zipfile.ZIP_STORED) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        return Path("stored.mar").absolute()
    return archive


def answers(archive: Path) -> list[tuple[torch.Tensor, ...]]:
    lengths = [4, 1, 3, 2]
    with ArchiveReader(archive).unpacked() as folder:
        variants = load_archive(folder, threads=1)
        requests = [[(torch.arange(length) * 5 + length) % 11] for length in lengths]
        found, _ = variants.run_plan(variants.plan(lengths), requests, lengths)
    return [tuple(tensor.clone() for tensor in answer) for answer in found]


def manifest_of(archive: Path) -> Manifest:
    with ArchiveReader(archive).unpacked() as folder:
        check_folder(str(folder.resolve()), None)
        return read_manifest(folder)


def entries(archive: Path) -> dict[str, object]:
    if archive.is_dir():
        return {
            path.relative_to(archive).as_posix(): path.read_bytes() for path in archive.rglob("*") if path.is_file()
        }
    if archive.suffix == ".mar":
        with zipfile.ZipFile(archive) as file:
            return {entry.filename: (file.read(entry), entry.compress_type) for entry in file.infolist()}
    with tarfile.open(archive) as tar:
        kept = {entry.name.partition("/")[2]: tar.extractfile(entry) for entry in tar if entry.isfile()}
        return {name: file.read() for name, file in kept.items() if file is not None}
