"""Files of torch's writer, on a disk that is full: `/dev/full` refuses every write."""

import errno
import logging
from pathlib import Path

import pytest
import torch

from torchserve_neuron_lstm.backends.torch_files import torch_file

FULL = Path("/dev/full")


class Doubled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(20_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_what_is_written_is_what_torch_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = torch.export.export(Doubled(), (torch.ones(1),))
    with torch_file(tmp_path / "tensors.pt") as file:
        torch.save({"w": torch.arange(5)}, file)
    with torch_file(tmp_path / "program.pt2") as file:
        torch.export.save(program, file)

    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert torch.load(tmp_path / "tensors.pt", mmap=True)["w"].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(torch.export.load(tmp_path / "program.pt2").module()(torch.ones(1)), torch.ones(20_000))


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(size: int) -> None:
    """Torch's own writer would throw in a destructor."""
    with pytest.raises(OSError, match="No space left") as failed, torch_file(FULL) as file:
        torch.save({"w": torch.ones(size)}, file)

    assert failed.value.errno == errno.ENOSPC


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), torch_file(tmp_path / "nowhere" / "w.pt") as file:
        torch.save({}, file)
