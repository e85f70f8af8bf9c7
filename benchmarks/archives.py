"""Savings of an archive: new weights without compiling, one copy of the weights, parallel compilation.

Run it from the repository's root: `python -m benchmarks.archives [--json]`; about six minutes on two cores. Twelve
buckets of a tagger, compiled by inductor. Exits 1 if answers differ or a floor is missed; the last lines name it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from torchserve_neuron_lstm.archiver_ext.evaluation.compile_jobs import compile_jobs
from torchserve_neuron_lstm.backends.compilation.job import CompileFailure
from torchserve_neuron_lstm.backends.compilation.pool import compile_all
from torchserve_neuron_lstm.backends.compilation.processes import compile_processes
from torchserve_neuron_lstm.backends.cores import available_cores
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.plan import single_bucket_plan
from torchserve_neuron_lstm.config.load import load_config
from torchserve_neuron_lstm.handlers.runtime.loader import LoadedArchive, load_archive
from torchserve_neuron_lstm.inference.reader import ArchiveReader
from torchserve_neuron_lstm.lowering import lower

from .standing import Standing, missed, plain_table, standings_json, standings_table

TOKENS = 10_000
LONGEST = 128
CONFIG = f"""\
minWorkers: 1
maxWorkers: 1
neuron_lstm:
  inputs:
    ids: {{dtype: int64, shape: [batch, time]}}
  lengths: lengths
  outputs: [scores]
  buckets: {{batch: [1, 8, 32], length: [16, 32, 64, {LONGEST}]}}
  backend: inductor
