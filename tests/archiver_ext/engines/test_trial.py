"""Which programs an engine compiles, and where they lie in the archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.engines.trial import jobs_for
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.grid import BucketGrid
from torchserve_neuron_lstm.bucketing.spec import Part

GRID = BucketGrid((1, 4), (8, 16))


def compiled(backend: str, *parts: Part) -> dict[str, str]:
    """The folder of each program that is compiled, with its file."""
    programs = {part: Path(f"{part}.pt2") for part in parts}
    jobs = jobs_for([get_backend(backend)], programs, GRID, Path("work"))
    assert all(job.program == programs[job.part] for job in jobs)
    return {str(job.directory): str(job) for job in jobs}


@pytest.mark.parametrize("parts", [("sequence",), ("chunk",), ("chunk", "head"), ("chunk", "start", "head")])
def test_an_engine_for_every_shape_compiles_each_part_once(parts: tuple[Part, ...]) -> None:
    """Whatever the grid."""
    assert compiled("eager", *parts) == {f"work/programs/eager/{part}/any": f"eager {part} any shape" for part in parts}


def test_an_engine_of_fixed_shapes_compiles_pieces_by_the_grid_and_ends_by_its_batches() -> None:
    """What begins and what ends has no time."""
    assert compiled("inductor", "chunk", "start", "head") == {
        "work/programs/inductor/chunk/b1_t8": "inductor chunk 1 x 8",
        "work/programs/inductor/chunk/b1_t16": "inductor chunk 1 x 16",
        "work/programs/inductor/chunk/b4_t8": "inductor chunk 4 x 8",
        "work/programs/inductor/chunk/b4_t16": "inductor chunk 4 x 16",
        "work/programs/inductor/start/b1_t1": "inductor start 1 x 1",
        "work/programs/inductor/start/b4_t1": "inductor start 4 x 1",
        "work/programs/inductor/head/b1_t1": "inductor head 1 x 1",
        "work/programs/inductor/head/b4_t1": "inductor head 4 x 1",
    }
