"""Program of `test_killed_worker.py`: sessions are continued until the process is killed.

python killed_worker.py FOLDER SESSIONS. It writes the line `NAME STEP` before a request, `NAME STEP TOTAL` after it.
"""

import sys
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from session_service import ask, make_service, piece

from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore


def service_in(folder: Path) -> Service:
    return make_service(StoreSessions(SqliteStore(folder, "tagger", Limits(100, 10**7, 900.0))))


def ids_from(name: str, step: int) -> list[int]:
    random = Random(f"{name} {step}")
    return [random.randrange(1, 20) for _ in range(random.randint(1, 3))]


def send(service: Service, names: list[str], steps: dict[str, int]) -> list[tuple[int, Any]]:
    """Send the chunk of each session that begins at its step, in one batch."""
    rows = []
    for name in names:
        start = {"start": "true"} if steps[name] == 0 else {}
        rows.append(piece(ids_from(name, steps[name]), id=name, step=str(steps[name]), **start))
    return ask(service, *rows)


def main() -> None:
    service, names = service_in(Path(sys.argv[1])), sys.argv[2].split(",")
    steps, random = dict.fromkeys(names, 0), Random(0)
    while True:
        batch = random.sample(names, random.randint(1, len(names)))
        sys.stdout.write("".join(f"{name} {steps[name]}\n" for name in batch))
        sys.stdout.flush()
        for name, (status, body) in zip(batch, send(service, batch, steps), strict=True):
            assert status == 200, body
            sys.stdout.write(f"{name} {steps[name]} {body['total']}\n")
            steps[name] += len(ids_from(name, steps[name]))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
