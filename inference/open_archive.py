"""An archive in the user's own process: the programs, plans and answers of serving, without a server.

The code is that of the installed package. The copy of it in the archive is never run.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch
from typing_extensions import Self

from ..bucketing.execute import Tensors
from ..bucketing.shapes import TensorSpec
from ..handlers.description import describe
from ..handlers.formats import Codec, load_codec, make_codec
from ..handlers.formats.raw_request import RawRequest
from ..handlers.formats.request import ModelIdentity, SequenceInput
from ..handlers.responses import RawResponse
from ..handlers.runtime.loader import LoadedArchive, load_archive
from ..handlers.service import Service
from ..handlers.streaming.open_sessions import open_sessions
from ..handlers.streaming.state import SessionSource
from ..handlers.streaming.store_sessions import StoreSessions
from ..sessions.session import check_id
from .errors import HOST_ERRORS, ArchiveError
from .isolated_modules import IsolatedModules
from .model_session import ModelSession
from .reader import ArchiveReader
from .request_lines import AnswerLine, answer_lines, read_lines
from .values import read_one, windows, write_one


def open_archive(archive: str | Path, threads: int | None = None, name: str | None = None) -> OpenArchive:
    """Open a .mar, a .tar.gz or the folder of an archive, and load its programs.

    with open_archive("tagger.mar", threads=2) as model:
        scores = model.predict([[5, 17, 99], [4]])

    `threads` is the number that each call may use; None: the archive's, or else one for each available core. Engines
    set torch's number of threads in this process. `name` is the one under which a server serves the model, None: its
    own; sessions are stored by it.

    Raises `ArchiveError`: there is no such archive, it is not as it was packaged or signed, it is of another version,
    or this host cannot run it.
    """
    stack = ExitStack()
    try:
        reader = ArchiveReader(Path(archive))
        directory = stack.enter_context(reader.checked()).resolve()
        modules = IsolatedModules(directory)
        loaded = load_archive(directory, threads, importing=lambda _: modules.imported())
        return OpenArchive(loaded, directory, modules, name or _model_name(reader), stack)
    except BaseException as error:
        stack.close()
        if isinstance(error, HOST_ERRORS):
            raise ArchiveError(str(error) or "out of memory") from error
        raise


class OpenArchive:
    """A loaded archive; `close` it, or use it in a `with` statement. Safe from several threads."""

    def __init__(
        self, loaded: LoadedArchive, directory: Path, modules: IsolatedModules, name: str, files: ExitStack
    ) -> None:
        self.loaded, self.directory, self.name = loaded, directory, name
        self._modules, self._files = modules, files
        self._one_call = CallLock(self._enter_fork)
        self._is_closed = self._is_forked = False
        self._of_parent: list[object] = []
        self._session_service: Service | None = None

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of one sequence: name, dtype and shape of each, as the configuration declared them."""
        return self.loaded.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of one sequence."""
        return self.loaded.manifest.outputs

    def describe(self) -> dict[str, object]:
        """Describe inputs, outputs, buckets, engine and measurements, as TorchServe's description does."""
        return describe(self.loaded.manifest, self.loaded.threads)

    def predict(self, sequences: Iterable[object], *, as_numpy: bool = False) -> list[object]:
        """Return the answer to each sequence, in order.

        A sequence is a nested list, a numpy array or a tensor without batch dimension, or a mapping from the name of
        each input to one. An answer is a nested list, or a numpy array with `as_numpy`: of the only output, or a
        dict by the names of several. Any number of sequences is planned together and run in batches.

        Raises `InvalidSequence`: a sequence is not one that the model takes; the message has its index. Nothing is run.
        Raises `ArchiveError`: this process is a fork, and the engine does not run in forks.
        Raises `ValueError`: the archive is closed.
        """
        manifest = self.loaded.manifest
        read = [read_one(value, index, manifest) for index, value in enumerate(sequences)]
        answers: list[object] = [None] * len(read)
        for window in windows([one.length for one in read]):
            for index, outputs in zip(window, self._run([read[index] for index in window]), strict=True):
                answers[index] = write_one(outputs, manifest.outputs, as_numpy=as_numpy)
        return answers

    def session(self, id: str | None = None, *, resume: bool = False) -> ModelSession:  # noqa: A002 - the standard term
        """Begin a session, or `resume` one that was begun before: here, in another process or on a server.

            with open_archive("tagger.mar") as model:
                session = model.session("h4Yx9-Wc0qNf3rTzLm2U")
                first, rest = session.send([5, 17]), session.send([99], end=True)

        Without an id, the session has a new one after its first chunk. With `store: client` the state is in the object
        alone, which cannot be resumed.

        Raises `ArchiveError`: the archive was packaged without sessions, or there is no key for its tokens.
        Raises `ValueError`: the id is not valid, there is none to resume, or the archive is closed.
        """
        if self.loaded.manifest.streaming is None:
            raise ArchiveError(f"{self.name} has no sessions: package it with `streaming: {{}}`")
        if id is not None:
            check_id(id)
        elif resume:
            raise ValueError("to resume a session, give its id")
        with self._call():
            self._open_session_service()

        def ask(request: RawRequest) -> RawResponse:
            with self._call():
                (response,) = self._open_session_service().handle([request])
                return response

        return ModelSession(ask, self.loaded.manifest, id, resume=resume)

    def answer_lines(self, file: BinaryIO) -> Iterator[AnswerLine]:
        """Yield the answer to each line of a file: a request's body, answered as by a server.

        Memory does not grow with the file.

        Raises `ArchiveError`: the archive's codec cannot be loaded.
        Raises `ValueError`: the archive is closed.
        """
        manifest, identity = self.loaded.manifest, ModelIdentity(self.name, "")
        with self._modules.imported():
            try:
                service = make_service(self.loaded, load_codec(manifest, self.directory, identity, sys.maxsize))
            except RuntimeError as error:
                raise ArchiveError(str(error)) from error

        def handle(requests: Sequence[RawRequest]) -> Sequence[RawResponse]:
            with self._call(), self._modules.imported():  # a codec may import late
                return service.handle(requests)

        return answer_lines(handle, read_lines(file, manifest.limits.body_bytes))

    def close(self) -> None:
        """Release the programs, and delete the files that were unpacked."""
        with self._one_call:
            self._is_closed = True
            self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process. Raises `TypeError`: says what to do."""
        raise TypeError("an open archive cannot be sent to another process: send its path, and open it there")

    def _run(self, sequences: list[SequenceInput]) -> list[Tensors]:
        lengths = tuple(one.length for one in sequences)
        plan = self.loaded.plan(lengths)
        with self._call(), nullcontext() if self.loaded.own is None else self._modules.imported():
            return self.loaded.run_plan(plan, [one.tensors for one in sequences], lengths)[0]

    def _open_session_service(self) -> Service:
        """Return the service of sessions. Raises `ArchiveError`: it cannot be opened."""
        if self._session_service is None:
            manifest = self.loaded.manifest
            try:
                sessions = open_sessions(manifest, self.name, os.environ)
            except RuntimeError as error:
                raise ArchiveError(str(error)) from error
            if isinstance(sessions, StoreSessions):
                self._files.callback(sessions.store.close)
            codec = make_codec(manifest, ModelIdentity(self.name, ""))
            self._session_service = make_service(self.loaded, codec, sessions)
        return self._session_service

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Hold the programs for one call: not every engine takes calls from several threads."""
        with self._one_call:
            if self._is_closed:
                raise ValueError("the archive is closed: use it within the `with` statement")
            if self._is_forked:
                if not self.loaded.runs_in_forks:
                    engine = self.loaded.manifest.backend
                    raise ArchiveError(
                        f"this process is a fork of the one that opened {self.name}, and has no threads of {engine}: "
                        f"open the archive in each process, or start processes by multiprocessing's method spawn or "
                        f"forkserver"
                    )
                torch.set_num_threads(1)  # torch would wait for the threads of the parent
            yield

    def _enter_fork(self) -> None:
        """Leave to the parent process what this one has as a copy: the files, and the store of sessions."""
        self._is_forked = True
        # A database or a connection must not be used, or closed, by two processes.
        self._of_parent += [self._files.pop_all(), self._session_service]
        self._session_service = None


