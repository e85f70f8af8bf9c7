"""Private copies of archives, which later changes of the files do not reach, and those changes."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

from ...handlers.neuron_lstm import LIST
from ...inference.errors import ArchiveError
from ...inference.private_directory import private_directory
from ...inference.reader import ArchiveReader


class ArchiveCopy:
    """The checked and unpacked files of an archive, as they are when it is made; `close` it."""

    def __init__(self, archive: Path, name: str) -> None:
        """Unpack the archive of the model `name`.

        Raises `ArchiveError`: it is missing or damaged, is not as it was packaged, or has another model.
        """
        self._files = ExitStack()
        try:
            self.folder, self.version = self._unpack(archive, name)
        except OSError as error:
            self.close()
            raise ArchiveError(f"{archive} cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    def _unpack(self, archive: Path, name: str) -> tuple[str, str]:
        folder = self._files.enter_context(ArchiveReader(archive).checked())
        if archive.is_dir():  # it was checked where it is
            folder = Path(shutil.copytree(folder, self._files.enter_context(private_directory()) / "archive"))
        reader = ArchiveReader(folder)
        if (found := reader.model_name()) != name:
            raise ArchiveError(f"{archive} has the model {found} now, instead of {name}: start the server anew")
        return str(folder.resolve()), reader.model_version()

    def close(self) -> None:
        """Delete the files."""
        self._files.close()


class ArchiveChanges:
    """The changes of one archive's files."""

    def __init__(self, archive: Path) -> None:
        self._file = archive / LIST if archive.is_dir() else archive
        self._known = self._seen = self._stamp()

    def is_new(self) -> bool:
        """Whether the archive has changed since this was true for the last time, and is no longer being written."""
        found = self._stamp()
        is_steady, self._seen = found == self._seen, found
        if not is_steady or found in (None, self._known):
            return False
        self._known = found
        return True

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return facts that change with the file; None while there is none."""
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
