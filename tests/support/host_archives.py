"""Archives for the tests of hosts, and the service of each in this process."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from archiving import archived, write_source
from served_models import SCORER, SCORING, TAGGER, TAGGING, scoring

from torchserve_neuron_lstm import open_archive
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.open_service import Host, open_service
from torchserve_neuron_lstm.handlers.service import Service

KEY_VARIABLE = "ROAMING_KEY"
"""The environment variable with the key of session tokens, which all hosts share."""


def _streaming(store: str) -> str:
    return scoring("{batch: [1, 8], length: [16]}", "backend: native", f"streaming: {{store: {store}}}")


MODELS = {
    "scorer": (SCORER, SCORING),
    "tagger": (TAGGER, TAGGING),
    "stream": (SCORER, _streaming("disk")),
    "roaming": (SCORER, _streaming(f"client, key_env: {KEY_VARIABLE}")),
}
"""File and configuration of each model."""


@dataclass(frozen=True)
class Archives:
    """The folder of the archives, and that of the sessions on disk."""

    folder: Path
    sessions: Path

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.mar"


def package(folder: Path, work: Path) -> None:
    """Package all models by the standard command."""
    for name, (file, block) in MODELS.items():
        archived(write_source(work / name, file, block), name, folder)


def in_process(archives: Archives, names: Iterable[str]) -> Iterator[tuple[str, Service]]:
    """The service of each archive in this process, by the installed package's code."""
    for name in names:
        opened = open_archive(archives.path(name), threads=1)
        model = ModelIdentity(name, "1.0")
        host = Host(opened.directory, model, 6_553_500, 120_000.0, lambda *_: None, dict(os.environ), threads=1)
        yield name, open_service(host)


def assert_scores_of_the_whole(archives: Archives, frames: np.ndarray, pieces: Sequence[np.ndarray]) -> None:
    """Compare the scores of a session's pieces with those of the whole sequence, by the model without sessions."""
    with open_archive(archives.path("scorer"), threads=1) as model:
        (whole,) = model.predict([frames], as_numpy=True)
    assert isinstance(whole, np.ndarray)
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-5)
