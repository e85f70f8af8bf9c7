"""Make the archives of data/. Run by hand, on the commit whose archives are kept. See data/README.md.

python -m tests.contracts.make_archives [NAME ...]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from .projects import ARCHIVES, DATA, PROJECTS, package
from .serving import Job, rows, serve, unpack, values
from .shapes import dump, golden


def main(names: list[str]) -> None:
    """Package the projects, and keep their manifests, archives and answers."""
    for folder in (ARCHIVES, DATA / "manifests"):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / "store").mkdir()
        for name in names:
            package(name, place / "work", place / "store")
            keep(name, place)


def keep(name: str, place: Path) -> None:
    """Write the kept files of one project."""
    file = place / "store" / f"{name}.mar"
    with ZipFile(file) as opened:
        manifest = json.loads(opened.read("variants.json"))
    (DATA / "manifests" / f"{name}.json").write_text(dump(golden(manifest)))
    if PROJECTS[name].archive:
        shutil.copy(file, ARCHIVES)
        (ARCHIVES / f"{name}.json").write_text(dump(answers(name, unpack(file, place / name), place)))


def answers(name: str, folder: Path, place: Path) -> list[Any]:
    """The answers to the requests of every archive, from the archive's own code."""
    (told,) = serve([Job(folder, name, [rows(name)], {"NEURON_LSTM_SESSIONS": str(place / "sessions")})], place)
    assert "error" not in told, told
    (batch,) = told["batches"]
    assert [answer["status"] for answer in batch] == [200] * len(batch), batch
    is_json = "json" in batch[0]["headers"]["content-type"]
    return [values(json.loads(answer["body"])) if is_json else answer["body"] for answer in batch]


if __name__ == "__main__":
    main(sys.argv[1:] or list(PROJECTS))
