"""Each engine packages the tiny model in its own way, and `auto` keeps the fastest."""

import io
import json
from pathlib import Path

import odd_engines
import pytest
from rich.console import Console

from torchserve_neuron_lstm.archiver_ext import cli
from torchserve_neuron_lstm.archiver_ext.commands.inspect import print_manifest
from torchserve_neuron_lstm.bucketing.errors import SequenceTooLong
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.inference.reader import ArchiveReader

from .archived_answers import answers, check_answers, unpacked
from .conftest import Package, Project


def hosted(project: Project, package: Package, host: Path) -> tuple[Path, str]:
    """The unpacked archive of a project, and the report of its packaging."""
    code, output, error = package()
    assert code == 0, error
    return unpacked(project.folder / "tiny.mar", host), output


@pytest.mark.ci
def test_an_engine_of_another_distribution_serves_by_name(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    odd_engines.use(monkeypatch, tmp_path / "site")
    project.configure(backend="good")

    code, output, error = package("--json")

    assert code == 0, error
    (engine,) = json.loads(output)["engines"]
    assert engine["backend"] == "good"
    pieces, ends = [[1, 2], [1, 4], [2, 2], [2, 4]], [[1, 1], [2, 1]]
    programs = [(program["part"], program["bucket"]) for program in engine["programs"]]
    assert sorted(programs) == [*(("chunk", bucket) for bucket in pieces), *(("head", bucket) for bucket in ends)]
    assert len(engine["variants"]) == len(pieces)


@pytest.mark.ci
def test_a_simulated_engine_is_told_by_its_compilers_estimates(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    odd_engines.use(monkeypatch, tmp_path / "site")
    project.configure(backend="simulated")

    code, output, error = package("--json")
    outcome = json.loads(output)
    console = Console(record=True, width=200, file=io.StringIO())
    calibrated = cli.main(["calibrate", outcome["archive"]])
    manifest = ArchiveReader(Path(outcome["archive"])).manifest()
    print_manifest(manifest, console)

    assert code == 0, error
    assert calibrated == 1
    assert outcome["simulation"] == "simulated by this processor: there is no such device"
    assert [one["estimate_us"] for one in outcome["engines"][0]["variants"]] == [2.5, 2.5, 5.0, 5.0]
    assert [one["milliseconds"] for one in outcome["engines"][0]["variants"]] == [0.0025, 0.0025, 0.005, 0.005]
    assert (manifest.kind, manifest.kind_reason) == ("sequence", "its device has no memory")
    assert (outcome["runs_as"], outcome["runs_reason"]) == (manifest.kind, manifest.kind_reason)
    assert [variant.estimate_us for variant in manifest.variants] == [2.5, 2.5, 5.0, 5.0]
    (row,) = (line.split("│") for line in console.export_text().splitlines() if "2 x 4" in line)
    assert row[3].strip() == ""
    assert row[6].strip() == "5.00"


@pytest.mark.ci
def test_auto_goes_on_without_a_compiler_and_says_so(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    project.configure(backend="auto")

    folder, output = hosted(project, package, tmp_path / "host")

    assert [path.name for path in (folder / "programs").iterdir()] == ["onnxruntime"]
    assert "native was rejected: there is no C++ compiler no-such-compiler" in output
    assert "inductor" not in output
    assert "onnxruntime in float32" in output
    assert "cuda" not in output


@pytest.mark.timeout(300)
def test_native_archives_run_whole_sequences_of_any_length(project: Project, package: Package, tmp_path: Path) -> None:
    project.configure(backend="native", batch=[1, 8], length=[4, 8], longest=50)
    said = "native stops each row at its own end, so chunked execution would save nothing"

    folder, output = hosted(project, package, tmp_path / "host")

    assert f"without sessions: {said}" in output
    assert "at their own length" in output
    manifest = read_manifest(folder)
    assert (manifest.kind, manifest.shapes, manifest.carried) == ("sequence", "any", ())
    assert manifest.kind_reason == said
    assert {variant.directory for variant in manifest.variants} == {"programs/native/sequence/any"}
    assert {cost.bucket for cost in manifest.padding_costs} == {cost.bucket for cost in manifest.costs}
    engines = {path.name for path in (folder / "torchserve_neuron_lstm" / "backends").iterdir()}
    assert {"native", "module_program.py"} <= engines
    assert not {"inductor.py", "onnxruntime.py", "vollo"} & engines
    console = Console(record=True, width=200, file=io.StringIO())
    print_manifest(manifest, console)
    assert f"runs as     sequence: {said}" in console.export_text()
    for lengths in ([1], [50], [9, 9], [31, 2, 50, 7, 7, 1, 12, 3, 44]):
        check_answers(project, folder, lengths)
    with pytest.raises(SequenceTooLong, match="51 timesteps"):
        answers(folder, [51])


@pytest.mark.ci
def test_archives_for_any_shape_serve_what_no_bucket_holds(project: Project, package: Package, tmp_path: Path) -> None:
    project.configure(backend="onnxruntime", longest=50)

    folder, _output = hosted(project, package, tmp_path / "host")

    manifest = read_manifest(folder)
    assert (manifest.kind, manifest.shapes, manifest.longest) == ("chunk", "any", 50)
    assert {variant.directory for variant in manifest.variants} == {
        "programs/onnxruntime/chunk/any",
        "programs/onnxruntime/head/any",
    }
    assert {cost.part for cost in manifest.costs} == {"chunk", "head"}
    for lengths in ([1], [50], [9, 9], [31, 2, 50, 7, 7, 1, 12]):
        check_answers(project, folder, lengths)
    with pytest.raises(SequenceTooLong, match="51 timesteps"):
        answers(folder, [51])
