"""Process of a stock TorchServe, in a separate folder, until a `with` block ends; and the configuration of its log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

from ...inference.errors import ArchiveError

KEYS = "key_file.json"
"""The file with the tokens, which TorchServe writes to its working directory."""
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener without the proxy of the environment, which must not see the tokens."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_SECONDS = 0.2
_ANSWER_SECONDS = 10.0
_STOP_SECONDS = 15.0
_LAST_LINES_SECONDS = 2.0
_FAILURES = ("Failed to load model", "Backend worker process died", "Backend worker error")
"""Lines of a model that cannot be served: TorchServe would try again for minutes."""
_START = """
import os, signal, sys, tempfile, threading

def end_with_input():
    os.read(0, 1)
    os.killpg(0, signal.SIGTERM)

threading.Thread(target=end_with_input, daemon=True).start()
tempfile.tempdir = sys.argv.pop(1)
from ts.model_server import start
start()
"""
"""Start of TorchServe with its file of the process id in a separate folder; workers keep TMPDIR.

Its standard input ends when this process does, even if that was killed. Then TorchServe ends too: it would keep its
ports, and no command would stop it.
"""


class TorchServeProcess:
    """A TorchServe that was started in `home`."""

    def __init__(self, home: Path, process: subprocess.Popen[bytes], write: Callable[[str], object]) -> None:
        self._home = home
        self._process = process
        self._failure: str | None = None
        """The first line of the log that says that a model cannot be served."""
        self._reader = Thread(target=self._read, args=(write,), daemon=True)
        self._reader.start()

    def _read(self, write: Callable[[str], object]) -> None:
        assert self._process.stdout is not None
        for content in self._process.stdout:  # it ends at \n: a carriage return of a client begins no line
            line = content.decode(errors="replace")
            if self._failure is None and any(failure in line for failure in _FAILURES):
                self._failure = line
            try:
                write(line)
            except (OSError, ValueError):
                write = str  # no process reads the log any more; TorchServe must not wait for a full pipe

    def wait_until_ready(self, management: str, model: str) -> int:
        """Return when all workers that a model begins with are ready, with their number.

        `management` is the URL of the management port.

        Raises `ArchiveError`: TorchServe ended, or cannot load a model.
        """
        while (workers := self._ready_workers(management, model)) is None:
            ended = self._process.poll() is not None
            if ended or self._failure is not None:  # its last lines come before the reason is chosen
                self._reader.join(_LAST_LINES_SECONDS if ended else _POLL_SECONDS)
                raise self._ended() if self._failure is None else ArchiveError(cannot_load(self._failure))
            time.sleep(_POLL_SECONDS)
        return workers

    def wait(self) -> None:
        """Wait until TorchServe ends; never returns. Raises `ArchiveError`: TorchServe ended."""
        self._process.wait()
        self._reader.join(_LAST_LINES_SECONDS)
        raise self._ended()

    def _ended(self) -> ArchiveError:
        return ArchiveError(f"TorchServe ended with exit code {self._process.returncode}: its lines above say why")

    def _ready_workers(self, management: str, model: str) -> int | None:
        """Return the number of workers that are ready; None while one is missing."""
        request = urllib.request.Request(f"{management}/models/{model}", headers=self._authorization())  # noqa: S310 - http alone
        try:
            with _OPENER.open(request, timeout=_ANSWER_SECONDS) as answer:
                found = json.load(answer)[0]
        except (OSError, ValueError):
            return None  # it does not listen yet, or does not know the model yet
        ready = sum(worker["status"] == "READY" for worker in found["workers"])
        return ready if ready >= found["minWorkers"] else None

    def _authorization(self) -> dict[str, str]:
        try:
            keys: dict[str, Any] = json.loads((self._home / KEYS).read_text())
        except (OSError, ValueError):
            return {}  # there are no tokens, or not yet
        return {"Authorization": f"Bearer {keys['management']['key']}"}


def cannot_load(line: str) -> str:
    """Return the message for a model that cannot be served, from the line of the log that says so.

    >>> cannot_load("... MODEL_LOG - Failed to load model tagger, exception there is no engine")
    'TorchServe cannot load tagger: there is no engine'
    """
    found = re.search(r"Failed to load model (?P<model>\S+), exception (?P<reason>.*)", line)
    if found is None:
        return "TorchServe cannot load a model: its lines above say why"
    return f"TorchServe cannot load {found['model']}: {found['reason']}"


@contextmanager
def running(
    home: Path, words: Sequence[str], environment: Mapping[str, str], write: Callable[[str], object]
) -> Iterator[TorchServeProcess]:
    """Start TorchServe in `home`, pass on its lines, and end all of its processes afterwards.

    `words` are those of the command `torchserve` without its name. `environment` comes on top of this process's own.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "TS_CONFIG_FILE"}  # of other properties
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(home), *words],
        cwd=home,
        env={**inherited, **environment, "TEMP": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C comes to this process, which ends the others in order
    )
    try:
        yield TorchServeProcess(home, process, write)
    finally:
        with _signals_ignored():
            _end(process)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore a second Ctrl-C, which would leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the group of the processes: ask it first, then kill what is left."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        until = time.monotonic() + _STOP_SECONDS
        while _runs(process.pid) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS / 4)
    process.wait()


