"""An archive of the command line: what is served is a private copy, which later changes of its file do not reach."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from ...handlers.neuron_lstm import LIST
from ...inference.errors import ArchiveError
from ...inference.private_directory import private_directory
from ...inference.reader import ArchiveReader


class FollowedArchive:
    """The checked and unpacked files of an archive, and later changes of it; `close` it."""

    def __init__(self, name: str, path: Path) -> None:
        """Copy the archive of the model `name`. Raises `ArchiveError`, `OSError`: it cannot be served."""
        self.name = name
        self._path = path
        self._tried = self._seen = self._stamp()
        self.folder, self.close = self._copied()

    def has_changed(self) -> bool:
        """Whether the archive differs from the one that was tried last, and is no longer being written."""
        before, self._seen = self._seen, self._stamp()
        return self._seen == before and self._seen not in (None, self._tried)

    def renew(self, replace: Callable[[Mapping[str, str]], str]) -> str:
        """Serve the archive as it is now, unless `replace` returns why not. Returns a line for the log."""
        self._tried = self._stamp()
        try:
            folder, close = self._copied()
        except (ArchiveError, OSError) as error:
            return f"{self.name} stays as it is: {error}"
        if reason := replace({self.name: folder}):
            close()
            return f"{self.name} stays as it is: {self._path} cannot be served: {reason}"
        self.close()
        self.folder, self.close = folder, close
        return f"{self.name} is replaced: version {ArchiveReader(Path(folder)).model_version()}."

    def _copied(self) -> tuple[str, Callable[[], None]]:
        """Return the folder of a copy, and the function that deletes it."""
        with ExitStack() as files:
            folder = files.enter_context(ArchiveReader(self._path).checked())
            if self._path.is_dir():  # it was checked where it is
                folder = Path(shutil.copytree(folder, files.enter_context(private_directory()) / "archive"))
            if (found := ArchiveReader(folder).model_name()) != self.name:
                raise ArchiveError(f"{self._path} has the model {found}, not {self.name}: start the server anew")
            return str(folder.resolve()), files.pop_all().close

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return facts that change with the archive; None while there is none."""
        try:
            found = (self._path / LIST if self._path.is_dir() else self._path).stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
