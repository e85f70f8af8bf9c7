"""The example of docs/python.md works, and the names on the page exist."""

import re
from pathlib import Path
from typing import Any

import pytest
from tiny_archive import as_mar, make_archive

from torchserve_neuron_lstm.inference import open_archive, values
from torchserve_neuron_lstm.inference.errors import ArchiveError

TEXT = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLE, _ = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
"""The second one is run by tests/test_sessions_doc.py."""


def test_the_example_answers_each_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ids are those of a larger vocabulary."""
    as_mar(make_archive(tmp_path / "folder"), tmp_path / "tagger.mar")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}

    exec(EXAMPLE.replace("99", "9"), scope)

    assert [len(answer) for answer in scope["scores"]] == [3, 1]


def test_every_public_name_is_on_the_page() -> None:
    public = [name for name in vars(open_archive.OpenArchive) if not name.startswith("_")]
    errors = [ArchiveError.__name__, values.InvalidSequence.__name__]

    assert [name for name in [*public, *errors] if name not in TEXT] == ["close"]
