"""Reads, writes and padding at positions that are computed from the timesteps, also at negative ones."""

from collections.abc import Callable

import pytest
import torch
from input_configs import one_input
from torch import Tensor, nn
from torch.nn import functional

from torchserve_neuron_lstm.lowering import lower

CONFIG = one_input("[batch, time, 3]", length="[64]", batch="[4]")
BATCHES = ([64, 49, 36, 3], [37, 35, 1, 2], [6, 5, 13, 64])
TABLE = torch.randn(1, 70, 3, generator=torch.Generator().manual_seed(0))


def last(x: Tensor) -> int:
    return min(x.size(1), 36)


def written(x: Tensor, first: int | None, end: int | None, new: Tensor | float) -> Tensor:
    y = x.clone()
    y[:, first:end] = new
    return y


READS: dict[str, Callable[[Tensor], Tensor]] = {
    "to the end": lambda x: x[:, -last(x) :].sum(1, keepdim=True),
    "before the end": lambda x: x[:, -last(x) : -1].sum(1, keepdim=True),
    "with a step": lambda x: x[:, -last(x) :: 2].sum(1, keepdim=True),
    "one": lambda x: x[:, -last(x)].unsqueeze(1),
    "from a share on": lambda x: x[:, int(x.size(1) * 0.58) :].sum(1, keepdim=True),
    "narrow": lambda x: x.narrow(1, -last(x), 1),
    "end of a table": lambda x: TABLE[:, -x.size(1) :],
    "rest of a table": lambda x: TABLE[:, 70 - x.size(1) :],
    "one of a table": lambda x: TABLE[:, -x.size(1)].unsqueeze(1),
}
WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "second half": lambda x: written(x, x.size(1) // 2, None, x[:, : x.size(1) - x.size(1) // 2] * 2),
    "first half": lambda x: written(x, None, x.size(1) // 2, x[:, x.size(1) - x.size(1) // 2 :]),
    "to the end": lambda x: written(x, -3, None, x[:, :3] / 2),
    "from a negative position": lambda x: written(x, -last(x), None, 0.0),
    "into a longer one": lambda x: written(x.new_zeros(1, 2 * x.size(1), 3), x.size(1), None, x),
    "at the end of a fixed size": lambda x: written(x.new_zeros(1, 70, 3), 70 - x.size(1), None, x),
}

PADS: dict[str, Callable[[Tensor], Tensor]] = {
    "before": lambda x: functional.pad(x, (0, 0, x.size(1) // 2, 0)),
    "cut before": lambda x: functional.pad(x, (0, 0, -(x.size(1) // 4), 0)),
    "moved": lambda x: functional.pad(x, (0, 0, x.size(1) // 3, -(x.size(1) // 3))),
    "both with a number": lambda x: functional.pad(x, (0, 0, x.size(1) // 2, x.size(1) // 2), value=2.0),
    "by replication": lambda x: functional.pad(x.mT, (x.size(1) // 2, 0), mode="replicate").mT,
}


class Model(nn.Module):
    def __init__(self, read: Callable[[Tensor], Tensor], *, adds: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.read, self.adds = nn.GRU(3, 3, batch_first=True), read, adds

    def forward(self, x: Tensor) -> Tensor:
        read = self.read(x)
        own: Tensor = self.gru(x + read if self.adds else read)[0]
        return own


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("function", "adds"),
    [
        *(pytest.param(read, True, id=f"read {name}") for name, read in READS.items()),
        *(pytest.param(pad, False, id=f"pad {name}") for name, pad in PADS.items()),
        *(pytest.param(write, False, id=f"write {name}") for name, write in WRITES.items()),
    ],
)
def test_every_row_has_its_own_positions(function: Callable[[Tensor], Tensor], adds: bool) -> None:
    model = Model(function, adds=adds).eval()
    program = lower(model, CONFIG)
    run = program.exported.module()
    for lengths in BATCHES:
        items = [torch.randn(1, max(length, program.shortest), 3) for length in lengths]
        x = torch.full((4, 64, 3), 1e4)
        for row, item in enumerate(items):
            x[row, : item.size(1)] = item
        together = run(x, torch.tensor([item.size(1) for item in items]))[0]
        for row, item in enumerate(items):
            alone = model(item)[0]
            torch.testing.assert_close(together[row, : len(alone)], alone, atol=1e-5, rtol=1e-5)
