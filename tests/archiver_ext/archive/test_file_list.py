import hashlib
from pathlib import Path

from torchserve_neuron_lstm.archiver_ext.archive.file_list import digest_files


def test_digests_are_those_of_the_files_that_are_archived(tmp_path: Path) -> None:
    archived = ("programs/b1_t16/model.so", "weights.pt")
    for name in (*archived, "MAR-INF/MANIFEST.json", "__pycache__/model.pyc", "programs/.hidden/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    assert digest_files(tmp_path) == {name: hashlib.sha256(name.encode()).hexdigest() for name in archived}
