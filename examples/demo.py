"""`make demo`: train a small LSTM on real text, archive and serve it, and find the odd lines in a log.

Uses the files of `surprise/` as a user would, and stops every process that it starts.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torchserve_process import DidNotStart, TorchServe, serving

EXAMPLE = Path(__file__).parent / "surprise"
sys.path.insert(0, str(EXAMPLE))  # its files import each other by bare name, as in a user's folder

from client import level, score  # noqa: E402 - not before the folder is on the path
from english import split  # noqa: E402 - the same
from model import Surprise  # noqa: E402 - the same

NAME = "surprise"
ORDINARY = 21
LONGEST = 250
BURST, CONNECTIONS = 1000, 16
SHOWN = 44
STYLES = ("", "yellow", "bold red")
ODD = (
    b"GET /index.php?id=1%27%20UNION%20SELECT%20null,passwd%20FROM%20users--",
    b"eJxLy0lMSk7PyCwqLilNy0xPy8jMSc3LL0lVyE9TKEmtKAEA6bALHw==",
    b"kernel: BUG: unable to handle page fault at ffffa1b2c3d4e5f6 RIP 0010:0xdeadbeef",
    b"asdkfj q;weoriu zxcv,mn qpwoei",
)

console = Console(highlight=False)


@dataclass(frozen=True)
class Answer:
    """The answer to one text."""

    text: bytes
    mean: float
    bits: list[float]
    milliseconds: float


def main() -> None:
    """Train, archive, serve, request and report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=200, help="of training")
    options = arguments.parse_args()
    signal.signal(signal.SIGTERM, terminated)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="surprise-") as folder:
        work = Path(shutil.copytree(EXAMPLE, Path(folder) / "surprise"))
        step("1/4 Train a next-byte LSTM on the English that comes with Python")
        run(work, sys.executable, "train.py", "--steps", str(options.steps))
        step("2/4 Archive it with the stock torch-model-archiver")
        archive(work)
        step("3/4 Start TorchServe")
        with serving(work, {NAME: f"{NAME}.mar"}) as server:
            console.print(f"Serving on port {server.inference}, worker process {server.worker_pids(NAME)[0]}.")
            step("4/4 Send lines of many lengths at once, a few of them odd")
            report(server, work)
    console.print(f"\nStopped TorchServe. All of it took {time.monotonic() - began:.0f} s.", style="bold")


def archive(work: Path) -> None:
    """Run the command that the README shows."""
    archiver = str(Path(sys.executable).with_name("torch-model-archiver"))
    options = "--version 1.0 --model-file model.py --serialized-file weights.pt --handler neuron_lstm"
    extra = "--extra-files codec.py --config-file model-config.yaml"
    console.print(f"[dim]$ torch-model-archiver --model-name {NAME} {options} {extra}[/dim]")
    run(work, archiver, "--model-name", NAME, *options.split(), *extra.split())


def report(server: TorchServe, work: Path) -> None:
    """Request the score of every text, compare with the eager model, and show the table and the odd lines."""
    url = f"http://127.0.0.1:{server.inference}/predictions/{NAME}"
    texts = sample_texts()
    with ThreadPoolExecutor(CONNECTIONS) as connections:
        answers = list(connections.map(lambda text: ask(url, text), texts))
        burst = list(connections.map(lambda text: ask(url, text), random.choices(texts, k=BURST)))
    described = server.get(f"/models/{NAME}?customized=true")[0]["customizedMetadata"]
    console.print(f"Answered by {described['backend']}, in programs for {bucket_lengths(described)} bytes.\n")
    console.print(table(answers, bucket_lengths(described), eager_model(work)))
    name_the_odd(answers)
    took = sorted(answer.milliseconds for answer in burst)
    console.print(
        f"{BURST} more over {CONNECTIONS} connections: half within {took[len(took) // 2]:.1f} ms, "
        f"99 % within {took[len(took) * 99 // 100]:.1f} ms."
    )


