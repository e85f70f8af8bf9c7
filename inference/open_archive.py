"""An archive in the user's own process: the programs, plans and answers of serving, without a server.

The code is that of the installed package. The copy of it in the archive is never run.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from ..archiver_ext.archive.reader import ArchiveReader
from ..archiver_ext.errors import PackagingError
from ..bucketing.bucket_selector import tabulate_selector
from ..bucketing.execute import Tensors
from ..bucketing.shapes import TensorSpec
from ..config.manifest import Manifest
from ..handlers.description import describe
from ..handlers.formats.request import SequenceInput
from ..handlers.runtime.loader import LoadedArchive, load_archive
from .isolated_modules import isolated_modules
from .values import read_one, write_one
from .windows import windows


class ArchiveError(RuntimeError):
    """An archive that cannot be opened here. The message says why, and what to do."""


def open_archive(archive: str | Path, threads: int | None = None) -> OpenArchive:
    """Open a .mar, a .tar.gz or the folder of an archive, and load its programs.

    with open_archive("tagger.mar", threads=2) as model:
        scores = model.predict([[5, 17, 99], [4]])

    `threads` is the number that each call may use; None: the archive's, or else one for each available core. Engines
    set torch's number of threads in this process.

    Raises:
        ArchiveError: there is no such archive, it is damaged or of another version, or this host cannot run it.
    """
    stack = ExitStack()
    try:
        directory = stack.enter_context(ArchiveReader(Path(archive)).unpacked())
        return OpenArchive(load_archive(directory, threads, _selected_lengths), stack)
    except (PackagingError, RuntimeError, OSError) as error:
        stack.close()
        raise ArchiveError(str(error)) from error


class OpenArchive:
    """A loaded archive; `close` it, or use it in a `with` statement. Safe from several threads."""

    def __init__(self, loaded: LoadedArchive, files: ExitStack) -> None:
        self._loaded, self._files = loaded, files
        self._one_call = threading.Lock()
        self._is_closed = False

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of one sequence: name, dtype and shape of each, as the configuration declared them."""
        return self._loaded.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of one sequence."""
        return self._loaded.manifest.outputs

    def describe(self) -> dict[str, object]:
        """Describe inputs, outputs, buckets, engine and measurements, as TorchServe's description does."""
        return describe(self._loaded.manifest, self._loaded.threads)

    def predict(self, sequences: Iterable[object], *, as_numpy: bool = False) -> list[object]:
        """Return the answer to each sequence, in order.

        A sequence is a nested list, a numpy array or a tensor without batch dimension, or a mapping from the name of
        each input to one. An answer is a nested list, or a numpy array with `as_numpy`: of the only output, or a
        dict by the names of several. Any number of sequences is planned together and run in batches.

        Raises:
            InvalidSequence: a sequence is not one that the model takes; the message has its index. Nothing is run.
            ValueError: the archive is closed.
        """
        manifest = self._loaded.manifest
        read = [read_one(value, index, manifest) for index, value in enumerate(sequences)]
        answers: list[object] = [None] * len(read)
        for window in windows([one.length for one in read]):
            for index, outputs in zip(window, self._run([read[index] for index in window]), strict=True):
                answers[index] = write_one(outputs, manifest.outputs, as_numpy=as_numpy)
        return answers

    def close(self) -> None:
        """Forget the programs, and delete the files that were unpacked."""
        with self._one_call:
            self._is_closed = True
            self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, sequences: list[SequenceInput]) -> list[Tensors]:
        lengths = tuple(one.length for one in sequences)
        plan = self._loaded.plan(lengths)
        with self._one_call:  # not every engine takes calls from several threads
            if self._is_closed:
                raise ValueError("the archive is closed: call predict within the `with` statement")
            return self._loaded.run_plan(plan, [one.tensors for one in sequences], lengths)[0]


def _selected_lengths(manifest: Manifest, directory: Path) -> tuple[int, ...] | None:
    """Call the user's bucket selector, without a trace in this process.

    Raises:
        RuntimeError: it is missing, or its return value is not valid.
    """
    if manifest.kernel is None:
        return None
    module, _, name = manifest.kernel.partition(":")
    with isolated_modules(directory):
        try:
            return tabulate_selector(getattr(importlib.import_module(module), name), manifest.grid.lengths)
        except Exception as error:
            raise RuntimeError(f"kernel {manifest.kernel}: {type(error).__name__}: {error}") from error
