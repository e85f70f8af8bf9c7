import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchserve_neuron_lstm.archiver_ext.archive.writer import rewrite_manifest
from torchserve_neuron_lstm.config.manifest import sha256_of
from torchserve_neuron_lstm.config.manifest_writer import manifest_text
from torchserve_neuron_lstm.config.streaming import StreamingConfig
from torchserve_neuron_lstm.inference.reader import ArchiveReader
from torchserve_neuron_lstm.lowering.chunks.streaming import with_weight_digests

from ...conftest import Project
from .archive_files import Replace, answers, as_format, entries, manifest_of


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "backend",
    ["native", *(pytest.param(name, marks=pytest.mark.long) for name in ("inductor", "eager", "onnxruntime"))],
)
def test_the_answers_are_those_of_a_rebuilt_archive_bit_for_bit(
    project: Project, packaged: Callable[[str], Path], replace_weights: Replace, backend: str
) -> None:
    model = project.folder / "model.py"
    model.write_text(model.read_text().replace("self.head(answers), state[-1]", "self.head(answers)"))
    project.configure(backend=backend, batch=[1], length=[4])
    config = project.folder / "model-config.yaml"
    config.write_text(config.read_text().replace("[logits, final]", "[logits]"))
    old = packaged("old")
    before = old.read_bytes()

    code, output, error = replace_weights(old, "new.pt", "-o", "replaced.mar", "--json")

    assert code == 0, error
    shutil.copy("new.pt", "weights.pt")
    replaced, rebuilt = answers(project.folder / "replaced.mar"), answers(packaged("rebuilt"))
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


@pytest.mark.few(2)
@pytest.mark.parametrize("suffix", [".mar", ".stored", ".tar.gz", ""])
@pytest.mark.parametrize("in_place", [True, False])
def test_every_other_file_of_an_archive_stays_as_it_was(
    project: Project, replace_weights: Replace, suffix: str, in_place: bool
) -> None:
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
    assert replace_weights("tiny.mar", "new.safetensors", "-o", "other.mar", "--version", "2.0")[0] == 0
    assert [ArchiveReader(Path(name)).model_version() for name in ("one.mar", "other.mar")] == ["1.0", "2.0"]
    manifest_of(Path("other.mar"))

    for ours, theirs in zip(answers(Path("one.mar")), answers(Path("other.mar")), strict=True):
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.ci
def test_a_stream_is_told_from_that_of_the_old_weights(project: Project, replace_weights: Replace) -> None:
    old = Path("tiny.mar")
    state = with_weight_digests("0123456789abcdef" * 2, [sha256_of(Path("weights.pt"))])
    settings = StreamingConfig().settings(state)
    rewrite_manifest(old, manifest_text(replace(manifest_of(old), streaming=settings)), Path("old.mar"))

    code, output, error = replace_weights("old.mar", "new.pt", "-o", "new.mar")
    assert code == 0, error
    assert replace_weights("new.mar", "weights.pt", "-o", "again.mar")[0] == 0

    assert "they start again" in output
    assert state_of(Path("new.mar"))[:16] == state[:16]
    assert state_of(Path("new.mar")) != state == state_of(Path("again.mar"))


def state_of(archive: Path) -> str:
    streaming = manifest_of(archive).streaming
    assert streaming is not None
    return streaming.state
