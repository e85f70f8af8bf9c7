"""The user's codec, checked while packaging."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.codec import check_codec
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_class import importable


def test_a_codec_must_be_a_class_in_the_archive(tmp_path: Path) -> None:
    """The reasons have different messages."""
    (tmp_path / "words.py").write_text("class Text:\n    pass\n")
    (tmp_path / "broken.py").write_text("import not_there_at_all\n")
    with importable(tmp_path):
        check_codec("words:Text", tmp_path)
        check_codec(None, tmp_path)
        for codec, complaint in [
            ("missing:Text", "no missing.py in the archive; give it with --extra-files"),
            ("words:Absent", "words.py defines no class Absent"),
            ("broken:Text", "broken.py cannot be imported: ModuleNotFoundError"),
        ]:
            with pytest.raises(PackagingError, match=complaint):
                check_codec(codec, tmp_path)
