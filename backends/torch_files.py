"""Files that torch's zip writer makes, and the size of files on disk.

The writer ends the process if a write fails: its destructor completes the file, finds that bytes are missing, and
throws (`PyTorchStreamWriter` in caffe2/serialize/inline_container.cc). So it is given a file that accepts all writes,
and the failure is raised afterwards. Used only while packaging.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


class _LateFailure(io.RawIOBase):
    """A file whose failures are kept for later; nothing is written after the first one."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Do nothing: torch only rewinds a file that it has written."""
        return offset

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)


@contextmanager
def torch_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for `torch.save` or `torch.export.save`.

    Raises `OSError`: it cannot be opened or written; what is there of it is no whole file.
    """
    with path.open("wb") as file:
        late = _LateFailure(file)
        yield late  # type: ignore[misc]  # binary, as torch requires
        if late.error is not None:
            raise OSError(late.error.errno, late.error.strerror, str(path)) from late.error


def disk_size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
