"""Declared ranges of integer inputs: they decide branches until something is written to the ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from input_configs import config_of
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower

# In this range the requests that packaging draws have no 0, so that only the trace can show a wrong branch.
CONFIG = config_of("{ids: {dtype: int64, shape: [batch, time], range: [0, 9999999]}}")


class Branching(nn.Module):
    def __init__(self, write: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 4, batch_first=True)
        self.write = write

    def forward(self, ids: Tensor) -> Tensor:
        own = ids.clone()
        self.write(own)
        y: Tensor = self.gru(own.float()[:, :, None] / 1e7)[0]
        return y if (own >= 0).all() else y * 2  # branch


def to_a_view(ids: Tensor) -> None:
    first = ids[:, :1]
    first -= 1


def to_an_element(ids: Tensor) -> None:
    ids.view(-1)[0] -= 1


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "a view": to_a_view,
    "an element of a view": to_an_element,
    "a row": lambda ids: ids.unbind(0)[0].sub_(1),
    "a part": lambda ids: ids.split(1, 1)[0].sub_(1),
    "a view without a range": lambda ids: ids.swapaxes(0, 1)[0].sub_(1),
    "its data": lambda ids: ids.data.sub_(1),
    "as a result": lambda ids: torch.sub(ids, 1, out=ids),
    "by an operator": lambda ids: ids.__ilshift__(61),
    "by a function of layers": lambda ids: nn.functional.threshold(ids.view(-1), 1, -1, inplace=True),
    "itself": lambda ids: ids.sub_(1),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_range_is_not_believed_after_a_write(write: Callable[[Tensor], Any]) -> None:
    with pytest.raises(LoweringError, match=r"depend on the values of its inputs .*# branch"):
        lower(Branching(write), CONFIG)


def test_views_of_what_is_written_have_no_range_either() -> None:
    class Earlier(Branching):
        def forward(self, ids: Tensor) -> Tensor:
            own = ids.clone()
            first = own[:, :1]
            own.sub_(1)
            y: Tensor = self.gru(own.float()[:, :, None] / 1e7)[0]
            return y if (first >= 0).all() else y * 2  # branch

    with pytest.raises(LoweringError, match=r"depend on the values of its inputs .*# branch"):
        lower(Earlier(len), CONFIG)


def changed(ids: Tensor) -> None:
    copied = ids * 1
    copied.view(-1).sub_(1)
    ids.clone().sub_(1)
    ids.flip(1)[:, :1].sub_(1)


def test_a_range_is_believed_while_copies_are_changed() -> None:
    assert lower(Branching(changed), CONFIG).decided == {"ids"}
