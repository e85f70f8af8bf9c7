import shutil
from dataclasses import replace
from pathlib import Path

import odd_engines
import pytest

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.config.manifest_writer import write_manifest

from ...conftest import Project
from .archive_files import Replace, as_format, entries

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


@pytest.mark.few(1)
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
    odd_engines.use(monkeypatch, tmp_path / "site", ENGINES)
    folder = as_format(project.folder / "tiny.mar", "")
    for program in (folder / "programs" / "eager").glob("*/*"):
        shutil.copy("weights.pt", program / "inside.pt")
    write_manifest(replace(read_manifest(folder), backend=engine), folder)
    write_list(folder)
    before, listing = entries(folder), project.listing()

    code, _, error = replace_weights(folder, "new.pt")

    assert code == 1
    assert complaint in error
    assert (entries(folder), project.listing()) == (before, listing)
