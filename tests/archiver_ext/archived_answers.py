"""Unpacked archives, and their answers beside those of the model."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from torchserve_neuron_lstm.handlers.runtime.loader import LoadedArchive, load_archive

from .conftest import Project


def unpacked(archive: Path, into: Path) -> Path:
    if archive.is_dir():
        return archive
    shutil.unpack_archive(archive, into, "zip" if archive.suffix == ".mar" else "gztar")
    return into if archive.suffix == ".mar" else into / "tiny"


def answers(folder: Path, lengths: Sequence[int] = (3,)) -> list[tuple[torch.Tensor, ...]]:
    """The answers of an unpacked archive to a batch of sequences of these lengths."""
    variants = load_archive(folder, threads=1)
    return variants.run_plan(variants.plan(lengths), [[sequence(length)] for length in lengths], lengths)[0]


def sequence(length: int) -> torch.Tensor:
    return (torch.arange(length) * 7 + length) % 11


def right_answers(project: Project, lengths: Sequence[int] = (3,)) -> list[tuple[torch.Tensor, ...]]:
    """The answers of the user's model to each sequence alone."""
    names: dict[str, type[torch.nn.Module]] = {}
    exec((project.folder / "model.py").read_text(), names)
    weights = torch.load(project.folder / "weights.pt")
    model = names["Tiny"](weights["lstm.weight_hh_l0"].shape[1])
    model.load_state_dict(weights)
    with torch.no_grad():
        both = [model.eval()(sequence(length)[None], torch.tensor([length])) for length in lengths]
    return [(logits[0], final[0]) for logits, final in both]


def check_answers(project: Project, folder: Path, lengths: Sequence[int] = (3,)) -> None:
    for ours, theirs in zip(answers(folder, lengths), right_answers(project, lengths), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def largest_difference(archive: LoadedArchive, model: torch.nn.Module, lengths: Sequence[int]) -> float:
    """The largest difference between a ragged batch's answers and the model's for each sequence alone."""
    sequences = [(torch.arange(length) * 7 + length) % 50 for length in lengths]
    answers, _ = archive.run_plan(archive.plan(lengths), [[ids] for ids in sequences], lengths)
    alone = [model(ids[None], torch.tensor([len(ids)])) for ids in sequences]
    return max(
        float((ours - theirs[0]).abs().max())
        for answer, right in zip(answers, alone, strict=True)
        for ours, theirs in zip(answer, right if isinstance(right, tuple) else (right,), strict=True)
    )
