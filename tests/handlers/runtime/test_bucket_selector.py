import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_archive import make_archive, make_model

from torchserve_neuron_lstm.config.manifest import ManifestError, read_manifest
from torchserve_neuron_lstm.config.manifest_writer import manifest_text
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive
from torchserve_neuron_lstm.handlers.runtime.user_code import load_bucket_selector

LARGEST = '''
"""The largest bucket for whatever is longer than the file beside it says."""
from pathlib import Path

LIMIT = int(Path("limit.txt").read_text())


def choose(length, lengths):
    assert lengths == (4, 8)
    return 0 if length <= LIMIT else 1


def too_short(length, lengths):
    return 0
'''


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / "my_kernel.py").write_text(LARGEST)
    (folder / "limit.txt").write_text("2")
    yield make_archive(folder, kernel="my_kernel:choose")
    sys.modules.pop("my_kernel", None)


def test_batches_are_planned_by_it_where_there_is_one(archive: Path) -> None:
    variants, model = load_archive(archive, threads=1), make_model()
    lengths = [3, 2, 8, 1]
    requests = [[torch.arange(length)] for length in lengths]

    plan = variants.plan(lengths)

    assert {run.bucket.length: set(run.rows) for run in plan.calls} == {8: {0, 2}, 4: {1, 3}}
    for (sums,), (ids,) in zip(variants.run_plan(plan, requests, lengths)[0], requests, strict=True):
        torch.testing.assert_close(sums, model(ids[None], torch.tensor([len(ids)]))[0][0])
    assert load_bucket_selector(None, read_manifest(archive).grid.lengths, archive) is None


@pytest.mark.parametrize(
    ("kernel", "complaint"),
    [
        ("my_kernel:too_short", "5 timesteps: 0, which is the length 4: too short"),
        ("my_kernel:other", "AttributeError"),
        ("no_kernel:choose", "No module named 'no_kernel'"),
        ("json:dumps", "another module of this name is already imported"),
    ],
)
def test_one_that_cannot_be_served_by_is_told_while_loading(archive: Path, kernel: str, complaint: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        load_bucket_selector(kernel, read_manifest(archive).grid.lengths, archive)

    assert f"kernel {kernel}: " in str(refused.value)
    assert complaint in str(refused.value)


def test_a_manifest_has_one_for_whole_sequences_in_buckets_alone(archive: Path) -> None:
    """Other archives would not call it."""
    with pytest.raises(ManifestError, match="kernel: expected none except"):
        manifest_text(replace(read_manifest(archive), shapes="any"))
