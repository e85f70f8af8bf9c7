from pathlib import Path

import pytest
from tiny_archive import make_archive, renamed

from torchserve_neuron_lstm.hosts.archives_by_name import archives_by_name
from torchserve_neuron_lstm.inference.errors import ArchiveError


def test_each_archive_has_the_name_of_its_model_and_two_of_one_name_are_refused_with_both_paths(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "tiny")
    other = renamed(archive, "other", tmp_path)

    assert archives_by_name([archive, other]) == {"sums": str(archive), "other": str(other)}
    again = make_archive(tmp_path / "again")  # only one of two could be asked
    with pytest.raises(ArchiveError, match=f"{archive} and {again} are both called sums"):
        archives_by_name([archive, again])
