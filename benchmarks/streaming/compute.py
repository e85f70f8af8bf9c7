"""Cost of one more timestep, compared with running all of them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from torchserve_neuron_lstm.archiver_ext.commands.timing import TimingConfig, time_interleaved
from torchserve_neuron_lstm.bucketing.execute_chunks import ResumedState
from torchserve_neuron_lstm.handlers.runtime.loader import LoadedArchive, load_archive
from torchserve_neuron_lstm.inference.reader import ArchiveReader

from ..rest.model import TokenClassifier
from .archive import PREFIX

TOLERANCE = 1e-5


class WrongAnswer(RuntimeError):
    """A step whose answer differs from the model's: its time means nothing."""


@dataclass(frozen=True)
class Compute:
    """Milliseconds of one batch, without a server."""

    rows: int
    step_us: float
    """Microseconds of the next timestep of each session."""
    whole_us: float
    """Microseconds of all timesteps of each sequence."""

    @property
    def ratio(self) -> float:
        """The ratio of the time of all timesteps to the time of the next one."""
        return self.whole_us / self.step_us


def measure_compute(archive: Path, model: TokenClassifier, rows: Sequence[int], rounds: int) -> list[Compute]:
    """Measure both in turns, on one thread, for each number of rows.

    Raises:
        WrongAnswer: the two differ from the model.
    """
    with ArchiveReader(archive).unpacked() as directory:
        variants = load_archive(directory, threads=1)
        return [_measured(variants, model, count, rounds) for count in rows]


def _measured(variants: LoadedArchive, model: TokenClassifier, rows: int, rounds: int) -> Compute:
    torch.set_num_threads(1)
    ids = torch.randint(model.embed.num_embeddings, (rows, PREFIX))
    fresh, wholes, ones = ResumedState((), (), ()), [PREFIX] * rows, [1] * rows
    plan = variants.plan([PREFIX - 1] * rows)
    _, carried = variants.run_plan(plan, [(row[:-1],) for row in ids], [PREFIX - 1] * rows, resumed=fresh)
    past = ResumedState(tuple(range(rows)), (PREFIX - 1,) * rows, carried)
    whole = partial(_whole, variants, [(row,) for row in ids], wholes)
    step = partial(_step, variants, [(row[-1:],) for row in ids], ones, past)
    with torch.inference_mode():
        expected = model(ids, torch.tensor(wholes))
    for what, answers in (("a step", step()), ("a whole sequence", whole())):
        if not torch.allclose(torch.stack([one for (one,) in answers]), expected, rtol=TOLERANCE, atol=TOLERANCE):
            raise WrongAnswer(f"{what} is not answered as the model does, {rows} rows")
    taken = time_interleaved({"step": step, "whole": whole}, TimingConfig(rounds=rounds))
    return Compute(rows, *(1e6 * median(taken[name]) for name in ("step", "whole")))


def _step(
    variants: LoadedArchive, chunks: Sequence[tuple[torch.Tensor, ...]], lengths: Sequence[int], past: ResumedState
) -> list[tuple[torch.Tensor, ...]]:
    """Run one step as the server does: plan, run, and put the carried state in the order of the sessions."""
    answers, _ = variants.run_plan(variants.plan(lengths), chunks, lengths, resumed=past)
    return answers


def _whole(
    variants: LoadedArchive, sequences: Sequence[tuple[torch.Tensor, ...]], lengths: Sequence[int]
) -> list[tuple[torch.Tensor, ...]]:
    return variants.run_plan(variants.plan(lengths), sequences, lengths)[0]