def _runs(group: int) -> bool:
    """Whether a process of the group runs. Those that ended and wait for the init process do not count."""
    return any(_group_of_running(folder) == group for folder in Path("/proc").glob("[0-9]*"))


def _group_of_running(process: Path) -> int | None:
    try:
        state, _, group, *_ = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None  # it has ended
    return None if state in "ZX" else int(group)


_TEXT = """\
<?xml version="1.0" encoding="UTF-8"?>
<!-- Warnings, errors, refused requests, and lines of workers. A request that succeeds adds no line to the console. -->
<Configuration>
  <Appenders>
    <Console name="console" target="SYSTEM_OUT"><PatternLayout pattern="%d{{ISO8601}} [%-5p] %t %c - %m%n"/></Console>
{appender}  </Appenders>
  <Loggers>
    <Root level="warn"><AppenderRef ref="console"/></Root>
    <Logger name="ACCESS_LOG" level="info">
      <RegexFilter regex="{refused}" onMatch="NEUTRAL" onMismatch="DENY"/>
    </Logger>
    <Logger name="org.pytorch.serve.wlm.WorkerThread" level="info">
      <Filters>
        <ThresholdFilter level="warn" onMatch="ACCEPT" onMismatch="NEUTRAL"/>
        <RegexFilter regex="{restarts}" onMatch="NEUTRAL" onMismatch="DENY"/>
      </Filters>
    </Logger>
    <Logger name="MODEL_LOG" level="info" additivity="false">
      <AppenderRef ref="console">
        <RegexFilter regex="{batch}" onMatch="DENY" onMismatch="NEUTRAL"/>
      </AppenderRef>
{reference}    </Logger>
  </Loggers>
</Configuration>
"""
_FILE = """\
    <RollingFile name="file" fileName="${env:LOG_LOCATION:-logs}/model_log.log"
                 filePattern="${env:LOG_LOCATION:-logs}/model_log.%i.log">
      <PatternLayout pattern="%d{ISO8601} [%-5p] %t %c - %m%n"/>
      <SizeBasedTriggeringPolicy size="50 MB"/>
      <DefaultRolloverStrategy max="1"/>
    </RollingFile>
"""


def log_configuration(*, with_file: bool) -> str:
    """Return the text of log4j2.xml.

    `with_file`: all lines of workers go to `model_log.log` in the folder LOG_LOCATION (or `logs`) too, those of each
    batch among them, which `neuron-lstm tune` reads. At most 100 MB are kept.
    """
    return _TEXT.format(
        appender=_FILE if with_file else "",
        reference='      <AppenderRef ref="file"/>\n' if with_file else "",
        refused=".* [45][0-9][0-9] [0-9]+",  # lines of the access log, which end with the milliseconds
        restarts=".* Worker disconnected.*|Retry worker: .*",  # the others of this logger come with each batch
        batch="Backend received inference at: .*|neuron_lstm lengths .*",  # TorchServe's line, and ours
    )
