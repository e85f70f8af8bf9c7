"""Measuring in the same way in all programs: calls in turns, archives by the real command."""

from __future__ import annotations

import inspect
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor, nn

_FRONTEND = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 32, "maxBatchDelay": 2, "responseTimeout": 60}
_Name = TypeVar("_Name")
Call = Callable[[], object]
Timer = Callable[[Call], float]
"""A function that returns the seconds of one call."""


class BenchmarkFailed(RuntimeError):
    """The figures cannot be measured, or would mean nothing; the message says why."""


def take_turns(
    calls: Mapping[str, Call],
    timer: Timer,
    rounds: int,
    *,
    slice_s: float = 0.06,
    pause_s: float = 0.0,
    limit_s: float = 60.0,
    fewest: int = 3,
) -> dict[str, tuple[float, ...]]:
    """Time each call in one slice of some seconds per round; returns the median seconds of a call in each slice.

    A slice begins after a pause, in which the threads of the previous call stop spinning, and an untimed call. After
    the limit no further round begins, once the fewest are done. A slow moment of the machine affects all calls, not
    one of them. The order is random, because the call after a slow one finds cold caches. Two untimed calls of each
    come first: the first one may compile.
    """
    for call in calls.values():
        call()
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    began = time.perf_counter()
    for number in range(rounds):
        if number >= fewest and time.perf_counter() - began > limit_s:
            break
        for name in order.sample([*calls], len(calls)):
            seconds[name].append(_time_slice(calls[name], timer, slice_s, pause_s))
    return {name: tuple(values) for name, values in seconds.items()}


def in_rounds(names: Iterable[_Name], rounds: int) -> Iterator[tuple[int, _Name]]:
    """Yield each name in each round, with the number of the round; the order turns round after each."""
    order = [*names]
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        for name in order:
            yield number, name
        order.reverse()


def _time_slice(call: Call, timer: Timer, slice_s: float, pause_s: float) -> float:
    if pause_s:
        time.sleep(pause_s)
        call()
    seconds = [timer(call)]
    while sum(seconds) < slice_s:
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
    try:
        torch.testing.assert_close([*outputs], [*expected], rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        raise BenchmarkFailed(f"{what}: {error}") from None


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
    frontend: Mapping[str, int] = _FRONTEND,
) -> None:
    """Package a model into a folder by the command that users run.

    `config` is the block of model-config.yaml, `frontend` has other lines for TorchServe, `words` are further words of
    the command; `handler` is the file of another handler than that of this project. Raises `BenchmarkFailed` with the
    output if the command fails.
    """
    shutil.copy(inspect.getfile(type(model)), folder / "model.py")
    torch.save(model.state_dict(), folder / "weights.pt")
    lines = [f"{key}: {value}\n" for key, value in {**_FRONTEND, **frontend}.items()]
    (folder / f"{name}.yaml").write_text("".join(lines) + config)
    programs = Path(str(torch.__file__)).parents[4] / "bin"  # those of the environment that has torch
    command = [str(programs / "neuron-lstm"), "archive"]
    if handler is not None:
        command = [str(programs / "torch-model-archiver"), "--handler", handler]
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
