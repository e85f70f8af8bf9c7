import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from native_layers import isas_here

from torchserve_neuron_lstm.backends import cpp_compiler, target_machine
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.instruction_sets import fastest_library, instruction_sets

pytestmark = pytest.mark.xdist_group(f"kernel-{isas_here()[0]}")


@pytest.mark.long
def test_every_host_that_is_asked_for_finds_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_libraries_are_small_and_need_nothing_but_the_systems_own(tmp_path: Path) -> None:
    """They are carried in every archive."""
    build.build(tmp_path)
    for library in tmp_path.iterdir():
        needs = subprocess.run(["readelf", "-dS", str(library)], capture_output=True, text=True, check=True).stdout
        names = {line.split("[")[1].split(".so")[0] for line in needs.splitlines() if "(NEEDED)" in line}

        assert names <= {"libstdc++", "libm", "libgcc_s", "libc", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
        assert ".debug" not in needs
        assert library.stat().st_size < 200_000


def test_a_compiler_that_refuses_the_source_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        CompileError, match=f"old-g\\+\\+ does not compile the recurrent library for {isa}: k.cpp:42: error: no such"
    ):
        build.build(out)
    assert list(out.iterdir()) == []


COMPILER = """\
#!/bin/sh
for word; do file=$word; done
[ "$file" = -v ] && exit
echo compiled >> "$0.log"
cp "$0" "$file"
"""


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of compilations of one library, after one more build of it by a compiler of this test."""
    compiler, source = tmp_path / "c++", tmp_path / "source"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    source.mkdir()
    (source / "recurrence.cpp").write_text("")
    monkeypatch.setattr(cpp_compiler, "strip", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))

    def build_again() -> int:
        content = build._library.__wrapped__(str(compiler), source / "recurrence.cpp", instruction_sets()[-1])
        assert content == compiler.read_bytes()
        return len((tmp_path / "c++.log").read_text().splitlines())

    return build_again


def test_a_library_is_compiled_once(compilations: Callable[[], int], tmp_path: Path) -> None:
    assert [compilations(), compilations()] == [1, 1]

    folder = tmp_path / "caches" / "torchserve-neuron-lstm"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("change", ["source", "compiler", "variable"])
def test_what_decides_the_library_decides_its_name(
    compilations: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    compilations()
    if change == "variable":
        monkeypatch.setenv("CPATH", str(tmp_path))
    else:
        with (tmp_path / ("source/recurrence.cpp" if change == "source" else "c++")).open("a") as file:
            file.write("# changed\n")

    assert [compilations(), compilations()] == [2, 2]


@pytest.mark.parametrize("kind", ["open to others", "of another user", "link", "file", "without a home"])
def test_a_folder_that_is_not_private_is_not_used(
    compilations: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Others could replace the code in it; each packaging compiles, and changes nothing there."""
    folder = tmp_path / "caches" / "torchserve-neuron-lstm"
    folder.mkdir(mode=0o700, parents=True)
    if kind == "open to others":
        folder.chmod(0o755)
    elif kind == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    elif kind == "link":
        folder.rename(tmp_path / "real")
        folder.symlink_to(tmp_path / "real")
    elif kind == "file":
        folder.rmdir()
        folder.write_text("mine")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "relative, which the specification says to ignore")
        monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))

    assert [compilations(), compilations()] == [1, 2]
    assert folder.read_text() == "mine" if kind == "file" else list(folder.iterdir()) == []


def test_a_disk_that_fails_is_no_error(
    compilations: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", Mock(side_effect=OSError(28, "No space left on device")))
        assert compilations() == 1

    assert list((tmp_path / "caches" / "torchserve-neuron-lstm").iterdir()) == []
    assert [compilations(), compilations()] == [2, 2]
