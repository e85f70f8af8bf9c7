"""Key of a cached program: everything that decides what is compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchserve_neuron_lstm.backends.compilation.job import CompileJob
from torchserve_neuron_lstm.backends.compile_cache.key import program_key
from torchserve_neuron_lstm.backends.interface import CompileSettings
from torchserve_neuron_lstm.backends.registry import ENGINES
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.partitioner import PartitionerConfig

JOB = CompileJob("inductor", "sequence", Bucket(2, 4), Path("a.pt2"), Path("a"), content="c0ffee")


def test_places_do_not_count() -> None:
    """Another packaging has other folders."""
    assert program_key(JOB) == program_key(replace(JOB, program=Path("b.pt2"), directory=Path("b"))) is not None


@pytest.mark.parametrize(
    "other",
    [
        replace(JOB, content="decaf"),
        replace(JOB, backend="native"),
        replace(JOB, part="chunk"),
        replace(JOB, bucket=Bucket(4, 2)),
        replace(JOB, bucket=None),
        replace(JOB, settings=CompileSettings(precision="bfloat16")),
        replace(JOB, settings=CompileSettings(args=("-O1",))),
    ],
)
def test_each_fact_of_a_job_counts(other: CompileJob) -> None:
    """Program, engine, role, bucket, precision and arguments."""
    assert program_key(other) not in (None, program_key(JOB))


@pytest.mark.parametrize(
    "unknown",
    [
        replace(JOB, content=None),
        replace(JOB, backend="of another distribution"),
        replace(JOB, partitioner=PartitionerConfig()),
        replace(JOB, settings=CompileSettings(workdir=Path("kept"))),
        replace(JOB, settings=CompileSettings(python=Path("python"))),
        *(replace(JOB, backend=name) for name in ("vollo", "neuron", "neuronx")),
    ],
)
def test_what_cannot_be_known_is_not_cached(unknown: CompileJob) -> None:
    """Other distributions, accelerators, partitioned programs, and compilers that leave files."""
    assert program_key(unknown) is None


def test_compilers_and_their_environment_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another compiler, or a variable that one reads, makes another program."""
    keys = {program_key(JOB)}
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", "/nowhere")
    keys.add(program_key(JOB))
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexit 0\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    keys.add(program_key(JOB))

    assert len(keys) == 3


def test_engines_with_weights_in_their_programs_are_not_cached() -> None:
    """Their toolchain is not given, so new weights never find an old program."""
    assert {name for name, spec in ENGINES.items() if spec.toolchain is None} == {"vollo", "neuronx", "neuron"}