def sample_texts() -> list[bytes]:
    """Held-out pieces of English text, 8 to 250 bytes long, with the odd lines among them."""
    chance = random.Random(1)
    _, held_out = split()
    starts = [i + 1 for i, byte in enumerate(held_out) if byte == ord("\n") and held_out[i + 1 : i + 2].isalpha()]
    sizes = [round(8 * (LONGEST / 8) ** (i / (ORDINARY - 1))) for i in range(ORDINARY)]
    ordinary = [
        held_out[start : start + size] for start, size in zip(chance.sample(starts, ORDINARY), sizes, strict=True)
    ]
    return chance.sample([*ordinary, *ODD], len(ordinary) + len(ODD))


def ask(url: str, text: bytes) -> Answer:
    """Send one request, timed by the client."""
    began = time.perf_counter()
    mean, bits = score(url, text)
    return Answer(text, mean, bits, (time.perf_counter() - began) * 1000)


def bucket_lengths(described: dict[str, Any]) -> list[int]:
    """The compiled lengths, from the handler's description of itself."""
    lengths: list[int] = described["buckets"]["length"]
    return lengths


def eager_model(work: Path) -> Surprise:
    """The model as its author runs it, without the plug-in."""
    model = Surprise()
    model.load_state_dict(torch.load(work / "weights.pt", weights_only=True))
    return model.eval()


@torch.inference_mode()
def eager_difference(model: Surprise, answer: Answer) -> float:
    """The largest difference in bits between the served answer and the eager model on this text alone."""
    ids = torch.tensor([list(answer.text)])
    alone = model(ids, torch.tensor([len(answer.text)]))[0]
    return float((alone - torch.tensor(answer.bits)).abs().max())


def table(answers: list[Answer], lengths: list[int], model: Surprise) -> Table:
    """A row for each text, shortest first."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("length", "bucket", "padding", "latency", "eager diff", "bits/byte"):
        shown.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    shown.add_column("text, its surprising bytes in colour", no_wrap=True)
    for answer in sorted(answers, key=lambda answer: len(answer.text)):
        length = len(answer.text)
        bucket = min(size for size in lengths if size >= length)
        shown.add_row(
            str(length),
            str(bucket),
            f"{1 - length / bucket:.0%}",
            f"{answer.milliseconds:.1f} ms",
            f"{eager_difference(model, answer):.0e}",
            f"{answer.mean:.2f}",
            coloured(answer.text, answer.bits),
        )
    return shown


def coloured(text: bytes, bits: list[float]) -> Text:
    """The beginning of a text, with each byte in the colour of its surprise."""
    line = Text()
    for byte, amount in list(zip(text, bits, strict=True))[:SHOWN]:
        line.append(chr(byte) if 32 <= byte < 127 else "·", style=STYLES[level(amount)])
    return line


def name_the_odd(answers: list[Answer]) -> None:
    """Print the texts with the greatest surprise, and whether they are the inserted ones."""
    most = sorted(answers, key=lambda answer: answer.mean, reverse=True)[: len(ODD)]
    found = sum(answer.text in ODD for answer in most)
    console.print(f"\nThe {len(ODD)} lines of most bits per byte, {found} of them planted:")
    for answer in most:
        console.print(Text(f"  {answer.mean:5.2f}  ").append_text(coloured(answer.text, answer.bits)))


def step(title: str) -> None:
    """Print the title of the next step."""
    console.rule(f"[bold]{title}", align="left")


def run(work: Path, *command: str) -> None:
    """Run a program in `work`, with its output on this terminal.

    Its threads sleep while they wait: threads that spin starve on a busy machine.
    """
    subprocess.run(command, cwd=work, check=True, env={"OMP_WAIT_POLICY": "passive", **os.environ})


def terminated(*_: object) -> NoReturn:
    """Leave through every `finally`, as Ctrl-C does."""
    sys.exit("stopped")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
    except (DidNotStart, subprocess.CalledProcessError) as failed:
        sys.exit(f"the demo failed: {failed}")
