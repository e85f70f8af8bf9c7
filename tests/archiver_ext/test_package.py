"""The standard command makes archives, or gives the reason and leaves no file."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import odd_engines
import pytest
import torch
from rich.console import Console

from torchserve_neuron_lstm.archiver_ext import archive_command, cli, model_archiver
from torchserve_neuron_lstm.archiver_ext.commands.inspect import print_manifest
from torchserve_neuron_lstm.bucketing.errors import SequenceTooLong
from torchserve_neuron_lstm.config.manifest import digest_files, read_manifest
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive
from torchserve_neuron_lstm.inference.reader import ArchiveReader

from .conftest import BIN, MODEL, Project, save_weights

SERVING_FOLDERS = {"handlers", "bucketing", "backends", "config", "sessions", "__init__.py"}
Packaged = tuple[int, str, str]
Package = Callable[..., Packaged]


@pytest.fixture
def package(project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Package:
    """The commands, run in this process in the user's folder: exit code, standard output and error."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("TMPDIR", str(project.temporary))
    monkeypatch.setattr("tempfile.tempdir", str(project.temporary))

    def run(*more: str) -> Packaged:
        words = [word for word in more if word != "--json"]
        flags = model_archiver.parse(
            [*project.flags(), "--handler", "neuron_lstm", "--export-path", str(project.folder), *words]
        )
        code = archive_command.archive(flags, model_archiver.manifest_json(flags), as_json="--json" in more)
        return code, *capfd.readouterr()

    return run


def unpacked(archive: Path, into: Path) -> Path:
    """An archive, unpacked as on a host."""
    if archive.is_dir():
        return archive
    if archive.suffix == ".mar":
        with zipfile.ZipFile(archive) as file:
            file.extractall(into)
        return into
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return into / "tiny"


def answers(folder: Path, lengths: Sequence[int] = (3,)) -> list[tuple[torch.Tensor, ...]]:
    """The answers of an unpacked archive to a batch of sequences of these lengths."""
    variants = load_archive(folder, threads=1)
    return variants.run_plan(variants.plan(lengths), [[sequence(length)] for length in lengths], lengths)[0]


def sequence(length: int) -> torch.Tensor:
    """Some ids."""
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
    """Check that an unpacked archive answers a batch as the user's model answers each sequence alone."""
    for ours, theirs in zip(answers(folder, lengths), right_answers(project, lengths), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_the_stock_command_makes_a_whole_archive_and_tells_what_is_in_it(project: Project, tmp_path: Path) -> None:
    """The archive holds the user's files, the serving half and the programs; no other file has changed."""
    precious = project.temporary / "tiny" / "precious.txt"  # the unmodified archiver would delete it
    precious.parent.mkdir()
    precious.write_text("mine")
    before = project.listing()

    done = project.archive()

    assert done.returncode == 0, done.stderr
    for told in ("1 x 2", "compile s", "max error", "measured ms", "requests are padded"):
        assert told in done.stdout
    assert re.search("compile 1/2: eager (chunk|head) any shape", done.stderr)
    assert "runs as chunk: each chunk of time passes lstm.h, lstm.c to the next" in done.stdout
    assert project.listing() - before == {str(project.folder / "tiny.mar")}
    folder = unpacked(project.folder / "tiny.mar", tmp_path / "host")
    assert json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())["model"] == {
        "modelName": "tiny",
        "serializedFile": "weights.pt",
        "handler": "neuron_lstm",
        "modelFile": "model.py",
        "modelVersion": "1.0",
        "configFile": "model-config.yaml",
    }
    assert {path.name for path in (folder / "torchserve_neuron_lstm").iterdir()} == SERVING_FOLDERS
    assert {path.name for path in (folder / "torchserve_neuron_lstm" / "config").iterdir()} == {
        "__init__.py",
        "json_codec.py",
        "manifest.py",
        "request_limits.py",
    }
    assert "inductor.py" not in {path.name for path in (folder / "torchserve_neuron_lstm" / "backends").iterdir()}
    assert (folder / "weights.pt").read_bytes() == (project.folder / "weights.pt").read_bytes()
    assert read_manifest(folder).files == digest_files(folder)
    check_answers(project, folder)


