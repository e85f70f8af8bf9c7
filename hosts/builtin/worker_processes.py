"""Worker processes of the built-in server, seen from their parent."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from ...inference.errors import ArchiveError

ANSWER_SECONDS = 120
"""The time in which a worker that ends answers the requests that it has: that of a batch."""
_ENDING_SECONDS = 30
"""The time beside it in which a worker ends."""
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class ServerSettings:
    """The addresses of a server, its processes, and who may ask it."""

    host: str
    port: int
    grpc_port: int | None
    workers: int
    cert: str | None
    key: str | None
    token: str | None
    """The word that requests must have; None: they need none."""
    drain_seconds: int
    """The time in which a server that ends says that it is not ready, and accepts connections."""
    origins: tuple[str, ...] = ()
    """Origins of other servers whose pages may open streams in browsers."""


class _Worker:
    """A process that serves the archives which it is told, and ends when its connection does."""

    def __init__(self, main: Callable[[Connection], None]) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=main, args=(theirs,))
        self.process.start()
        theirs.close()

    def tell(self, folders: Mapping[str, str]) -> None:
        """Let the worker serve these unpacked archives by name, instead of the former ones."""
        with suppress(OSError):
            self.connection.send(folders)

    def refusal(self) -> str:
        """Return, when the worker has done it, the reason why it could not, "" if it could."""
        try:
            return str(self.connection.recv())
        except (EOFError, OSError):
            return "the worker ended; its lines above may say why"


class WorkerProcesses:
    """The workers of one server; `end` them."""

    def __init__(
        self,
        main: Callable[[Connection], None],
        settings: ServerSettings,
        folders: Mapping[str, str],
        say: Callable[[str], object],
    ) -> None:
        """Start the workers, which run `main`, and listen once they serve the unpacked archives in `folders`."""
        self._main = main
        self._settings = settings
        self._folders = dict(folders)
        self._say = say
        self._workers = [self._started() for _ in range(settings.workers)]

    def check(self) -> None:
        """Wait until all workers serve. Raises `ArchiveError`: one cannot."""
        if reasons := [reason for one in self._workers if (reason := one.refusal())]:
            raise ArchiveError(reasons[0])

    def replace(self, folders: Mapping[str, str]) -> str:
        """Replace archives in one worker after the other. Returns the reason why they stay, "" if all have new ones.

        A worker answers with its former archives until it has loaded the new ones. If one cannot, all keep the former.
        """
        former = {name: self._folders[name] for name in folders}
        workers = [one for one in self._workers if one.process.is_alive() and not one.connection.closed]
        for number, worker in enumerate(workers):
            worker.tell(folders)
            if reason := worker.refusal():
                for one in workers[:number]:
                    one.tell(former)
                    one.refusal()
                return reason
        self._folders.update(folders)
        return ""

    def wait(self, seconds: float) -> None:
        """Let the workers serve for a while, and start those again that end."""
        wait([one.process.sentinel for one in self._workers], seconds)
        for place, one in enumerate(self._workers):
            if not one.process.is_alive():
                self._say(f"A worker ended, exit code {one.process.exitcode}: another one starts.")
                worker = self._workers[place] = self._started()
                if reason := worker.refusal():
                    self._say(f"The worker cannot start: {reason}")
                    worker.connection.close()  # it ends, and the next one is tried

    def end(self) -> None:
        """Let the workers say that they are not ready, answer the requests that come until they end, and end."""
        try:
            for one in self._workers:
                one.connection.close()
            for one in self._workers:
                one.process.join(self._settings.drain_seconds + ANSWER_SECONDS + _ENDING_SECONDS)
        finally:
            for one in self._workers:
                one.process.kill()

    def _started(self) -> _Worker:
        worker = _Worker(self._main)
        worker.tell(self._folders)
        return worker