def _model_name(reader: ArchiveReader) -> str:
    try:
        return reader.model_name()
    except ArchiveError:
        return reader.path.stem


def make_service(loaded: LoadedArchive, codec: Codec, sessions: SessionSource | None = None) -> Service:
    """Make the service; without `sessions`, every request is a whole sequence."""
    manifest = loaded.manifest
    limits_without_timeouts = manifest.limits._replace(milliseconds=None, timeout_ms=None)
    return Service(
        replace(loaded, manifest=replace(manifest, limits=limits_without_timeouts)),
        codec,
        max_response_bytes=sys.maxsize,
        response_timeout_ms=math.inf,
        sessions=sessions,
        wake=loaded.wake,
    )


class CallLock:
    """A lock for a `with` statement. A fork has another one, which no thread holds.

    `enter_fork` is called in each fork, before it does anything else.
    """

    def __init__(self, enter_fork: Callable[[], object]) -> None:
        self._lock = threading.RLock()  # code of the user may fork the process within a call
        self._enter_fork = enter_fork
        _known.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def enter_fork(self) -> None:
        """Begin anew: the fork has no thread of its parent that could release the lock."""
        self._lock = threading.RLock()
        self._enter_fork()


_known: weakref.WeakSet[CallLock] = weakref.WeakSet()
_held: list[CallLock] = []
_one_fork = threading.RLock()


def _hold_all() -> None:
    _one_fork.acquire()
    _held[:] = sorted(_known, key=id)
    for one in _held:
        one.__enter__()


def _release_all() -> None:
    for one in _held:
        one.__exit__(None, None, None)
    _held.clear()
    _one_fork.release()


def _enter_fork() -> None:
    global _one_fork  # noqa: PLW0603 - the fork has another lock
    for one in _held:
        one.enter_fork()
    _held.clear()
    _one_fork = threading.RLock()


os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_enter_fork)
