"""An LSTM in buckets of 128 and 512 tokens that a kernel selects.

Run with `python -m examples.seeds.bucketed eager`.

The kernel pads on the right to the first bucket that holds the tokens, as is usual for BERT. It does not report longer
inputs; the trace refuses them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from torchserve_neuron_lstm import tracing

from .shown import Engine, Shown

BUCKETS = (128, 512)
HIDDEN = 16


class Classifier(nn.Module):
    """A classifier of texts into two classes, from token ids[B, T] and mask[B, T].

    The mask marks the real tokens, which are the first ones of each row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.classes = nn.Linear(HIDDEN, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return logits[B, 2], from the state after each row's last real token."""
        packed = pack_padded_sequence(self.embedding(ids), mask.sum(1), batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        logits: torch.Tensor = self.classes(h[-1])
        return logits


def sequence_length_bucket_kernel(tensor_list: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Pad every tensor[B, T] on the right with zeros to the first bucket that holds it."""
    tokens = tensor_list[0].shape[1]
    index = 0
    padded: list[torch.Tensor] = []
    for place, bucket in enumerate([128, 512]):
        if len(padded) == 0 and tokens <= bucket:
            index = place
            padded = [nn.functional.pad(tensor, [0, bucket - tokens]) for tensor in tensor_list]
    return padded, torch.tensor(index)


def get_bucket_kernel() -> Any:
    """The kernel in TorchScript, because it is saved with the trace."""
    return torch.jit.script(sequence_length_bucket_kernel)


def get_model() -> tuple[nn.Module, dict[Any, int]]:
    """The model, which is the same for each bucket, and an empty map of states."""
    torch.manual_seed(0)
    model = Classifier()
    model.eval()
    return model, {}


def tokens(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A text of `count` tokens."""
    return torch.randint(1, 1000, (1, count)), torch.ones(1, count, dtype=torch.int64)


def show(engine: Engine) -> Shown:
    """Run the example on an engine."""
    shown = Shown(engine)
    config = tracing.BucketModelConfig(get_bucket_kernel)
    examples = [tokens(bucket) for bucket in BUCKETS]
    trace = tracing.bucket_model_trace(get_model, examples, config, backend=engine.name, **engine.options)
    with tempfile.TemporaryDirectory() as folder:
        trace.save(Path(folder) / "bucketed.traced")
        loaded = tracing.load(Path(folder) / "bucketed.traced")
    model, _ = get_model()
    for count in (1, 122, 128, 129, 444, 512):
        ids, mask = tokens(count)
        with torch.no_grad():
            shown.compare(loaded(ids, mask), model(ids, mask))

    # longer than the largest bucket: the kernel returns no tensors, and index 0
    shown.refuses(tracing.WrongInput, lambda: loaded(*tokens(513)))
    one_too_few = tracing.BucketModelConfig(get_bucket_kernel, func_kwargs=[{}])
    shown.refuses(ValueError, lambda: tracing.bucket_model_trace(get_model, examples, one_too_few, backend="eager"))
    return shown


if __name__ == "__main__":
    from .command_line import main

    raise SystemExit(main(show))
