"""Digests of the files of an archive's tree."""

from __future__ import annotations

from pathlib import Path

from torchserve_neuron_lstm.archiver_ext.archive.file_list import digest_files


def test_digests_are_those_of_the_files_that_are_archived(tmp_path: Path) -> None:
    files = {
        "weights.pt": "w",
        "programs/inductor/b1_t16/model.so": "so",
        "MAR-INF/MANIFEST.json": "{}",
        "__pycache__/model.pyc": "x",
        "programs/.hidden/file": "x",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)

    assert digest_files(tmp_path) == {
        "programs/inductor/b1_t16/model.so": "a1d9890884c1b4b960c279cfe7554a900d169422d6cec980beef67761487d3b9",
        "weights.pt": "50e721e49c013f00c62cf59f2163542a9d8df02464efeb615d31051b0fddc326",
    }
