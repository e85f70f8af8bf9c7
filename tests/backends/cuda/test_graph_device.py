"""The test double of a GPU notices what a CUDA graph cannot record."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph_device import GraphDevice, RuleBroken


def test_the_double_notices_broken_rules() -> None:
    device = GraphDevice()
    with pytest.raises(RuleBroken, match="another device"):
        device.allocate(8)
    with device.current():
        own = device.allocate(8)
    host = torch.ones(8, dtype=torch.uint8)
    kept: list[torch.Tensor] = []
    broken: dict[str, Callable[[], Any]] = {
        "waits for a value": lambda: bool(own.sum()),
        "allocates memory": lambda: device.allocate(1),
        "waits for the device": device.synchronize,
        "outlive": lambda: kept.append(own + 1),
        "is not on the device": lambda: own.add_(host),
    }
    for message, body in broken.items():
        with device.current(), pytest.raises(RuleBroken, match=message):
            device.capture(body)
