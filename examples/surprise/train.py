"""Train `Surprise` on the English that comes with every CPython.

python train.py            about a minute on 2 cores; writes weights.pt
python train.py --steps 50 a quick look
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from english import SEED, split
from model import START, Surprise
from torch import Tensor

BATCH, WINDOW = 32, 96
PEAK_RATE = 4e-3


def unigram_bits(train: bytes, held_out: bytes) -> float:
    """Bits per byte of a guess from each byte's frequency."""
    counts = Counter(train)
    total = len(train) + 256
    return -sum(math.log2((counts[byte] + 1) / total) for byte in held_out) / len(held_out)


def bigram_bits(train: bytes, held_out: bytes) -> float:
    """Bits per byte of a guess from the byte before."""
    pairs, firsts = Counter(itertools.pairwise(train)), Counter(train[:-1])
    previous = bytes([START]) + held_out
    guesses = zip(previous, held_out, strict=False)
    return -sum(math.log2((pairs[a, b] + 0.1) / (firsts[a] + 25.6)) for a, b in guesses) / len(held_out)


def line_starts(text: bytes) -> Tensor:
    """The positions where a window may begin: after a newline, as at serving time. int64[N]"""
    starts = [0] + [i + 1 for i, byte in enumerate(text) if byte == START]
    return torch.tensor([start for start in starts if start + WINDOW <= len(text)])


def windows(text: bytes, steps: int) -> Iterator[Tensor]:
    """Yield `steps` random batches int64[BATCH, WINDOW], each row from the beginning of a line."""
    data, starts = torch.tensor(list(text)), line_starts(text)
    for _ in range(steps):
        picked = starts[torch.randint(len(starts), (BATCH,))]
        yield data[picked[:, None] + torch.arange(WINDOW)]


def rate(step: int, steps: int) -> float:
    """The learning rate: a short warm-up, then a cosine to zero."""
    return PEAK_RATE * min(1.0, (step + 1) / 50) * (1 + math.cos(math.pi * step / steps)) / 2


def train(model: Surprise, text: bytes, steps: int) -> None:
    """Minimise the mean surprise, and print the progress twenty times."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE)
    lengths, began = torch.full((BATCH,), WINDOW), time.monotonic()
    for step, ids in enumerate(windows(text, steps)):
        optimizer.param_groups[0]["lr"] = rate(step, steps)
        bits = model(ids, lengths).mean()
        optimizer.zero_grad()
        bits.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % max(1, steps // 20) == 0:
            took = time.monotonic() - began
            print(f"  step {step + 1:5d}/{steps}   {bits.item():.2f} bits per byte   {took:4.0f} s", flush=True)


@torch.inference_mode()
def bits_per_byte(model: Surprise, text: bytes) -> float:
    """Mean surprise over `text`, cut into windows that each begin after a newline."""
    data, starts = torch.tensor(list(text)), line_starts(text)
    kept = [int(starts[0])]
    for start in starts.tolist():
        if start >= kept[-1] + WINDOW:
            kept.append(start)
    ids = data[torch.tensor(kept)[:, None] + torch.arange(WINDOW)]
    return float(model(ids, torch.full((len(ids),), WINDOW)).mean())


def main() -> None:
    """Train, evaluate on held-out text, write the weights."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=1000)
    arguments.add_argument("--out", type=Path, default=Path("weights.pt"))
    options = arguments.parse_args()

    torch.manual_seed(SEED)
    seen, held_out = split()
    print(f"Training on {len(seen) / 1000:.0f} kB of English, judged by {len(held_out) / 1000:.0f} kB never seen.")
    model = Surprise()
    train(model, seen, options.steps)
    print("Bits per byte on text never seen (fewer is better):")
    print(f"  each byte by how common it is  {unigram_bits(seen, held_out):.2f}")
    print(f"  by the byte before it          {bigram_bits(seen, held_out):.2f}")
    print(f"  this LSTM                      {bits_per_byte(model, held_out):.2f}")
    torch.save(model.state_dict(), options.out)
    print(f"Wrote {options.out}")


if __name__ == "__main__":
    main()
