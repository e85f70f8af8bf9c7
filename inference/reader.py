"""Reader of archives: a .mar, a .tar.gz or a folder, as one file or as files on disk."""

from __future__ import annotations

import errno
import gzip
import json
import lzma
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage
from typing import Literal, NoReturn

from ..config.manifest import FILE_NAME, Manifest, ManifestError, parse_manifest
from ..handlers.neuron_lstm import LIST, TRUSTED_KEYS, check_folder
from .errors import ArchiveError, NamelessArchiveError
from .private_directory import private_directory

DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    struct.error,
    ValueError,
    RuntimeError,  # an unknown compression method, or a password
)
"""Errors of reading a damaged file."""
STOCK_MANIFEST = "MAR-INF/MANIFEST.json"
"""The manifest that torch-model-archiver writes."""
_MOST_BYTES = 1 << 24
"""The largest file that is read into memory: far more than a manifest or a list has, and less than a zip bomb."""
_MOST_FACTS = 1 << 13
"""Bytes of the name and other facts of a file in a .tar.gz."""
_DEEPEST = 100
"""Folders within one another: Python makes and deletes each in a call of its own."""
_SHOWN = 100
"""Characters of a member's name in a message."""
_COMPRESSED: Literal["r:gz"] = "r:gz"
"""The compression of a .tar.gz alone: 160 KB of others can hold 100 GB."""
_REASONS = {
    errno.EINVAL: "it names a place before its start",
    **dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ENOTDIR), "a file and a folder have the same name"),
}


