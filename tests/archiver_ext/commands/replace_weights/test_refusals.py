import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchserve_neuron_lstm.archiver_ext.archive.writer import rewrite_manifest
from torchserve_neuron_lstm.config.manifest_writer import manifest_text

from ...conftest import Project
from .archive_files import Replace, manifest_of


def renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        **{name: tensor for name, tensor in weights.items() if name != "head.bias"},
        "head.scale": torch.zeros(3),
        "head.weight": torch.zeros(4, 6),
        "embedding.weight": weights["embedding.weight"].double(),
    }


def test_all_that_differs_is_named_at_once(project: Project, replace_weights: Replace) -> None:
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


def rubbish(archive: Path) -> Sequence[object]:
    Path("new.pt").write_bytes(b"rubbish")
    return [archive, "new.pt"]


def not_a_number(archive: Path) -> Sequence[object]:
    torch.save({name: tensor * float("nan") for name, tensor in torch.load("weights.pt").items()}, "new.pt")
    return [archive, "new.pt"]


def damaged(archive: Path) -> Sequence[object]:
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile("damaged.mar", "w") as new:
        for entry in old.infolist():
            new.writestr(entry, b"# other" if entry.filename == "model.py" else old.read(entry))
    return ["damaged.mar", "new.pt"]


def no_weights(archive: Path) -> Sequence[object]:
    rewrite_manifest(archive, manifest_text(replace(manifest_of(archive), weights=None)), Path("none.mar"))
    return ["none.mar", "new.pt"]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda archive: [archive, "nowhere.pt"], "there is no weights file nowhere.pt"),
        (rubbish, "new.pt is damaged"),
        (not_a_number, "new.pt: 7 of 7 weights hold NaN or infinite numbers"),
        (lambda archive: ["new.pt", "new.pt"], "no variants.json"),
        (damaged, "model.py was changed"),
        (no_weights, "the archive has no weights"),
        (
            lambda archive: [archive, "new.pt", "-o", "nowhere/new.mar"],
            "nowhere/new.mar cannot be written: there is no folder nowhere: make it",
        ),
    ],
)
def test_a_refusal_is_one_message_and_writes_nothing(
    project: Project, replace_weights: Replace, spoil: Callable[[Path], Sequence[object]], complaint: str
) -> None:
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


def test_no_code_of_a_changed_archive_is_run(project: Project, replace_weights: Replace, tmp_path: Path) -> None:
    """All files are compared before the model's file, which would import the added one, is imported."""
    archive, ran = project.folder / "tiny.mar", tmp_path / "ran"
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("sympy.py", f"open({str(ran)!r}, 'w')")

    code, _, error = replace_weights(archive, "new.pt")

    assert code == 1
    assert "sympy.py is not in SHA256SUMS" in error
    assert not ran.exists()
