from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_archive import GRID, make_model

from torchserve_neuron_lstm.bucketing.grid import Bucket
from torchserve_neuron_lstm.config.manifest import read_manifest, write_manifest
from torchserve_neuron_lstm.handlers.variants import load_variants


def change_manifest(archive: Path, **facts: object) -> None:
    """Write the archive's manifest anew with other facts."""
    write_manifest(replace(read_manifest(archive), **facts), archive)  # type: ignore[arg-type]


def test_every_bucket_gives_the_eager_models_answer(pristine: Path) -> None:
    """Whatever lies in the padding."""
    variants, model = load_variants(pristine, threads=1), make_model()
    ids = torch.randint(0, 20, (3,))
    for bucket in GRID.buckets:
        padded = torch.full(tuple(bucket), 7)
        padded[-1, :3] = ids
        lengths = torch.full((bucket.batch,), 3)

        (sums,) = variants.run(bucket, [padded, lengths])

        torch.testing.assert_close(sums[-1, :3], model(ids[None], lengths[:1])[0][0])


def test_costs_are_those_measured_or_a_stand_in_until_they_are(archive: Path) -> None:
    """Packaging loads an archive before it has measured it."""
    assert load_variants(archive, threads=1).cost.of(Bucket(4, 8)) == 0.5

    unmeasured = tuple(replace(one, milliseconds=0.0) for one in read_manifest(archive).variants)
    change_manifest(archive, variants=unmeasured)

    assert load_variants(archive, threads=1).cost.of(Bucket(4, 8)) > 0


def test_the_weights_are_loaded_once_for_all_variants(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program gets the same tensors."""
    seen = []

    class Recording:
        def load(self, directory: Path, weights: dict[str, torch.Tensor], host: object, threads: int) -> object:
            seen.append((directory.name, weights["embed.weight"].data_ptr(), threads))
            return lambda inputs: [torch.zeros(*inputs[0].shape, 3)]

    monkeypatch.setattr("torchserve_neuron_lstm.handlers.variants.get_backend", lambda name: Recording())
    apart = tuple(replace(one, directory=f"programs/{one.bucket.batch}") for one in read_manifest(archive).variants)
    change_manifest(archive, variants=apart)

    load_variants(archive, threads=3)

    assert [name for name, _, _ in seen] == ["1", "4"]
    assert len({pointer for _, pointer, _ in seen}) == 1
    assert {threads for _, _, threads in seen} == {3}


def test_a_program_that_answers_other_than_declared_does_not_load(archive: Path) -> None:
    """It is run once before the first request."""
    output = replace(read_manifest(archive).outputs[0], shape=("batch", "time", 4))
    change_manifest(archive, outputs=(output,))

    with pytest.raises(RuntimeError, match="declares output 'sums'"):
        load_variants(archive, threads=1)


@pytest.mark.parametrize("file", ["weights.pt", "codec_of_tests.py", "torchserve_neuron_lstm/handlers/service.py"])
def test_a_changed_or_missing_file_stops_the_load_and_is_named(archive: Path, file: str) -> None:
    """Any file of the archive."""
    content = (archive / file).read_bytes()
    (archive / file).write_bytes(content + b" ")
    with pytest.raises(RuntimeError, match=file):
        load_variants(archive, threads=1)
    (archive / file).unlink()
    with pytest.raises(RuntimeError, match=file):
        load_variants(archive, threads=1)


def test_a_missing_engine_stops_the_load_and_says_what_to_install(archive: Path) -> None:
    """With the version it was packaged with."""
    change_manifest(archive, requires=(("no-such-engine", "no_such_engine", "1.2.3"),))

    with pytest.raises(RuntimeError, match=r"pip install no-such-engine==1\.2\.3"):
        load_variants(archive, threads=1)


def test_threads_are_the_callers_or_the_manifests_or_all_cores(archive: Path) -> None:
    """In that order."""
    change_manifest(archive, threads=2)

    assert load_variants(archive, threads=1).threads == 1
    assert load_variants(archive).threads == 2
