"""One target under atheris: `python -m fuzz.guided TARGET FINDINGS CORPUS OPTIONS...`.

atheris adds instructions to each function of the decoders as it is imported, and prefers the inputs that reach new
ones. The process does not end at an input that violates the property: it keeps the input and continues. The options,
and further folders of inputs, are those of libFuzzer.
"""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path
from random import Random

import atheris
import torch

from .findings import Findings

with atheris.instrument_imports(
    include=[
        f"torchserve_neuron_lstm.{package}" for package in ("handlers", "config", "sessions", "bucketing.time_sizes")
    ]
):
    from .targets.registry import load_target

    TARGET = load_target(sys.argv[1])


def main() -> None:
    """Search until the options of libFuzzer end the process."""
    torch.set_num_threads(1)
    logging.getLogger("torchserve_neuron_lstm").addHandler(logging.NullHandler())
    findings, corpus = Findings(Path(sys.argv[2])), Path(sys.argv[3])
    for name, content in TARGET.seeds().items():
        (corpus / f"seed_{name}").write_bytes(content)

    def check(content: bytes) -> None:
        try:
            TARGET.check(content)
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises is a finding
            findings.add(content, error)

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.05:
            return bytes(atheris.Mutate(content, most))
        return TARGET.mutate(content, random, lambda part: bytes(atheris.Mutate(part, most)))[:most]

    # libFuzzer merges in processes that it starts by the first word, through a shell.
    again = shlex.join([sys.executable, "-m", "fuzz.guided", *sys.argv[1:4]])
    atheris.Setup([again, *sys.argv[4:]], check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