@pytest.mark.parametrize(
    ("archive_format", "name"),
    [("default", "tiny.mar"), ("zip-store", "tiny.mar"), ("tgz", "tiny.tar.gz"), ("no-archive", "tiny")],
)
def test_every_archive_format_unpacks_to_what_was_verified(
    project: Project, package: Package, tmp_path: Path, archive_format: str, name: str
) -> None:
    """Each can be loaded where it is unpacked; zip-store does not compress."""
    code, _, error = package("--archive-format", archive_format)

    assert code == 0, error
    archive = project.folder / name
    check_answers(project, unpacked(archive, tmp_path / "host"), (3, 1, 4))
    if archive.suffix == ".mar":
        with zipfile.ZipFile(archive) as file:
            methods = {entry.compress_type for entry in file.infolist() if entry.filename != "MAR-INF/MANIFEST.json"}
        assert methods == {zipfile.ZIP_STORED if archive_format == "zip-store" else zipfile.ZIP_DEFLATED}


def test_an_archive_that_exists_is_refused_before_anything_is_done(project: Project, package: Package) -> None:
    """Without -f, not even the model's file is read."""
    (project.folder / "tiny.mar").write_text("old")
    (project.folder / "model.py").write_text("raise SystemError('read')")

    code, _, error = package()

    assert code == 1
    assert "tiny.mar already exists" in error
    assert "--force" in error
    assert (project.folder / "tiny.mar").read_text() == "old"


def test_force_replaces_a_folder_as_a_whole(
    project: Project, package: Package, caplog: pytest.LogCaptureFixture
) -> None:
    """The new archive contains no file of the old one."""
    (project.folder / "tiny").mkdir()
    (project.folder / "tiny" / "stale.py").write_text("old")

    code, _, error = package("--archive-format", "no-archive", "-f")

    assert code == 0, error
    assert "Overwriting" in caplog.text
    assert not (project.folder / "tiny" / "stale.py").exists()
    assert (project.folder / "tiny" / "variants.json").is_file()
    assert not list(project.folder.glob(".*"))


def test_force_keeps_the_old_archive_when_packaging_fails(
    project: Project, package: Package, caplog: pytest.LogCaptureFixture
) -> None:
    """It is replaced at the end, in one step."""
    (project.folder / "tiny.mar").write_text("old")
    (project.folder / "weights.pt").write_bytes(b"rubbish")

    code, *_ = package("-f")

    assert code == 1
    assert "Overwriting" not in caplog.text
    assert (project.folder / "tiny.mar").read_text() == "old"


def no_config(project: Project) -> list[str]:
    """Name a config file that does not exist."""
    (project.folder / "model-config.yaml").unlink()
    return []


def bad_config(project: Project) -> list[str]:
    """Write a key that TorchServe would ignore, and an empty one."""
    (project.folder / "model-config.yaml").write_text("batchSize: many\nneuron_lstm: {}\n")
    return []


def packed_answer(project: Project) -> list[str]:
    """Write a model that returns packed data."""
    (project.folder / "model.py").write_text(MODEL.replace("self.head(answers), state[-1]", "packed.data"))
    return []


def other_weights(project: Project) -> list[str]:
    """Save a state dict of a larger model."""
    save_weights(project, hidden=7)
    return []


def taken_name(project: Project) -> list[str]:
    """Add an extra file with the name of our manifest."""
    (project.folder / "variants.json").write_text("{}")
    return ["--extra-files", "variants.json"]


def same_name_twice(project: Project) -> list[str]:
    """Add an extra file with the name of the model's file."""
    (project.folder / "more").mkdir()
    (project.folder / "more" / "model.py").write_text("# another")
    return ["--extra-files", "more"]


