"""New weights in an archive's programs give the answers of a rebuilt archive, or no file is written."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchserve_neuron_lstm.archiver_ext import archive_command, cli, model_archiver
from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.archiver_ext.archive.writer import rewrite_manifest
from torchserve_neuron_lstm.config.file_digests import digest_files
from torchserve_neuron_lstm.config.manifest import Manifest, manifest_text, read_manifest, write_manifest
from torchserve_neuron_lstm.config.streaming import StreamingConfig
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive
from torchserve_neuron_lstm.inference.reader import ArchiveReader
from torchserve_neuron_lstm.lowering.chunks.streaming import with_weight_digests

from ..conftest import MODEL, Project, save_weights

Package = Callable[[str], Path]
Said = tuple[int, str, str]
Replace = Callable[..., Said]

ENGINES = '''
import torch
from torchserve_neuron_lstm.backends.eager import Eager


class Stubborn(Eager):
    """Keeps the weights that it was compiled with, and tells nobody."""
    name = "stubborn"

    def load(self, directory, weights, host, threads):
        return super().load(directory, {**weights, **torch.load(directory / "inside.pt")}, host, threads)


class Inlines(Stubborn):
    """The same, and says so."""
    name = "inlines"
    inlines_weights = True
'''


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with an archive for the eager engine, and weights that were trained further."""
    folder, temporary = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("temporary")
    project = Project(folder, temporary)
    (folder / "model.py").write_text(MODEL)
    save_weights(project)
    trained_further(folder)
    project.configure()
    done = project.archive()
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def project(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of the user's folder, which a test may change."""
    made = Project(tmp_path / "project", tmp_path / "temporary")
    shutil.copytree(built, made.folder)
    made.temporary.mkdir()
    monkeypatch.chdir(made.folder)
    monkeypatch.setenv("TMPDIR", str(made.temporary))
    monkeypatch.setattr("tempfile.tempdir", str(made.temporary))
    return made


@pytest.fixture
def package(project: Project, capfd: pytest.CaptureFixture[str]) -> Package:
    """Package the folder. Returns the archive."""

    def run(name: str) -> Path:
        given = [*project.flags(), "--handler", "neuron_lstm", "--export-path", str(project.folder)]
        flags = model_archiver.parse([*given, "--model-name", name])
        assert archive_command.archive(flags, model_archiver.manifest_json(flags)) == 0, capfd.readouterr().err
        capfd.readouterr()
        return model_archiver.archive_path(project.folder, flags)

    return run


@pytest.fixture
def replace_weights(project: Project, capfd: pytest.CaptureFixture[str]) -> Replace:
    """Run the command in the folder. Returns exit code, standard output and error."""

    def run(*words: object) -> Said:
        return cli.main(["replace-weights", *map(str, words)]), *capfd.readouterr()

    return run


def trained_further(folder: Path) -> None:
    """Write weights of the same names, shapes and dtypes."""
    rng = torch.Generator().manual_seed(1)
    old = torch.load(folder / "weights.pt")
    torch.save(
        {key: tensor + 0.5 * torch.randn(tensor.shape, generator=rng) for key, tensor in old.items()}, folder / "new.pt"
    )


def as_format(archive: Path, suffix: str) -> Path:
    """The same archive in another format, as made by `--archive-format`."""
    with ArchiveReader(archive).unpacked() as folder:
        if suffix == "":
            return Path(shutil.copytree(folder, archive.with_suffix("")))
        if suffix == ".tar.gz":
            named = Path(shutil.copytree(folder, folder.parent / "tiny"))
            return Path(shutil.make_archive("tiny", "gztar", named.parent, named.name)).absolute()
    if suffix == ".stored":
        with zipfile.ZipFile(archive) as old, zipfile.ZipFile("stored.mar", "w", zipfile.ZIP_STORED) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        return Path("stored.mar").absolute()
    return archive


def answers(archive: Path) -> list[tuple[torch.Tensor, ...]]:
    """The answers to one batch of ragged sequences."""
    lengths = [4, 1, 3, 2]
    with ArchiveReader(archive).unpacked() as folder:
        variants = load_archive(folder, threads=1)
        requests = [[(torch.arange(length) * 5 + length) % 11] for length in lengths]
        found, _ = variants.run_plan(variants.plan(lengths), requests, lengths)
    return [tuple(tensor.clone() for tensor in answer) for answer in found]


def manifest_of(archive: Path) -> Manifest:
    """The manifest of an archive, whose files must match its digests."""
    with ArchiveReader(archive).unpacked() as folder:
        manifest = read_manifest(folder)
        assert manifest.files == digest_files(folder)
    return manifest


def entries(archive: Path) -> dict[str, object]:
    """Every file of an archive, with its form of compression."""
    if archive.is_dir():
        return {
            path.relative_to(archive).as_posix(): path.read_bytes() for path in archive.rglob("*") if path.is_file()
        }
    if archive.suffix == ".mar":
        with zipfile.ZipFile(archive) as file:
            return {entry.filename: (file.read(entry), entry.compress_type) for entry in file.infolist()}
    with tarfile.open(archive) as tar:
        kept = {entry.name.partition("/")[2]: tar.extractfile(entry) for entry in tar if entry.isfile()}
        return {name: file.read() for name, file in kept.items() if file is not None}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "backend",
    ["native", *(pytest.param(name, marks=pytest.mark.long) for name in ("inductor", "eager", "onnxruntime"))],
)
def test_the_answers_are_those_of_a_rebuilt_archive_bit_for_bit(
    project: Project, package: Package, replace_weights: Replace, backend: str
) -> None:
    """The old archive and the measured costs are unchanged."""
    model = project.folder / "model.py"
    model.write_text(model.read_text().replace("self.head(answers), state[-1]", "self.head(answers)"))
    project.configure(backend=backend, batch=[1], length=[4])
    config = project.folder / "model-config.yaml"
    config.write_text(config.read_text().replace("[logits, final]", "[logits]"))
    old = package("old")
    before = old.read_bytes()

    code, output, error = replace_weights(old, "new.pt", "-o", "replaced.mar", "--json")

    assert code == 0, error
    shutil.copy("new.pt", "weights.pt")
    replaced, rebuilt = answers(project.folder / "replaced.mar"), answers(package("rebuilt"))
    for ours, theirs, past in zip(replaced, rebuilt, answers(old), strict=True):
        assert all(map(torch.equal, ours, theirs))
        assert not any(map(torch.equal, ours, past))
    assert old.read_bytes() == before
    known, now = manifest_of(old), manifest_of(project.folder / "replaced.mar")
    assert (now.costs, now.padding_costs) == (known.costs, known.padding_costs)
    assert (len(now.padding_costs) > 0) == (backend == "native")
    assert now.variants == known.variants
    told = json.loads(output)
    assert [check["max_error"] for check in told["checks"]] == [check.max_error for check in now.checks]
    assert [check["before"] for check in told["checks"]] == [check.max_error for check in known.checks]
    assert max(check.max_error for check in now.checks) <= 1e-4


