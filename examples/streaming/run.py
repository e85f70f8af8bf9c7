"""Train, archive, serve and type byte by byte; then compare with the whole text in one request.

python examples/streaming/run.py                       about two minutes; --steps 50 for a quick look
python examples/streaming/run.py --kill                kill the model's worker halfway: nothing is lost

It stops every process that it starts, and removes every file that it writes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

EXAMPLES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(EXAMPLES))

from streaming.typist import Refused, Session, type_text  # noqa: E402 - not before the folder is on the path
from torchserve_process import DidNotStart, TorchServe, serving  # noqa: E402 - the same

NAME = "typing"
TEXT = "If x is not found, a KeyError is raised. asdkfj q;weo"
LONGEST = 256
"""Bytes of one request: the largest bucket."""
ALLOWED_BITS = 1e-3
"""The accepted difference of the sums: float32 adds up in another order."""


def main() -> None:
    """Train, archive, serve and type."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("text", nargs="?", default=TEXT, help="up to 256 bytes (default: %(default)s)")
    arguments.add_argument("--steps", type=int, default=1000, help="of training (%(default)s)")
    arguments.add_argument("--kill", action="store_true", help="kill -9 the model's worker halfway")
    options = arguments.parse_args()
    text = options.text.encode()
    if not 1 <= len(text) <= LONGEST:
        arguments.error(f"the text has {len(text)} bytes: from 1 to {LONGEST} can be compared with one request")
    signal.signal(signal.SIGTERM, terminated)
    with tempfile.TemporaryDirectory(prefix="typing-") as folder:
        serve_and_type(Path(folder), text, options.steps, kill=options.kill)


def serve_and_type(folder: Path, text: bytes, steps: int, *, kill: bool) -> None:
    """Write every file to `folder`, serve, and type a text."""
    work = Path(shutil.copytree(EXAMPLES / "streaming", folder / "streaming"))
    trained = Path(shutil.copytree(EXAMPLES / "surprise", folder / "surprise"))
    print("1/4 Train the next-byte LSTM of the demo", flush=True)
    weights = ("--steps", str(steps), "--out", str(work / "weights.pt"))
    run(trained, sys.executable, "train.py", *weights)
    print("2/4 Archive it to be served as a stream", flush=True)
    archive(work)
    print("3/4 Start TorchServe", flush=True)
    environment = {"NEURON_LSTM_SESSIONS": str(folder / "sessions")}
    with serving(work, {NAME: f"{NAME}.mar"}, environment=environment) as server:
        print("4/4 Type, a byte at a time", flush=True)
        report(server, work, text, environment, kill=kill)


def archive(work: Path) -> None:
    """Run the command that the README shows."""
    archiver = str(Path(sys.executable).with_name("torch-model-archiver"))
    options = "--version 1.0 --model-file ../surprise/model.py --serialized-file weights.pt --handler neuron_lstm"
    extra = "--extra-files codec.py --config-file model-config.yaml"
    run(work, archiver, "--model-name", NAME, *options.split(), *extra.split())


def report(server: TorchServe, work: Path, text: bytes, environment: dict[str, str], *, kill: bool) -> None:
    """Type a text, count the open sessions, and request the whole text at once."""
    url = f"http://127.0.0.1:{server.inference}/predictions/{NAME}"
    session = Session(url)
    coloured, half = sys.stdout.isatty(), len(text) // 2
    typed = type_text(session, text[:half], coloured=coloured)
    if kill:
        (worker,) = server.worker_pids(NAME)
        os.kill(worker, signal.SIGKILL)
        print(f"(killed worker process {worker})", flush=True)
    typed += type_text(session, text[half:], coloured=coloured)
    run(work, str(Path(sys.executable).with_name("neuron-lstm")), "sessions", f"{NAME}.mar", **environment)
    session.end()
    whole = Session(url).send(text, end=True)
    print(f"{sum(typed):.3f} bits for {len(text)} bytes, one at a time; {sum(whole):.3f} bits in one request")
    if abs(sum(typed) - sum(whole)) > ALLOWED_BITS:
        sys.exit("the sums differ")


def run(work: Path, *command: str, **environment: str) -> None:
    """Run a program in `work`, with its output on this terminal.

    Its threads sleep while they wait: threads that spin starve on a busy machine.
    """
    subprocess.run(command, cwd=work, check=True, env={"OMP_WAIT_POLICY": "passive", **os.environ, **environment})


def terminated(*_: object) -> NoReturn:
    """Leave through every `finally`, as Ctrl-C does."""
    sys.exit("stopped")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
    except (DidNotStart, Refused, subprocess.CalledProcessError) as failed:
        sys.exit(f"the example failed: {failed}")
