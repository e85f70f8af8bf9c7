"""The recurrent library's build: its processors, and the error of a compiler that fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from native_layers import isas_here

from torchserve_neuron_lstm.backends import target_machine
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.instruction_sets import fastest_library, instruction_sets

pytestmark = pytest.mark.xdist_group(f"kernel-{isas_here()[0]}")


@pytest.mark.long
def test_every_host_that_is_asked_for_finds_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest library that a processor can run is among the written ones."""
    build.build(tmp_path)
    written = {file.name for file in tmp_path.iterdir()}
    least = target_machine.cpu_target().cpu_flags
    for one in instruction_sets():
        monkeypatch.setattr(target_machine, "cpu_flags", lambda flags=one.cpu_flags: least | flags)
        assert fastest_library(tmp_path) == one.library
        assert one.library in written
    assert written == {one.library for one in instruction_sets()}


@pytest.mark.skipif(len(instruction_sets()) == 1, reason="this kind of machine has one set of instructions")
def test_half_of_the_larger_instructions_are_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first AVX-512 processors lack some instructions of the library."""
    most, least = instruction_sets()
    for flag in most.cpu_flags:
        have = target_machine.cpu_target().cpu_flags | (most.cpu_flags - {flag})
        monkeypatch.setattr(target_machine, "cpu_flags", lambda have=have: have)
        assert fastest_library(tmp_path) == least.library


@pytest.mark.long
def test_libraries_are_small_and_hold_nothing_for_debuggers(tmp_path: Path) -> None:
    """They travel in every archive."""
    build.build(tmp_path)
    for library in tmp_path.iterdir():
        sections = subprocess.run(["readelf", "-S", str(library)], capture_output=True, text=True, check=True).stdout

        assert ".debug" not in sections
        assert library.stat().st_size < 200_000


def test_libraries_need_nothing_but_the_systems_own(tmp_path: Path) -> None:
    """They need neither OpenMP nor torch's libraries."""
    build.build(tmp_path)
    for library in tmp_path.iterdir():
        needs = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
        names = {line.split("[")[1].split(".so")[0] for line in needs.splitlines() if "(NEEDED)" in line}

        assert names <= {"libstdc++", "libm", "libgcc_s", "libc", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}


def test_a_compiler_that_refuses_the_source_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a compiler without vector extensions: its first error and the instructions are shown."""
    compiler = tmp_path / "old-g++"
    compiler.write_text(
        "#!/bin/sh\necho 'note: x' >&2\necho 'k.cpp:42: error: no such attribute vector_size' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    out = tmp_path / "out"
    out.mkdir()

    isa = instruction_sets()[0].isa
    with pytest.raises(
        CompileError,
        match=f"old-g\\+\\+ does not compile the recurrent library for {isa}: k.cpp:42: error: no such",
    ):
        build.build(out)
    assert list(out.iterdir()) == []


def test_a_compiler_that_says_nothing_is_quoted_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example is a compiler that was killed for its memory."""
    monkeypatch.setenv("CXX", "false")

    with pytest.raises(CompileError, match=r"false does not compile the recurrent library for .*: exit code 1"):
        build.build(tmp_path)
