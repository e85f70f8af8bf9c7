"""Program of `test_store_faults.py`: two workers serve sessions, and calls on their files fail.

python store_faults.py FOLDER FAULT:STRIDE ... tries every STRIDE-th call. It writes a line of JSON for each.
"""

import json
import logging
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from failing_files import FailingFiles, Fault
from session_service import ID, STEP, ask, make_service, piece

from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore

LIMITS = Limits(sessions=100, bytes=10**7, idle_seconds=900.0)
CHUNKS = {"a": [[1, 2], [3], [4, 5], [6]], "b": [[7], [8, 9]], "new": [[10, 11], [12]]}
BEFORE = {"a": 2, "b": 1, "new": 0}
"""The number of chunks that are applied before the fault."""
DOCUMENTED = {(503, "StoreUnavailable"), (507, "StoreFull")}


def request(name: str, number: int) -> Any:
    chunks = CHUNKS[name]
    fields = {"id": name, "step": str(sum(map(len, chunks[:number])))}
    fields |= {"start": "true"} if number == 0 else {}
    fields |= {"end": "true"} if name == "a" and number == len(chunks) - 1 else {}
    return piece(list(chunks[number]), **fields)


def answer(name: str, number: int) -> dict[str, object]:
    """The exact answer: running sums of the session's ids."""
    chunks = CHUNKS[name]
    before, upto = (sum(map(len, chunks[:count])) for count in (number, number + 1))
    sums = [float(one) for one in accumulate(one for chunk in chunks for one in chunk)]
    return {ID: name, STEP: upto, "sums": sums[before:upto], "total": sums[upto - 1]}


@dataclass
class Trial:
    store: SqliteStore
    service: Service = field(init=False)
    applied: dict[str, int] = field(default_factory=lambda: dict(BEFORE))
    problems: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.service = make_service(StoreSessions(self.store))

    def send(self, *names: str) -> None:
        numbers = [(name, self.applied[name]) for name in names if self.applied[name] < len(CHUNKS[name])]
        responses = ask(self.service, *(request(name, number) for name, number in numbers))
        for (name, number), (status, body) in zip(numbers, responses, strict=True):
            self.statuses.append(status)
            if status == 200:
                self.applied[name] += 1
                self._expect(body == answer(name, number), f"{name} {number}: {body}")
            else:
                self._expect((status, body.get("type")) in DOCUMENTED and body["code"] == status, f"{status}: {body}")

    def finish(self) -> None:
        for _ in range(4):
            self.send(*CHUNKS)
        for name, chunks in CHUNKS.items():
            self._expect(self.applied[name] == len(chunks), f"{name} is at chunk {self.applied[name]}")

    def replay(self, service: Service) -> None:
        names = [name for name in CHUNKS if self.applied[name]]
        responses = ask(service, *(request(name, self.applied[name] - 1) for name in names))
        for name, response in zip(names, responses, strict=True):
            self._expect(response == (200, answer(name, self.applied[name] - 1)), f"again: {name}: {response}")

    def check_file(self) -> None:
        """The file is a whole database, and what is counted is what is there."""
        with closing(sqlite3.connect(self.store.file)) as connection:
            self._expect(connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), "integrity")
            counted = connection.execute("SELECT open, bytes FROM tally").fetchone()
            there = connection.execute("SELECT sum(NOT ended), sum(length(record)) FROM session").fetchone()
            self._expect(counted == there, f"counted {counted}, there {there}")

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)


def serve(trial: Trial) -> None:
    """Serve while files fail; a chunk that failed is sent again with the next batch."""
    trial.send("a")
    trial.send("new", "b")
    trial.send("a", "b", "new")
    trial.store.close()


def prepare(folder: Path) -> Path:
    trial = Trial(SqliteStore(folder, "tagger", LIMITS), applied=dict.fromkeys(CHUNKS, 0))
    for name, count in BEFORE.items():
        for _ in range(count):
            trial.send(name)
    trial.store.close()
    assert trial.applied == BEFORE
    assert trial.problems == []
    return folder


def run(files: FailingFiles, pristine: Path | None, folder: Path, fault: Fault, successes: int) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    if pristine is not None:
        shutil.copytree(pristine, folder)
    trial, other = Trial(SqliteStore(folder, "tagger", LIMITS)), SqliteStore(folder, "tagger", LIMITS)
    if pristine is None:
        trial.applied = dict.fromkeys(CHUNKS, 0)
    else:
        other.totals()  # another worker has the file open
    with files.below([folder], fault, successes) as calls:
        serve(trial)
    told, logged = list(trial.statuses), list(_LOGGED)
    _LOGGED.clear()
    trial.replay(make_service(StoreSessions(other)))
    trial.finish()
    trial.replay(make_service(StoreSessions(other)))
    trial.store.close()
    other.close()
    trial.check_file()
    trial.problems += [f"does not name the file: {text}" for text in logged if str(folder) not in text]
    return {"calls": calls, "statuses": told, "problems": trial.problems, "logged": logged}


_LOGGED: list[str] = []


class _Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _LOGGED.append(record.getMessage())


def main() -> None:
    root, wanted = Path(sys.argv[1]), [one.split(":") for one in sys.argv[2:]]
    logging.getLogger().handlers = [_Keep()]
    files = FailingFiles()
    for pristine in (prepare(root / "pristine"), None):
        without = run(files, pristine, root / "store", Fault.NONE, 0)
        say(without, Fault.NONE)
        for name, stride in wanted:
            for successes in range(0, len(without["calls"]), int(stride)):
                say(run(files, pristine, root / "store", Fault[name], successes), Fault[name])


def say(found: dict[str, Any], fault: Fault) -> None:
    sys.stdout.write(f"{json.dumps({'fault': fault.name, **found})}\n")


if __name__ == "__main__":
    main()