"""
SOURCE = f'''
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    """One of 16 tags for each token."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding({TOKENS}, 128)
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.tag = nn.Linear(256, 16)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        steps, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.tag(steps)
'''
FLAGS = "--version 1.0 --model-file model.py --config-file model-config.yaml --export-path ."


class BenchmarkFailed(Exception):
    """A figure that cannot be measured; the message says why."""


@dataclass(frozen=True)
class Measured:
    """All figures: seconds of wall-clock time, bytes of files."""

    buckets: int
    rebuild_s: float
    """Seconds of `neuron-lstm archive` with the new weights."""
    replace_s: float
    """Seconds of `neuron-lstm replace-weights`, verification included."""
    differing: int
    """Answers of the two archives that are not equal bit for bit."""
    compared: int
    """Answers that were compared."""
    compile_one_s: float
    """Seconds of all programs, compiled one after the other in one process."""
    compile_parallel_s: float
    processes: int
    """The number of processes that compile at once."""
    archive_bytes: int
    weights_bytes: int

    @property
    def replace_ratio(self) -> float:
        """The time of replacing the weights, as a part of the rebuild's time."""
        return self.replace_s / self.rebuild_s

    @property
    def compile_ratio(self) -> float:
        """The time of one process, as a multiple of the time of several processes."""
        return self.compile_one_s / self.compile_parallel_s

    @property
    def copies(self) -> float:
        """The archive's size in copies of the weights; each program could have had one copy."""
        return self.archive_bytes / self.weights_bytes


def main(arguments: list[str] | None = None) -> int:
    """Measure and report. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.archives", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    options = parser.parse_args(arguments)
    reason = get_backend("inductor").unavailable()
    if reason is not None:
        raise BenchmarkFailed(f"inductor cannot compile here: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        measured = _measure(Path(folder))
    found = standings(measured)
    if options.json:
        print(json.dumps(_as_json(measured, found), indent=2))
    else:
        _print(measured, found, Console())
    return 1 if missed(found) else 0


def standings(measured: Measured) -> list[Standing]:
    """Return the standings of everything that has a floor.

    >>> figures = Measured(12, 100.0, 10.0, 0, 48, 90.0, 50.0, 2, 11_000_000, 10_000_000)
    >>> [standing.reached for standing in standings(figures)]
    ['aim', 'aim', 'aim']
    """
    return [
        Standing("answers that differ from the rebuilt archive's", measured.differing, 0, 0, "less"),
        Standing("time of new weights, as a part of a full rebuild's", measured.replace_ratio, 0.999, 0.3, "less"),
        Standing("size of the archive, in copies of the weights", measured.copies, 1.999, 1.5, "less"),
    ]


def _measure(folder: Path) -> Measured:
    (folder / "model.py").write_text(SOURCE)
    (folder / "model-config.yaml").write_text(CONFIG)
    names: dict[str, Any] = {}
    exec(SOURCE, names)  # noqa: S102 - as written above
    for seed, file in ((0, "weights.pt"), (1, "new.pt")):
        torch.manual_seed(seed)
        torch.save(names["Tagger"]().state_dict(), folder / file)
    _tell("packaging with the old weights")
    _archive(folder, "old", "weights.pt")
    _tell("packaging with the new weights")
    rebuild_s = _seconds(lambda: _archive(folder, "rebuilt", "new.pt"))
    _tell("replacing the weights")
    replace_s = _seconds(lambda: _run(folder, "replace-weights", "old.mar", "new.pt", "-o", "replaced.mar"))
    compared = _compare(folder / "replaced.mar", folder / "rebuilt.mar")
    one, several = _compile(names["Tagger"]().eval(), folder)
    return Measured(
        buckets=len(load_config(folder / "model-config.yaml").grid.buckets),
        rebuild_s=rebuild_s,
        replace_s=replace_s,
        differing=sum(not same for same in compared),
        compared=len(compared),
        compile_one_s=one,
        compile_parallel_s=several,
        processes=available_cores(),
        archive_bytes=(folder / "replaced.mar").stat().st_size,
        weights_bytes=(folder / "new.pt").stat().st_size,
    )


def _archive(folder: Path, name: str, weights: str) -> None:
    _run(folder, "archive", "--model-name", name, "--serialized-file", weights, *FLAGS.split())


def _run(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "torchserve_neuron_lstm.archiver_ext.cli", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkFailed(f"neuron-lstm {words[0]}: {done.stderr}")


def _seconds(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _compare(one: Path, other: Path) -> list[bool]:
    """Whether the answers of each bucket to the same ragged batch are equal bit for bit."""
    with ArchiveReader(one).unpacked() as first, ArchiveReader(other).unpacked() as second:
        ours, theirs = load_archive(first, 1), load_archive(second, 1)
        return [
            torch.equal(a[0], b[0])
            for place in range(len(ours.manifest.grid.buckets))
            for a, b in zip(_answers(ours, place), _answers(theirs, place), strict=True)
        ]


def _answers(variants: LoadedArchive, place: int) -> list[tuple[torch.Tensor, ...]]:
    """Run every batch in one bucket: each archive has other costs, so its plans may differ."""
    bucket = variants.manifest.grid.buckets[place]
    rng = torch.Generator().manual_seed(place)
    lengths = [int(torch.randint(1, LONGEST + 1, (), generator=rng)) for _ in range(bucket.batch)]
    requests = [[torch.randint(0, TOKENS, (length,), generator=rng)] for length in lengths]
    return variants.run_plan(single_bucket_plan(bucket, lengths, variants.manifest.kind), requests, lengths)[0]


def _compile(model: nn.Module, folder: Path) -> tuple[float, float]:
    """Seconds to compile all programs in one process, and in one process for each core."""
    config = load_config(folder / "model-config.yaml")
    parts = lower(model, config).parts
    files = {part: folder / f"{part}.pt2" for part in parts}
    for part, program in parts.items():
        torch.export.save(program, files[part])

    def run(most: int | None) -> None:
        jobs = compile_jobs([get_backend("inductor")], files, config.grid, folder / f"compiled{most}")
        with compile_processes(folder / f"scratch{most}", most) as processes:
            results = compile_all(jobs, processes, lambda _: None)
        failed = [f"{result.job}: {result.reason}" for result in results if isinstance(result, CompileFailure)]
        if failed:
            raise BenchmarkFailed("\n".join(failed))

    _tell("compiling in one process")
    one = _seconds(lambda: run(1))
    _tell("compiling in several processes")
    return one, _seconds(lambda: run(None))


def _tell(text: str) -> None:
    """Print the progress to standard error, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def _as_json(measured: Measured, found: list[Standing]) -> dict[str, Any]:
    ratios = {name: getattr(measured, name) for name in ("replace_ratio", "compile_ratio", "copies")}
    return {**asdict(measured), **ratios, "standings": standings_json(found)}


def _print(measured: Measured, found: list[Standing], console: Console) -> None:
    table = plain_table(f"An archive of {measured.buckets} buckets, by inductor")
    table.add_column("")
    table.add_column("", justify="right")
    size = measured.weights_bytes / 1e6
    for what, value in (
        ("a full rebuild with new weights", f"{measured.rebuild_s:.1f} s"),
        ("replace-weights, verified again", f"{measured.replace_s:.1f} s"),
        ("  as a part of the rebuild", f"{measured.replace_ratio:.3f}"),
        ("answers compared bit for bit", f"{measured.compared}"),
        ("  that differ", f"{measured.differing}"),
        ("all programs compiled in one process", f"{measured.compile_one_s:.1f} s"),
        (f"  in {measured.processes} at once", f"{measured.compile_parallel_s:.1f} s"),
        ("  times faster", f"{measured.compile_ratio:.2f}"),
        ("one copy of the weights", f"{size:.1f} MB"),
        (f"  {measured.buckets} copies", f"{measured.buckets * size:.1f} MB"),
        ("the archive", f"{measured.archive_bytes / 1e6:.1f} MB"),
    ):
        table.add_row(what, value)
    console.print(table)
    console.print(standings_table(found))
    console.print("\n".join(missed(found)) or "every floor holds", highlight=False)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkFailed as failed:
        sys.exit(f"the benchmark failed: {failed}")