class ArchiveReader:
    """One archive that was packaged with the handler neuron_lstm.

    Every method raises an ArchiveError for an archive that is damaged or was packaged with another handler.

    Raises `ArchiveError`: there is no such archive.
    """

    def __init__(self, path: Path) -> None:
        if not (path.is_file() or path.is_dir()):  # a pipe would have to be read twice
            raise ArchiveError(f"there is no archive {path}")
        self.path = path

    def manifest_json(self) -> str:
        """Read the text of variants.json, which is a JSON object of any format version.

        Raises `ArchiveError`: there is none, or it is damaged.
        """
        try:
            content = self._read(FILE_NAME)
        except KeyError as error:
            raise self._other_handler() from error
        try:
            text = content.decode("utf-8")
            is_object = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError) as error:
            raise ArchiveError(f"{self.path} is damaged: {FILE_NAME} is not JSON ({error})") from error
        if not is_object or re.search("[\x7f-\x9f]", text):  # a terminal would obey them, and JSON has no others
            raise ArchiveError(f"{self.path} is damaged: {FILE_NAME} is not a JSON object, or has control characters")
        return text

    def manifest(self) -> Manifest:
        """Read and check variants.json.

        Raises `ArchiveError`: it is missing or damaged, or of a version that cannot be read.
        """
        try:
            return parse_manifest(self.manifest_json())
        except ManifestError as error:
            raise ArchiveError(f"{self.path}: {error}") from error

    def model_name(self) -> str:
        """Read the archive's model name, under which TorchServe serves it unless it is given another.

        Raises `NamelessArchiveError`: the archive does not say it.
        Raises `ArchiveError`: it cannot be read.
        """
        try:
            name = str(self._model_entry("modelName"))
        except ValueError as error:
            raise NamelessArchiveError(f"{self.path} is damaged: {STOCK_MANIFEST} is not JSON ({error})") from error
        except (KeyError, TypeError) as error:
            raise NamelessArchiveError(f"{self.path} does not say what its model is called") from error
        if not name.isprintable():  # a terminal would obey it
            raise NamelessArchiveError(f"{self.path} is damaged: the model's name has control characters")
        return name

    def model_version(self) -> str:
        """Read the archive's version, "" if it has none."""
        try:
            version = self._model_entry("modelVersion")
        except (ValueError, KeyError, TypeError):
            return ""
        return version if isinstance(version, str) and version.isprintable() else ""

    def config_text(self) -> str | None:
        """Read the YAML by which TorchServe starts workers; None if the archive has none."""
        try:
            return self._read(self.file_name("configFile")).decode("utf-8")
        except (ValueError, KeyError, ArchiveError):
            return None

    def file_name(self, key: str) -> str:
        """Read the name of one of the user's files, such as `modelFile`. It is at the top of the archive.

        Raises `ArchiveError`: the archive does not say it, or it leads elsewhere.
        """
        try:
            name = self._model_entry(key)
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"{self.path} is damaged: {STOCK_MANIFEST} has no {key} of the model") from error
        if not isinstance(name, str) or not name.isprintable() or Path(name).name != name:
            raise ArchiveError(f"{self.path} is damaged: {key} in {STOCK_MANIFEST} is not the name of a file")
        return name

    def file_list(self) -> bytes:
        """Read the list SHA256SUMS. Raises `ArchiveError`: there is none, or the archive is damaged."""
        try:
            return self._read(LIST)
        except KeyError as error:
            if not self.files_of([FILE_NAME]):
                raise self._other_handler() from error
            raise ArchiveError(f"{self.path} has no list {LIST}: package the model again") from error

    def files_of(self, names: Collection[str]) -> dict[str, bytes]:
        """Read those of the named files that the archive has, in one pass. A pipe or a device is no file.

        Raises `ArchiveError`: the file is no archive, or damaged.
        """
        with self._damage_reported():
            if self.path.is_dir():
                return {name: _file_of_folder(self.path / name) for name in names if (self.path / name).is_file()}
            if is_zip(self.path):
                with zipfile.ZipFile(self.path) as file:
                    return {name: _file_of_zip(file, name) for name in set(names).intersection(file.namelist())}
            if _is_tar(self.path):
                return _files_of_tar(self.path, names)
        raise self._not_an_archive()

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Unpack the files into a private folder, deleted afterwards. A folder is used where it is."""
        if self.path.is_dir():
            yield self._checked(self.path)
            return
        with private_directory() as directory:
            with self._damage_reported():
                self._extract(directory)
            yield self._checked(_root(directory))

    @contextmanager
    def checked(self) -> Iterator[Path]:
        """Unpack the files, and compare them with their list before anything of them is run, as servers do.

        Raises `ArchiveError`: they are not as they were packaged, or no key of NEURON_LSTM_TRUSTED_KEYS signed them.
        """
        with self.unpacked() as directory:
            try:
                check_folder(str(directory.resolve()), os.environ.get(TRUSTED_KEYS))
            except RuntimeError as error:
                raise ArchiveError(f"{self.path}: {error}") from error
            yield directory

    def _checked(self, directory: Path) -> Path:
        if not (directory / FILE_NAME).is_file():
            raise self._other_handler()
        return directory

    def _read(self, name: str) -> bytes:
        """Read one file. Raises `KeyError`: the archive has no such file."""
        return self.files_of([name])[name]

    def _model_entry(self, key: str) -> object:
        """Read a value of MAR-INF/MANIFEST.json. Raises `KeyError`, `TypeError`, `ValueError`: there is none."""
        try:
            value: object = json.loads(self._read(STOCK_MANIFEST))["model"][key]
        except RecursionError as error:
            raise ValueError(error) from error
        return value

    def _extract(self, directory: Path) -> None:
        if is_zip(self.path):
            with zipfile.ZipFile(self.path) as file:
                if any(".." in name.split("/") or name.count("/") > _DEEPEST for name in file.namelist()):
                    raise zipfile.BadZipFile(f"a name leads out of it, or into more than {_DEEPEST} folders")
                self._check_room(directory, sum(entry.file_size for entry in file.infolist()))
                file.extractall(directory)  # noqa: S202 - zipfile keeps names inside the folder by itself
        elif _is_tar(self.path):
            with tarfile.open(self.path, _COMPRESSED, tarinfo=_Member) as file:
                file.extractall(directory, filter=self._fitting)  # noqa: S202 - it filters as "data" does
                _read_to_end(file)
        else:
            raise self._not_an_archive()

    def _fitting(self, member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        self._check_room(Path(path), member.size)
        if member.name.count("/") > _DEEPEST:
            raise tarfile.ReadError(f"a name leads into more than {_DEEPEST} folders")
        if not (member.isreg() or member.isdir()):  # Python follows a link out of the folder if its path is too long
            raise tarfile.ReadError(f"{member.name[:_SHOWN]!a} is neither a file nor a folder")
        return tarfile.data_filter(member, path)

    def _check_room(self, directory: Path, needed: int) -> None:
        free = disk_usage(directory).free
        if needed > free:
            raise ArchiveError(f"{self.path}: its files have {needed:,} bytes, and {directory} has room for {free:,}")

    @contextmanager
    def _damage_reported(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            raise ArchiveError(f"{self.path} is damaged: {str(error) or type(error).__name__}") from error
        except OSError as error:
            if error.errno not in _REASONS:
                raise
            raise ArchiveError(f"{self.path} is damaged: {_REASONS[error.errno]}") from error

    def _not_an_archive(self) -> ArchiveError:
        with self.path.open("rb") as file:
            start = file.read(4)
        if start.startswith((b"PK\x03\x04", b"\x1f\x8b")):  # a .mar, a .tar.gz
            return ArchiveError(f"{self.path} is damaged: its end is missing")
        return ArchiveError(f"{self.path} is not an archive: expected a .mar, a .tar.gz or a folder")

    def _other_handler(self) -> ArchiveError:
        return ArchiveError(f"{self.path} has no {FILE_NAME}: it was not packaged with --handler neuron_lstm")


def is_zip(archive: Path) -> bool:
    """Whether the file is a .mar. Raises `OSError`: it cannot be read, for which `zipfile.is_zipfile` returns False."""
    if archive.is_fifo():  # it would be waited for
        return False
    with archive.open("rb") as file:
        file.read(1)
        return zipfile.is_zipfile(file)


class _Member(tarfile.TarInfo):
    """A member of a .tar.gz: Python would read names and other facts of any length, some in quadratic time.

    It would also read maps of sparse files, which no archive has, of any length.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if not self.isreg() and self.size > _MOST_FACTS:
            raise tarfile.ReadError(f"the facts of a file have {self.size} bytes: expected at most {_MOST_FACTS}")
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # documented in its source alone
        return found

    def _reject_sparse(self, *_: object) -> NoReturn:
        raise tarfile.ReadError(f"{self.name[:_SHOWN]!a} is a sparse file")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _reject_sparse


