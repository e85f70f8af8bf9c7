"""Servers that are compared: a handler, its number of workers, and TorchServe's settings."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchserve_neuron_lstm.backends.interface import Precision

from ..rest.archives import OURS, PLAIN

Settings = Literal["stock", "serve"]
"""Those of TorchServe without a file, or those of `neuron-lstm serve`."""


@dataclass(frozen=True)
class Contestant:
    """A TorchServe with one model."""

    handler: str
    """`PLAIN` or `OURS`, which is the model's name too."""
    settings: Settings
    workers: int
    back: str = ""
    """The setting of `neuron-lstm serve` that is as in a stock TorchServe."""
    overrides: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Settings that bring it back."""
    stock_log: bool = False
    precision: Precision = "float32"

    @property
    def name(self) -> str:
        """The name in tables."""
        words = [self.handler, self.settings, f"{self.workers} worker{'s' if self.workers > 1 else ''}"]
        words += [f"stock {self.back}"] if self.back else []
        return ", ".join([*words, self.precision] if self.precision != "float32" else words)

    @property
    def store(self) -> str:
        """The name of the folder of its archive, which others with the same settings share."""
        return f"{self.workers}-{self.precision}"


def contestants(cores: int) -> list[Contestant]:
    """All servers: one worker and one for each core, one setting after the other as in stock.

    The last ones compute below float32, which the engine does on x86-64 alone. No floor is compared with them.
    """
    counts = sorted({1, cores})
    stock = [Contestant(PLAIN, "stock", count) for count in counts]
    ours = [Contestant(OURS, "serve", count) for count in counts]
    one_back = [
        Contestant(OURS, "serve", cores, "log", stock_log=True),
        Contestant(OURS, "serve", cores, "metrics", {"metrics_mode": "log"}),
        Contestant(OURS, "serve", cores, "JSON", {"decode_input_request": "true"}),
        Contestant(OURS, "serve", cores, "Java", {"vmargs": ""}),
    ]
    precisions: tuple[Precision, ...] = ("bfloat16", "int8") if platform.machine() == "x86_64" else ()
    lower = [Contestant(OURS, "serve", cores, precision=precision) for precision in precisions]
    return [*stock, Contestant(OURS, "stock", cores), *ours, *one_back, *lower]
