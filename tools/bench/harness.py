"""Measuring in the same way in all programs: calls in turns, archives by the real command."""

from __future__ import annotations

import inspect
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

Call = Callable[[], object]
Timer = Callable[[Call], float]
"""A function that returns the seconds of one call."""


class BenchmarkFailed(RuntimeError):
    """The figures cannot be measured, or would mean nothing; the message says why."""


@dataclass(frozen=True)
class Effort:
    """Amount of measurement."""

    rounds: int = 11
    slice_s: float = 0.06
    """Seconds of timed calls in a slice; at least one call is timed."""
    pause_s: float = 0.0
    """Seconds before a slice, in which the threads of the previous call stop spinning. An untimed call follows."""
    limit_s: float = 60.0
    """Seconds after which no further round begins, once the fewest are done."""
    fewest: int = 3
    """Rounds that are done in any case."""


def take_turns(calls: Mapping[str, Call], effort: Effort, timer: Timer) -> dict[str, tuple[float, ...]]:
    """Time each call in one slice per round; returns the median seconds of a call in each slice.

    A slow moment of the machine affects all calls, not one of them. The order is random, because the call after a slow
    one finds cold caches. Two untimed calls of each come first: the first one may compile.
    """
    for call in calls.values():
        call()
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    began = time.perf_counter()
    for number in range(effort.rounds):
        if number >= effort.fewest and time.perf_counter() - began > effort.limit_s:
            break
        for name in order.sample([*calls], len(calls)):
            seconds[name].append(_time_slice(calls[name], effort, timer))
    return {name: tuple(values) for name, values in seconds.items()}


def _time_slice(call: Call, effort: Effort, timer: Timer) -> float:
    if effort.pause_s:
        time.sleep(effort.pause_s)
        call()
    seconds = [timer(call)]
    while sum(seconds) < effort.slice_s:
        seconds.append(timer(call))
    return median(seconds)


def host_seconds(call: Call) -> float:
    """Return the seconds of a call by the clock."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def device_seconds(call: Call) -> float:
    """Return the seconds of a call by events of a GPU, from one idle state to the next."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median of the ratios of the rounds.

    >>> ratio([2.0, 9.0, 4.0], [1.0, 3.0, 2.0])
    2.0
    """
    return median(one / other for one, other in zip(seconds, reference, strict=True))


def refuse_differences(what: str, outputs: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """Raise `BenchmarkFailed` unless outputs are as expected: |a - e| <= tolerance x (1 + |e|)."""
    for output, right in zip(outputs, expected, strict=True):
        if output.shape != right.shape:
            raise BenchmarkFailed(f"{what}: expected an output of {tuple(right.shape)}, got {tuple(output.shape)}")
        if not torch.allclose(output, right, rtol=tolerance, atol=tolerance):
            largest = float((output - right).abs().max())
            raise BenchmarkFailed(f"{what}: an output is {largest:.3g} off the expected one, not {tolerance:g}")


def tell(text: str) -> None:
    """Print the progress to standard error, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def package(
    model: nn.Module,
    config: str,
    folder: Path,
    name: str,
    *words: str,
    handler: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Package a model into a folder by the command that users run.

    `config` is the text of model-config.yaml, `words` are further words of the command; `handler` is the file of
    another handler than that of this project. Raises `BenchmarkFailed` with the output if the command fails.
    """
    shutil.copy(inspect.getfile(type(model)), folder / "model.py")
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / f"{name}.yaml").write_text(config)
    command = [program("neuron-lstm"), "archive"]
    if handler is not None:
        command = [program("torch-model-archiver"), "--handler", handler]
    files = "--version 1.0 --model-file model.py --serialized-file weights.pt --force"
    done = subprocess.run(
        [*command, *files.split(), "--model-name", name, "--config-file", f"{name}.yaml", "--export-path", ".", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkFailed(f"packaging {name} failed:\n{done.stdout}")


def program(name: str) -> str:
    """Return a program of the environment that has torch."""
    return str(Path(str(torch.__file__)).parents[4] / "bin" / name)
