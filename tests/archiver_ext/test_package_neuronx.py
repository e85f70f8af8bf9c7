"""The standard command with `backend: neuronx` and a double of the compiler: from files to answers."""

import json
import os
from pathlib import Path

import neuron_doubles
import pytest
import torch
import warm_archiver
from archiving import ARCHIVER, Source, archive, archived, write_source

from torchserve_neuron_lstm.backends.interface import LoadError
from torchserve_neuron_lstm.backends.signature import WrongInput
from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive

from .archived_answers import largest_difference, unpacked

MODEL = '''
import torch


class Classifier(torch.nn.Module):
    """Logits from the last states of a packed LSTM that reads both ways."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.lstm = torch.nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(12, 3)

    def forward(self, ids, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            self.embedding(ids), lengths, batch_first=True, enforce_sorted=False
        )
        _, (h, _) = self.lstm(packed)
        return self.head(torch.cat([h[0], h[1]], 1))
'''
BLOCK = """
inputs: {ids: {dtype: int64, shape: [batch, time]}}
lengths: lengths
outputs: [logits]
buckets: {batch: [3], length: [4, 7]}
backend: neuronx
compiler_args: --target inf2
"""
LENGTHS = [3, 7, 1, 5, 4]


def source_of(place: Path, block: str = BLOCK) -> Source:
    (place / "classifier.py").write_text(MODEL)
    return write_source(place / "user", place / "classifier.py", block)


@pytest.mark.ci
def test_an_archive_answers_as_the_model_on_fixed_shapes(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    with neuron_doubles.on_path():
        archived(source, "classifier", tmp_path)
        host = unpacked(tmp_path / "classifier.mar", tmp_path / "classifier")
        variants = load_archive(host, threads=1)
        difference = largest_difference(variants, source.model, LENGTHS)
        with pytest.raises(WrongInput, match=r"'ids' is int64 \[3, 5\], but .* compiled for int64 \[3, 4\]"):
            variants.run("sequence", Bucket(3, 4), [torch.zeros(3, 5, dtype=torch.int64), torch.ones(3).long()])

    assert difference <= 1e-5
    assert set(variants.programs["sequence"]) == {Bucket(3, 4), Bucket(3, 7)}
    assert {path.name for path in (host / "torchserve_neuron_lstm" / "backends" / "aws_neuron").glob("neuron*")} == {
        "neuronx.py"
    }


@pytest.mark.long
def test_a_compiler_elsewhere_needs_nothing_here(tmp_path: Path) -> None:
    python = neuron_doubles.interpreter(tmp_path)
    source = source_of(tmp_path, f"{BLOCK}compiler_python: {python}\ncompiler_workdir: left\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_DOUBLE_CORES", "0")
        done = archive(source, "classifier", tmp_path)
    host = unpacked(tmp_path / "classifier.mar", tmp_path / "classifier")

    assert done.returncode == 0, done.stdout
    for told in ("emulated", "what was compiled has not run", "`neuron-lstm calibrate`"):
        assert told in done.stdout
    assert len(list((source.folder / "left").rglob("graph.hlo.txt"))) == 2
    costs = json.loads((host / "variants.json").read_text())["costs"]
    assert [cost["milliseconds"] for cost in costs] == [3 * 4 / 1000, 3 * 7 / 1000]  # estimates, not measured
    with pytest.raises(LoadError, match="torch-neuronx is not installed"):
        load_archive(host, threads=1)
    with neuron_doubles.on_path():
        assert largest_difference(load_archive(host, threads=1), source.model, LENGTHS) <= 1e-5

    other = type(source.model)().eval()
    torch.save(other.state_dict(), tmp_path / "other.pt")
    words = ["replace-weights", str(tmp_path / "classifier.mar"), str(tmp_path / "other.pt")]
    command = [str(ARCHIVER.with_name("neuron-lstm")), *words, "-o", str(tmp_path / "other.mar")]
    replaced = warm_archiver.run(command, tmp_path, os.environ)

    assert replaced.returncode == 0, replaced.stderr
    assert "what was compiled has not run" in replaced.stdout + replaced.stderr
    with neuron_doubles.on_path():
        changed = load_archive(unpacked(tmp_path / "other.mar", tmp_path / "other"), threads=1)
        assert largest_difference(changed, other, LENGTHS) <= 1e-5


def test_packaging_without_the_toolchain_says_where_it_comes_from(tmp_path: Path) -> None:
    done = archive(source_of(tmp_path), "classifier", tmp_path)

    assert done.returncode != 0
    assert "neuron_lstm.backend: neuronx cannot be used here: torch-neuronx is not installed" in done.stdout
    assert "pip.repos.neuron.amazonaws.com" in done.stdout
    assert not (tmp_path / "classifier.mar").exists()
