"""Program of `test_loading_faults.py`: a worker loads an archive, and calls on its files fail.

python loading_faults.py FOLDER FAULT:COUNT:STRIDE ... tries every STRIDE-th of COUNT calls of each kind: a function, on
a kind of file. Each load is in a process of its own, a copy of this one. It writes a line of JSON for each.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import torch
import ts.model_loader  # noqa: F401 - before the process is copied
from failing_files import FailingFiles, Fault, some_of_each
from worker import loaded, predict, request

IDS = b"[3, 1, 2, 5]"


def load(files: FailingFiles, archive: Path, fault: Fault, successes: int) -> dict[str, Any]:
    """Load the archive with a fault, and once more without it if it is refused; answer a request."""
    found: dict[str, Any] = {"fault": fault.name, "ready": False, "refusal": None}
    try:
        found |= _served(files, archive, fault, successes)
        return found | {"ready": True}
    except Exception as error:  # noqa: BLE001 - the test compares what it is
        told = isinstance(error, RuntimeError)  # TorchServe's worker reports no other error
        found |= {"refusal": f"{type(error).__name__}: {error}", "told": told, "calls": files.end()}
    return found | {"again": _served(files, archive, Fault.NONE, 0)["body"]}


def _served(files: FailingFiles, archive: Path, fault: Fault, successes: int) -> dict[str, Any]:
    files.begin([f"{archive}/"], fault, successes)
    try:
        with loaded(archive) as service:
            calls = files.end()
            (response,) = predict(service, [request(IDS, "application/json")])
            return {"calls": calls, "status": response.status, "body": json.loads(response.body)}
    finally:
        files.end()


def in_a_copy(files: FailingFiles, archive: Path, fault: Fault, successes: int) -> dict[str, Any]:
    """Load in a copy of this process, which has imported torch and nothing of the archive."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with suppress(BaseException):
            os.write(writer, json.dumps(load(files, archive, fault, successes)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:  # noqa: PTH123 - a descriptor
        text = pipe.read()
    os.wait()
    found: dict[str, Any] = json.loads(text)
    return found


def main(arguments: Sequence[str]) -> None:
    """Let one call of each kind fail after the other."""
    archive, files = Path(arguments[0]), FailingFiles()
    torch.set_num_threads(1)
    without = in_a_copy(files, archive, Fault.NONE, 0)
    trials = [without]
    calls = [call.replace(str(archive), "/archive") for call in without["calls"]]
    for name, count, stride in (one.split(":") for one in arguments[1:]):
        for successes in some_of_each(calls, int(count))[:: int(stride)]:
            trials.append(in_a_copy(files, archive, Fault[name], successes))  # noqa: PERF401 - one after the other
    for trial in trials:
        sys.stdout.write(f"{json.dumps(trial)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
