"""Program of `test_faults.py`: layers are opened, run and closed; each allocation of it fails once.

python fault_loop.py LIBRARY SHAPE THREADS, with a SHAPE as JSON. It writes a line of JSON for each allocation.
"""

import ctypes
import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from native_layers import Shape, answers_of, batch_for, stack_of

from torchserve_neuron_lstm.backends.native.library import LinearLayer, RecurrentLibrary, ThreadPool

Result = TypeVar("Result")
LENGTHS = ([3], [7, 0, 2] * 34)
"""Lengths of two batches; the second has more rows than a block of inputs, so it needs more memory."""


class Lifecycle:
    """Threads with layers on them, from opening to closing. Steps that fail are done once more, without a fault."""

    def __init__(self, library: RecurrentLibrary, shape: Shape, threads: int) -> None:
        self.library, self.shape, self.threads = library, shape, threads
        self.core, self.linear = shape.core(), torch.nn.Linear(shape.inputs, 40)
        self.batches = [batch_for(shape, lengths, 8) for lengths in LENGTHS]
        self.errors: list[str] = []

    def run(self, successes: int) -> list[torch.Tensor]:
        self.errors = []
        self.library.code.faults_arm(successes)
        pool = self._step(lambda: ThreadPool(self.library, self.threads))
        stack = self._step(lambda: stack_of(self.shape, self.core, pool))
        linear = LinearLayer(pool, self.linear.weight.detach(), self.linear.bias.detach())
        answers: list[torch.Tensor] = []
        for batch in self.batches:
            answers += self._step(partial(answers_of, stack, batch))
            answers.append(self._step(partial(linear.run, batch.x, batch.lengths)))
        return answers

    def _step(self, step: Callable[[], Result]) -> Result:
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - the test compares what it is
            self.errors.append(f"{type(error).__name__}: {error}")
            return step()


def main() -> None:
    library = RecurrentLibrary(Path(sys.argv[1]))
    library.code.faults_live.restype = ctypes.c_long
    library.code.faults_arm.argtypes = [ctypes.c_long]
    lifecycle = Lifecycle(library, Shape(**json.loads(sys.argv[2])), int(sys.argv[3]))
    expected = lifecycle.run(-1)
    gc.collect()
    gc.freeze()  # else each search for garbage goes through torch
    successes, armed = 0, False
    while not armed:
        answers = lifecycle.run(successes)
        armed = bool(library.code.faults_armed())
        library.code.faults_arm(-1)
        gc.collect()
        same = all(torch.equal(one, other) for one, other in zip(answers, expected, strict=True))
        live = int(library.code.faults_live())
        line = json.dumps({"armed": armed, "errors": lifecycle.errors, "same": same, "live": live})
        sys.stdout.write(f"{line}\n")
        successes += 1


if __name__ == "__main__":
    main()