@pytest.mark.parametrize("suffix", [".mar", ".stored", ".tar.gz", ""])
@pytest.mark.parametrize("in_place", [True, False])
def test_every_other_file_of_an_archive_stays_as_it_was(
    project: Project, replace_weights: Replace, suffix: str, in_place: bool
) -> None:
    """Each format is tried, in the place of the old archive or beside it; no other file remains."""
    old = as_format(project.folder / "tiny.mar", suffix)
    known, listing = entries(old), project.listing()
    target = old if in_place else old.with_name(f"other-{old.name}")

    code, output, error = replace_weights(old, "new.pt", *([] if in_place else ["-o", target]))

    assert code == 0, error
    assert "nothing was compiled" in output
    found = entries(target)
    assert list(found) == list(known)
    changed = {name for name in found if found[name] != known[name]}
    assert changed == {"weights.pt", "variants.json", "SHA256SUMS"}
    manifest_of(target)
    allowed = set() if in_place else {name for name in project.listing() if name.startswith(str(target))}
    assert project.listing() - listing == allowed


def test_weights_of_another_format_are_written_in_the_archives(project: Project, replace_weights: Replace) -> None:
    """The archive names its weights file, so the name is kept."""
    save_file(torch.load("new.pt"), "new.safetensors")

    assert replace_weights("tiny.mar", "new.pt", "-o", "one.mar")[0] == 0
    assert replace_weights("tiny.mar", "new.safetensors", "-o", "other.mar")[0] == 0

    for ours, theirs in zip(answers(Path("one.mar")), answers(Path("other.mar")), strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_a_stream_is_told_from_that_of_the_old_weights(project: Project, replace_weights: Replace) -> None:
    """Other weights change the id of the state; with the old ones, old sessions can continue again."""
    old = Path("tiny.mar")
    state = with_weight_digests("0123456789abcdef" * 2, [manifest_of(old).files["weights.pt"]])
    settings = StreamingConfig().settings(state)
    rewrite_manifest(old, manifest_text(replace(manifest_of(old), streaming=settings)), Path("old.mar"))

    code, output, error = replace_weights("old.mar", "new.pt", "-o", "new.mar")
    assert code == 0, error
    assert replace_weights("new.mar", "weights.pt", "-o", "again.mar")[0] == 0

    assert "they start again" in output
    assert state_of(Path("new.mar"))[:16] == state[:16]
    assert state_of(Path("new.mar")) != state == state_of(Path("again.mar"))


def state_of(archive: Path) -> str:
    """The digest of the state: it decides which sessions the archive can continue."""
    streaming = manifest_of(archive).streaming
    assert streaming is not None
    return streaming.state


def renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Remove a name, add an unknown one, and change a shape and a dtype."""
    return {
        **{name: tensor for name, tensor in weights.items() if name != "head.bias"},
        "head.scale": torch.zeros(3),
        "head.weight": torch.zeros(4, 6),
        "embedding.weight": weights["embedding.weight"].double(),
    }


def test_all_that_differs_is_named_at_once(project: Project, replace_weights: Replace) -> None:
    """Names, shapes and dtypes are listed with the expected ones."""
    old = Path("tiny.mar")
    torch.save(renamed(torch.load("new.pt")), "new.pt")
    before, listing = old.read_bytes(), project.listing()

    code, output, error = replace_weights(old, "new.pt")

    assert (code, output) == (1, "")
    for line in (
        "head.bias: missing, expected float32 [3]",
        "head.scale: float32 [3], expected no weight of this name",
        "head.weight: float32 [4, 6], expected float32 [3, 6]",
        "embedding.weight: float64 [11, 5], expected float32 [11, 5]",
    ):
        assert line in error
    assert "package the model again" in error
    assert (old.read_bytes(), project.listing()) == (before, listing)


def no_file(archive: Path) -> Sequence[object]:
    """Remove the new weights."""
    return [archive, "nowhere.pt"]


def rubbish(archive: Path) -> Sequence[object]:
    """Write a file that contains no weights."""
    Path("new.pt").write_bytes(b"rubbish")
    return [archive, "new.pt"]


def not_a_number(archive: Path) -> Sequence[object]:
    """Write weights for which the model has no finite answer."""
    torch.save({name: tensor * float("nan") for name, tensor in torch.load("weights.pt").items()}, "new.pt")
    return [archive, "new.pt"]


def no_archive(archive: Path) -> Sequence[object]:
    """Write a file that is no archive."""
    return ["new.pt", "new.pt"]


def damaged(archive: Path) -> Sequence[object]:
    """Change a file of the archive."""
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile("damaged.mar", "w") as new:
        for entry in old.infolist():
            new.writestr(entry, b"# other" if entry.filename == "model.py" else old.read(entry))
    return ["damaged.mar", "new.pt"]


def no_weights(archive: Path) -> Sequence[object]:
    """Package the model without weights."""
    rewrite_manifest(archive, manifest_text(replace(manifest_of(archive), weights=None)), Path("none.mar"))
    return ["none.mar", "new.pt"]


def no_place(archive: Path) -> Sequence[object]:
    """Name a folder that does not exist."""
    return [archive, "new.pt", "-o", "nowhere/new.mar"]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (no_file, "there is no weights file nowhere.pt"),
        (rubbish, "new.pt is damaged"),
        (not_a_number, "new.pt: 7 of 7 weights hold NaN or infinite numbers"),
        (no_archive, "no variants.json"),
        (damaged, "model.py was changed"),
        (no_weights, "the archive has no weights"),
        (no_place, "nowhere/new.mar cannot be written: there is no folder nowhere: make it"),
    ],
)
def test_a_refusal_is_one_message_and_writes_nothing(
    project: Project, replace_weights: Replace, spoil: Callable[[Path], Sequence[object]], complaint: str
) -> None:
    """The old archive is unchanged, and there is no new file beside it."""
    old = Path("tiny.mar")
    words = spoil(old)
    before, listing = old.read_bytes(), project.listing()

    code, output, error = replace_weights(*words)

    assert (code, output) == (1, "")
    assert complaint in error
    assert error.count("error:") == 1
    assert "Traceback" not in error
    assert (old.read_bytes(), project.listing()) == (before, listing)


def test_the_new_weights_are_not_replaced_by_an_archive(project: Project, replace_weights: Replace) -> None:
    """A slip of the command line costs no training."""
    weights = project.folder / "weights.pt"
    before = weights.read_bytes()
    code, _, error = replace_weights("tiny.mar", "weights.pt", "-o", "weights.pt")

    assert (code, "weights.pt is the file of weights: give another file with -o" in error) == (1, True)
    assert weights.read_bytes() == before


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [("inlines", "inlines compiles the weights into its programs"), ("stubborn", "stubborn differs from the model")],
)
def test_programs_with_weights_inside_are_refused(
    project: Project,
    replace_weights: Replace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    engine: str,
    complaint: str,
) -> None:
    """The engine's property decides or, without it, the programs' answers."""
    install_engines(tmp_path / "site", monkeypatch)
    folder = as_format(project.folder / "tiny.mar", "")
    for program in (folder / "programs" / "eager").glob("*/*"):
        shutil.copy("weights.pt", program / "inside.pt")
    facts = replace(read_manifest(folder), backend=engine, files=digest_files(folder))
    write_manifest(facts, folder)
    write_list(folder)
    before, listing = entries(folder), project.listing()

    code, _, error = replace_weights(folder, "new.pt")

    assert code == 1
    assert complaint in error
    assert (entries(folder), project.listing()) == (before, listing)


def install_engines(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install engines of another distribution."""
    (site / "stubborn-1.dist-info").mkdir(parents=True)
    (site / "stubborn_engines.py").write_text(ENGINES)
    (site / "stubborn-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: stubborn\nVersion: 1\n")
    (site / "stubborn-1.dist-info" / "entry_points.txt").write_text(
        "[torchserve_neuron_lstm.backends]\nstubborn = stubborn_engines:Stubborn\ninlines = stubborn_engines:Inlines\n"
    )
    monkeypatch.syspath_prepend(site)


def test_no_code_of_a_changed_archive_is_run(project: Project, replace_weights: Replace, tmp_path: Path) -> None:
    """All files are compared before the model's file, which would import the added one, is imported."""
    archive, ran = project.folder / "tiny.mar", tmp_path / "ran"
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("sympy.py", f"open({str(ran)!r}, 'w')")

    code, _, error = replace_weights(archive, "new.pt")

    assert code == 1
    assert "sympy.py is not in SHA256SUMS" in error
    assert not ran.exists()
