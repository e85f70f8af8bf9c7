"""Compilation with a cache: a program is compiled once, and the cached one answers the same."""

from __future__ import annotations

from pathlib import Path

import torch

from torchserve_neuron_lstm.backends.compilation.job import CompileFailure, CompileJob, CompileResult
from torchserve_neuron_lstm.backends.compilation.pool import compile_all
from torchserve_neuron_lstm.backends.compilation.processes import compile_processes
from torchserve_neuron_lstm.backends.compile_cache.program_digest import program_digest
from torchserve_neuron_lstm.backends.registry import get_backend


class Times(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.number * x,)


def compiled(number: int, folder: Path, cache: Path | None) -> CompileResult:
    """Compile a program that multiplies by a number."""
    folder.mkdir()
    program = torch.export.export(Times(number), (torch.zeros(2),))
    torch.export.save(program, folder / "program.pt2")
    job = CompileJob("eager", "chunk", None, folder / "program.pt2", folder / "out", content=program_digest(program))
    with compile_processes(folder / "scratch") as processes:
        (outcome,) = compile_all([job], processes, lambda result: None, cache=cache)
    assert not isinstance(outcome, CompileFailure)
    answer = get_backend("eager").load(job.directory, {}, {}, 1)([torch.ones(2)])[0].tolist()
    assert answer == [float(number)] * 2
    return outcome


def test_a_program_is_compiled_once(tmp_path: Path) -> None:
    """Another program is compiled again, and a damaged entry too."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)

    assert not compiled(2, tmp_path / "a", cache).cached
    assert compiled(2, tmp_path / "b", cache).cached
    assert not compiled(3, tmp_path / "c", cache).cached
    for file in cache.rglob("program.py"):
        file.write_text("raise SystemExit('evil')")
    assert not compiled(2, tmp_path / "d", cache).cached
    assert compiled(2, tmp_path / "e", cache).cached


def test_without_a_cache_everything_is_compiled(tmp_path: Path) -> None:
    """This is how the tracing APIs compile."""
    assert not compiled(2, tmp_path / "a", None).cached
    assert not compiled(2, tmp_path / "b", None).cached