def _is_tar(archive: Path) -> bool:
    try:
        tarfile.open(archive, _COMPRESSED, tarinfo=_Member).close()
    except tarfile.TarError:
        return False
    return True


def _root(directory: Path) -> Path:
    """The files of a .tar.gz are in one folder, which is named after the model."""
    inside = list(directory.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else directory


def _file_of_folder(path: Path) -> bytes:
    _check_size(path.name, path.stat().st_size)
    return path.read_bytes()


def _file_of_zip(archive: zipfile.ZipFile, name: str) -> bytes:
    _check_size(name, archive.getinfo(name).file_size)
    return archive.read(name)


def _check_size(name: str, size: int) -> None:
    if size > _MOST_BYTES:
        raise ValueError(f"{name} has {size} bytes: expected at most {_MOST_BYTES}")


def _files_of_tar(archive: Path, names: Collection[str]) -> dict[str, bytes]:
    """Read the named files, each where it comes first."""
    contents: dict[str, bytes] = {}
    with tarfile.open(archive, _COMPRESSED, tarinfo=_Member) as file:
        for member in file:
            name = member.name.partition("/")[2]
            if name in names and name not in contents and (found := file.extractfile(member)):
                _check_size(name, member.size)
                contents[name] = found.read()
        _read_to_end(file)
    return contents


def _read_to_end(file: tarfile.TarFile) -> None:
    # A .tar.gz ends in its checksum, which is compared when it is read.
    assert file.fileobj is not None
    while file.fileobj.read(1 << 20):
        pass