FAILURES: list[tuple[Callable[[Project], list[str]], str]] = [
    (no_config, "there is no file model-config.yaml"),
    (bad_config, "model-config.yaml:1: batchSize"),
    (packed_answer, "model.py:"),
    (other_weights, "lstm.weight_hh_l0: the model has [24, 6], the file [28, 7]"),
    (taken_name, "variants.json would replace a file"),
    (same_name_twice, "model.py: another file of that name"),
    (lambda project: ["--extra-files", "nowhere.txt"], "nowhere.txt"),
    (lambda project: ["--requirements-file", "nowhere.txt"], "there is no file nowhere.txt"),
    (lambda project: ["--export-path", "nowhere"], "nowhere is not a directory"),
    (lambda project: ["--model-name", "a/b"], "special characters"),
    (lambda project: ["--runtime", "LSP"], "--runtime LSP"),
]


@pytest.mark.parametrize(("spoil", "complaint"), FAILURES, ids=[complaint for _, complaint in FAILURES])
def test_a_refusal_is_one_message_and_leaves_nothing(
    project: Project, package: Package, spoil: Callable[[Project], list[str]], complaint: str
) -> None:
    """Errors in the user's files give no traceback, no archive, and no other file."""
    more = spoil(project)
    before = project.listing()

    code, output, error = package(*more)

    assert (code, output) == (1, "")
    assert complaint in error
    assert error.count("error:") == 1
    assert "Traceback" not in error
    assert project.listing() == before


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ("refuses", r"refuses (?:chunk|head) (\d x \d): no \1 here"),
        ("raises", "ValueError: something odd"),
        ("dies", "ended by SIGABRT"),
        ("unusable", "no such chip here; buy one"),
        ("absent", "there is no backend 'absent'"),
        ("wrong", "in 2 of 4 buckets"),
    ],
)
def test_a_named_engine_that_fails_stops_the_packaging(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str, complaint: str
) -> None:
    """A third-party engine that fails is named, and no file remains."""
    site = odd_engines.install(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", site)
    project.configure(backend=engine)
    before = project.listing()

    code, output, error = package()

    assert (code, output) == (1, "")
    assert re.search(complaint, error)
    assert project.listing() == before


def test_a_wrong_result_is_reported_for_every_bucket(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The table of errors names bucket, result, error and output."""
    site = odd_engines.install(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", site)
    project.configure(backend="wrong")

    _, _, error = package()

    rows = [line.split() for line in error.splitlines() if line.startswith("  ") and " x " in line]
    assert [(row[:3], row[3]) for row in rows] == [
        (["1", "x", "2"], "passed"),
        (["1", "x", "4"], "passed"),
        (["2", "x", "2"], "failed"),
        (["2", "x", "4"], "failed"),
    ]
    # the carry is wrong too, so that a second chunk has a larger error than the first
    assert 0.00999 <= float(rows[2][4]) < 0.1


def test_an_engine_of_another_distribution_serves_by_name(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is compiled, verified and measured like our own; the archive holds none of our engines."""
    site = odd_engines.install(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", site)
    project.configure(backend="good")

    code, output, error = package("--json")

    assert code == 0, error
    (engine,) = json.loads(output)["engines"]
    assert engine["backend"] == "good"
    pieces, ends = [[1, 2], [1, 4], [2, 2], [2, 4]], [[1, 1], [2, 1]]
    programs = [(program["part"], program["bucket"]) for program in engine["programs"]]
    assert sorted(programs) == [*(("chunk", bucket) for bucket in pieces), *(("head", bucket) for bucket in ends)]
    assert len(engine["variants"]) == len(pieces)


def test_a_simulated_engine_is_told_by_its_compilers_estimates(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Plans, table and `inspect` use the compiler's estimates.

    The time of a simulation says nothing about the device.
    """
    site = odd_engines.install(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", site)
    project.configure(backend="simulated")

    code, output, error = package("--json")
    outcome = json.loads(output)
    console = Console(record=True, width=200, file=io.StringIO())
    calibrated = cli.main(["calibrate", outcome["archive"]])
    manifest = json.loads(ArchiveReader(Path(outcome["archive"])).manifest_json())
    print_manifest(manifest, console)

    assert code == 0, error
    assert calibrated == 1
    assert outcome["simulation"] == "simulated by this processor: there is no such device"
    assert [one["estimate_us"] for one in outcome["engines"][0]["variants"]] == [2.5, 2.5, 5.0, 5.0]
    assert [one["milliseconds"] for one in outcome["engines"][0]["variants"]] == [0.0025, 0.0025, 0.005, 0.005]
    assert (manifest["kind"], manifest["kind_reason"]) == ("sequence", "its device has no memory")
    assert [variant["estimate_us"] for variant in manifest["variants"]] == [2.5, 2.5, 5.0, 5.0]
    (row,) = (line.split("│") for line in console.export_text().splitlines() if "2 x 4" in line)
    assert row[3].strip() == ""
    assert row[6].strip() == "5.00"


def test_an_unexpected_error_is_shown_with_its_traceback(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error is shown with its traceback and the place to report it, and leaves no file."""
    monkeypatch.setattr("torchserve_neuron_lstm.archiver_ext.package.lower", lambda model, config: 1 / 0)
    before = project.listing()

    code, _, error = package()

    assert code == 1
    assert "Traceback" in error
    assert "This is a bug" in error
    assert project.listing() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_stopped_command_leaves_nothing(project: Project, tmp_path: Path, number: signal.Signals) -> None:
    """After Ctrl-C or SIGTERM during compilation there is an exit code, and no file or process remains."""
    project.configure(backend="slow")
    pids = tmp_path / "pids"
    before = project.listing()
    with stopped_while_compiling(project, tmp_path, pids, number) as process:
        _, error = process.communicate(timeout=30)

    assert process.returncode == 128 + number
    assert error.strip().endswith(f"stopped by {number.name}; no file was written")
    assert project.listing() == before
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            _until_gone(pid)


def stopped_while_compiling(
    project: Project, folder: Path, pids: Path, number: signal.Signals
) -> subprocess.Popen[str]:
    """The standard command, sent a signal as soon as a compiler runs.

    Compilers write their process ids to `pids`.
    """
    command = [str(BIN / "torch-model-archiver"), *project.flags(), "--handler", "neuron_lstm"]
    env = project.environment(PYTHONPATH=odd_engines.install(folder / "site"), SLOW_PIDS=str(pids))
    process = subprocess.Popen(command, cwd=project.folder, env=env, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 90
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    return process


def _until_gone(pid: int) -> None:
    """Raise ProcessLookupError once the process does not exist; a zombie counts as existing for a while."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.05)


def test_a_program_that_kills_its_process_is_told_and_cleaned_up(project: Project, tmp_path: Path) -> None:
    """The command survives a crash of compiled code."""
    project.configure(backend="crashes")
    before = project.listing()

    done = project.archive(PYTHONPATH=odd_engines.install(tmp_path / "site"))

    assert done.returncode == 1
    assert "error: the process was ended by SIGSEGV while packaging" in done.stderr
    assert project.listing() == before


def test_a_killed_command_takes_the_packaging_with_it(project: Project, tmp_path: Path) -> None:
    """Even SIGKILL, which permits no cleanup, leaves no archive and no process that would write one."""
    project.configure(backend="slow")
    pids = tmp_path / "pids"
    with stopped_while_compiling(project, tmp_path, pids, signal.SIGKILL) as process:
        process.communicate(timeout=30)

    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            _until_gone(pid)
    assert not (project.folder / "tiny.mar").exists()


def test_auto_goes_on_without_a_compiler_and_says_so(
    project: Project, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that need a compiler are reported with the package to install; another engine is kept."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    project.configure(backend="auto")

    code, output, error = package()

    assert code == 0, error
    assert "native was rejected: there is no C++ compiler no-such-compiler" in output
    assert "inductor was rejected: there is no C++ compiler no-such-compiler" in output
    assert "onnxruntime is packaged" in output


@pytest.mark.timeout(300)
def test_auto_tries_each_engine_its_own_way_and_keeps_the_quickest(
    project: Project, package: Package, tmp_path: Path
) -> None:
    """Engines are tried in chunks or over whole sequences, and all are measured.

    The archive holds only the fastest, and the report says so.
    """
    project.configure(backend="auto", batch=[2], length=[4])

    code, output, error = package("--json")

    assert code == 0, error
    told = json.loads(output)
    kept, *others = told["engines"]
    found = {one["backend"]: sorted({program["part"] for program in one["programs"]}) for one in told["engines"]}
    assert found == {"native": ["sequence"], "inductor": ["chunk", "head"], "onnxruntime": ["chunk", "head"]}
    assert kept["total_ms"] <= min(other["total_ms"] for other in others)
    folder = unpacked(project.folder / "tiny.mar", tmp_path / "host")
    manifest = read_manifest(folder)
    assert manifest.backend == told["backend"] == kept["backend"]
    assert [path.name for path in (folder / "programs").iterdir()] == [kept["backend"]]
    assert {variant.part for variant in manifest.variants} == set(found[kept["backend"]])
    whole = kept["backend"] == "native"
    assert manifest.kind == told["runs_as"] == ("sequence" if whole else "chunk")
    assert manifest.kind_reason == told["runs_reason"]
    assert manifest.kind_reason.startswith("native stops each row" if whole else "each chunk of time passes")
    assert (len(manifest.padding_costs) > 0) == whole


@pytest.mark.timeout(300)
def test_a_native_archive_runs_whole_sequences_of_any_length(
    project: Project, package: Package, tmp_path: Path
) -> None:
    """Whole sequences are used although the model can be chunked; the archive holds no other engine.

    The report, the manifest and `inspect` give the reason.
    """
    project.configure(backend="native", batch=[1, 8], length=[4, 8], longest=50)
    said = "native stops each row at its own end, so chunked execution would save nothing"

    code, output, error = package()

    assert code == 0, error
    assert f"runs as sequence: {said}" in output
    folder = unpacked(project.folder / "tiny.mar", tmp_path / "host")
    manifest = read_manifest(folder)
    assert (manifest.kind, manifest.shapes, manifest.carried) == ("sequence", "any", ())
    assert manifest.kind_reason == said
    assert {variant.directory for variant in manifest.variants} == {"programs/native/sequence/any"}
    assert {cost.bucket for cost in manifest.padding_costs} == {cost.bucket for cost in manifest.costs}
    engines = {path.name for path in (folder / "torchserve_neuron_lstm" / "backends").iterdir()}
    assert {"native", "module_program.py"} <= engines
    assert not {"inductor.py", "onnxruntime.py", "vollo"} & engines
    console = Console(record=True, width=200, file=io.StringIO())
    print_manifest(json.loads((folder / "variants.json").read_text()), console)
    assert f"runs as     sequence: {said}" in console.export_text()
    for lengths in ([1], [50], [9, 9], [31, 2, 50, 7, 7, 1, 12, 3, 44]):
        check_answers(project, folder, lengths)
    with pytest.raises(SequenceTooLong, match="51 timesteps"):
        answers(folder, [51])


@pytest.mark.timeout(400)
def test_an_inductor_archive_holds_the_weights_once_and_serves_any_length(
    project: Project, package: Package, tmp_path: Path
) -> None:
    """The archive stays below 1.2 times the weights plus 450 KB for each program.

    A long sequence takes as many buckets as it needs.
    """
    hidden, length = 300, [3, 5]
    save_weights(project, hidden=hidden)
    project.configure(backend="inductor", hidden=hidden, batch=[2], length=length, longest=17)

    code, output, error = package("--archive-format", "zip-store")

    assert code == 0, error
    assert "runs as chunk" in output
    weights = (project.folder / "weights.pt").stat().st_size
    size = (project.folder / "tiny.mar").stat().st_size
    folder = unpacked(project.folder / "tiny.mar", tmp_path / "host")
    manifest = read_manifest(folder)
    assert size <= 1.2 * weights + 450 * 1024 * len(manifest.variants)
    assert (manifest.kind, manifest.shapes, manifest.longest) == ("chunk", "grid", 17)
    assert {variant.directory for variant in manifest.variants} == {
        "programs/inductor/chunk/b2_t3",
        "programs/inductor/chunk/b2_t5",
        "programs/inductor/head/b2_t1",
    }
    for lengths in ([1], [17], [3, 3], [4, 11, 17, 1, 6]):
        check_answers(project, folder, lengths)


def test_an_archive_for_any_shape_serves_what_no_bucket_holds(
    project: Project, package: Package, tmp_path: Path
) -> None:
    """One program for chunks and one for heads serve all lengths up to the longest."""
    project.configure(backend="onnxruntime", longest=50)

    code, output, error = package()

    assert code == 0, error
    assert "runs as chunk: each chunk of time passes lstm.h, lstm.c to the next" in output
    folder = unpacked(project.folder / "tiny.mar", tmp_path / "host")
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


def test_a_model_that_is_not_cut_says_so_and_serves(project: Project, package: Package, tmp_path: Path) -> None:
    """The line that needs the whole sequence is in the report and in the archive."""
    text = MODEL.replace("hidden, batch_first=True)", "hidden, batch_first=True, bidirectional=True)")
    text = text.replace("Linear(hidden, 3)", "Linear(2 * hidden, 3)")
    (project.folder / "model.py").write_text(text)
    names: dict[str, type[torch.nn.Module]] = {}
    exec(text, names)
    torch.manual_seed(0)
    torch.save(names["Tiny"]().state_dict(), project.folder / "weights.pt")
    project.configure(longest=30)

    code, output, error = package()

    assert code == 0, error
    assert re.search(
        r"runs as sequence: the recurrence is bidirectional \(at model\.py:\d+: .*self\.lstm\(packed\)", output
    )
    folder = unpacked(project.folder / "tiny.mar", tmp_path / "host")
    manifest = read_manifest(folder)
    assert (manifest.kind, manifest.shapes, manifest.carried) == ("sequence", "any", ())
    assert manifest.kind_reason in output
    for lengths in ([1], [30], [17, 2, 30, 7, 7]):
        check_answers(project, folder, lengths)


def test_extra_files_keep_their_meaning(project: Project, package: Package, tmp_path: Path) -> None:
    """Wildcards, folders and sub-folders are placed as by the archiver; hidden files are left out."""
    more = project.folder / "more"
    for name in ("words.txt", "deep/er.txt", ".hidden/secret.txt", "__pycache__/old.pyc"):
        (more / name).parent.mkdir(parents=True, exist_ok=True)
        (more / name).write_text(name)
    (project.folder / "requirements.txt").write_text("")

    code, _, error = package("--extra-files", "more,model.p*", "-r", "requirements.txt")

    assert code == 0, error
    folder = unpacked(project.folder / "tiny.mar", tmp_path / "host")
    assert (folder / "words.txt").is_file()
    assert (folder / "deep" / "er.txt").is_file()
    assert not list(folder.rglob("secret.txt"))
    assert (
        json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())["model"]["requirementsFile"]
        == "requirements.txt"
    )
    assert load_archive(folder, threads=1).manifest.files == digest_files(folder)
