import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torchserve_neuron_lstm.backends import cpp_compiler, target_machine
from torchserve_neuron_lstm.backends.interface import LoadError
from torchserve_neuron_lstm.backends.native.instruction_sets import InstructionSet, instruction_sets


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "program"
    folder.mkdir()
    for name in ("a.so", "b.so", "program.json"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def noexec(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the named folders be on a file system mounted noexec, and no other one."""

    def mount(*folders: Path) -> None:
        monkeypatch.setattr(target_machine, "_is_noexec", lambda place: place in folders)

    return mount


def test_code_that_may_be_mapped_where_it_is_is_not_copied(directory: Path, noexec: Callable[..., None]) -> None:
    noexec()
    with target_machine.executable_copy(directory, ["a.so", "b.so"]) as mapped:
        assert mapped == directory


def test_a_copy_has_the_named_files_and_is_removed(
    directory: Path, tmp_path: Path, noexec: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    noexec(directory)
    with target_machine.executable_copy(directory, ["a.so", "b.so"]) as mapped:
        assert mapped.parent == place
        assert {file.name: file.read_text() for file in mapped.iterdir()} == {"a.so": "a.so", "b.so": "b.so"}

    assert list(place.iterdir()) == []
    assert len(list(directory.iterdir())) == 3


def test_a_place_that_is_missing_or_noexec_too_is_passed_over(
    directory: Path, tmp_path: Path, noexec: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    run = tmp_path / "run"
    for folder in (home, run):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    monkeypatch.setenv("HOME", str(home))
    noexec(directory, run)
    with target_machine.executable_copy(directory, ["a.so"]) as mapped:
        assert mapped.parent == home


def test_noexec_everywhere_is_refused_with_the_way_out(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(directory.parent))
    monkeypatch.setattr(target_machine, "_is_noexec", lambda place: True)
    message = rf"{directory} is on .* mounted noexec.*none of {directory.parent}, .*set TMPDIR to a directory"

    with pytest.raises(LoadError, match=message), target_machine.executable_copy(directory, ["a.so"]):
        pass


CPUINFO_NAMES = {
    "bmi": "bmi1", "crc32": "sse4_2", "gcc_have_sync_compare_and_swap_16": "cx16", "lahf_sahf": "lahf_lm",
    "lzcnt": "abm", "sse3": "pni",
}  # fmt: skip
"""Names of instructions in /proc/cpuinfo, where they differ from the compiler's."""


def instructions(isa: str) -> set[str]:
    """The groups of instructions that the compiler may use for this set, by their names in /proc/cpuinfo."""
    command = [cpp_compiler.compiler(), f"-march={isa}", "-dM", "-E", "-x", "c++", "/dev/null"]
    macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {line.split()[1].strip("_").lower() for line in macros if not line.startswith("#define __FP_FAST_")}
    return {CPUINFO_NAMES.get(name, name) for name in names}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names are those of x86-64")
@pytest.mark.parametrize("one", instruction_sets(), ids=lambda one: one.isa)
def test_all_instructions_that_the_compiler_may_use_are_checked(one: InstructionSet) -> None:
    """LZCNT is among them: without it the processor computes something else, and no signal tells."""
    checked = target_machine.cpu_target().cpu_flags | one.cpu_flags

    assert instructions(one.isa) - instructions("x86-64") == checked


@pytest.mark.parametrize(("needed", "runs"), [("2.9", True), ("2.31", True), ("2.32", False), ("3.1", False)])
def test_an_old_c_library_is_refused_with_the_way_out(needed: str, runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader's own message would name a symbol alone. Versions are compared as numbers."""
    monkeypatch.setattr(target_machine, "_glibc", lambda: "2.31")
    packaged = {**target_machine.host(), "GLIBC": needed}
    if runs:
        target_machine.check_host(packaged)
        return
    with pytest.raises(LoadError, match=rf"need glibc {needed}, this host has 2\.31: package the model again on"):
        target_machine.check_host(packaged)


@pytest.mark.parametrize("flag", sorted(target_machine.cpu_target().cpu_flags))
def test_a_processor_that_lacks_one_instruction_is_refused(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = target_machine.host()
    have = target_machine.cpu_target().cpu_flags - {flag}
    monkeypatch.setattr(target_machine, "cpu_flags", lambda: have)

    with pytest.raises(LoadError, match=f"this host's lacks {flag}: package the model again"):
        target_machine.check_host(packaged)


@pytest.mark.parametrize(("what", "value"), [("system", "darwin"), ("machine", "riscv64"), ("isa", "x86-64-v9")])
def test_code_of_another_kind_of_machine_is_refused(what: str, value: str) -> None:
    target_machine.check_host(target_machine.host())
    with pytest.raises(LoadError, match=rf"compiled for .*{value}.*package the model again.*onnxruntime"):
        target_machine.check_host({**target_machine.host(), what: value})


def test_a_machine_that_code_is_not_compiled_for_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target_machine.unsupported_reason() is None
    flags = target_machine.cpu_target().cpu_flags
    lacking = min(flags)
    monkeypatch.setattr(target_machine, "cpu_flags", lambda: flags - {lacking})
    assert f"this machine's CPU lacks {lacking}, so" in str(target_machine.unsupported_reason())
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "this is linux on riscv64" in str(target_machine.unsupported_reason())
