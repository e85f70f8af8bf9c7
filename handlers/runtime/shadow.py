"""Answers of a lowered model that its own code computes once more, after they were sent."""

from __future__ import annotations

import atexit
import logging
import math
import os
import queue
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Optional

import torch

from ...backends.differences import allowed_rounding, change_with, difference
from ...backends.weights import read_weights
from ...bucketing.execute import Pad, Tensors
from ...bucketing.execute_chunks import ResumedState
from ...bucketing.padding import pad
from ...bucketing.plan import Plan
from ...bucketing.shapes import TensorSpec
from ...config.manifest import Manifest
from ...config.own_model import Shadow
from .loader import ServedModel
from .own_model import Answer, OwnProgram, load_own_model
from .user_code import Importing, working_directory

_log = logging.getLogger(__name__)
_MOST_WAITING = 8  # comparisons: they take longer than answers, so more are dropped
_UNTIL_SENT_SECONDS = 0.01  # from an answer to its comparison
_NICENESS = 10  # steps below the priority of the worker
_SHARE_OF_CORE = 0.005
"""The share of a core's time that comparisons take at most: a busy worker needs it for its answers."""
_SHARES = (1e-2, 1e-3, 1e-4, 1e-5) * 4
"""Changes of the values of a request. A threshold within the answer shows at one of them, a tie at one draw."""
_WEIGHT_SHARES = (1e-4, 1e-5, 1e-6) * 4
"""Changes of the weights: about those of rounding in layers, in either direction."""
_OVERFLOWING = 1e18
"""Values whose sums and products may overflow. Any client can send them, so they change nothing but counts."""
_NO_COUNTS: Counter[str] = Counter()
_LAST_SECONDS = 5.0  # the end of the process waits no longer for a comparison


class _Comparison(NamedTuple):
    tensors: Sequence[torch.Tensor]
    length: int
    outputs: Tensors


class ShadowedModel:
    """A lowered model, and the thread that compares a share of its answers with those of its own code.

    With `on_difference: model`, that code answers all requests after the first certain difference.
    """

    def __init__(
        self,
        lowered: ServedModel,
        settings: Shadow,
        answer: Answer,
        weights: Callable[[], Sequence[torch.Tensor]],
        choose: Optional[Callable[[], float]] = None,
    ) -> None:
        """Compare with `answer`, whose model has `weights`.

        `choose` returns a number from 0 to 1, without 1, for each comparison (default: at random).
        """
        self.manifest: Manifest = lowered.manifest
        self._lowered, self._settings, self._answer, self._weights = lowered, settings, answer, weights
        self._choose = choose or random.Random().random  # noqa: S311 - not a secret; each worker has its own
        self._answers_left = self._gap()
        self._waiting: queue.Queue[Optional[_Comparison]] = queue.Queue(_MOST_WAITING)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._ended = threading.Event()
        self.answers_itself = False
        """Whether the model's own code answers, after a difference."""
        self._thread = threading.Thread(target=self._compare_all, name="neuron_lstm shadow", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the cheapest plan for sequences of these lengths."""
        return self._lowered.plan(lengths)

    def run_plan(
        self,
        plan: Plan,
        sequences: Sequence[Sequence[torch.Tensor]],
        lengths: Sequence[int],
        pad: Pad = pad,
        resumed: ResumedState | None = None,
    ) -> tuple[list[Tensors], Tensors]:
        """Run the plan, as `ServedModel.run_plan` says; or let the model's own code answer."""
        if self.answers_itself:
            self._thread.join()  # it ends after the difference, and one thread alone may call the model
            return [self._answer(tensors, length) for tensors, length in zip(sequences, lengths)], ()
        return self._lowered.run_plan(plan, sequences, lengths, pad, resumed)

    def _gap(self) -> int:
        """Draw the number of answers before the next comparison, such that each answer has the same probability."""
        share = self._settings.share
        return 0 if share >= 1 else int(math.log1p(-self._choose()) / math.log1p(-share))

    def chosen(self, answers: int) -> Sequence[int]:
        """Return the places of those that are compared among the answers of a batch."""
        if self._answers_left >= answers or self.answers_itself:  # as after most batches
            self._answers_left -= answers
            return ()
        places = []
        while self._answers_left < answers:
            places.append(self._answers_left)
            self._answers_left += 1 + self._gap()
        self._answers_left -= answers
        return places

    def observe(self, tensors: Sequence[torch.Tensor], length: int, outputs: Tensors) -> None:
        """Compare an answer. Its tensors are copied: programs use buffers again, and codecs may write."""
        with suppress(queue.Full):
            if not self._waiting.full():  # else nothing is copied
                given, answered = (tuple([tensor.clone() for tensor in either]) for either in (tensors, outputs))
                self._waiting.put_nowait(_Comparison(given, length, answered))
                return
        self._count(dropped=1)

    def take_counts(self) -> Counter[str]:
        """Return the counts since the last call: answers `compared`, `different` and, if too many waited, `dropped`."""
        if not self._counts:  # as after most batches
            return _NO_COUNTS
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def close(self) -> None:
        """End the thread after the comparison that it makes."""
        atexit.unregister(self.close)
        self._ended.set()
        with suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(_LAST_SECONDS)

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    def _compare_all(self) -> None:
        """Compare answers until the end; with `on_difference: model`, until the first certain one."""
        with suppress(AttributeError, OSError):  # not every system has priorities of threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        pause_until = 0.0
        while (one := self._waiting.get()) is not None:
            self._ended.wait(max(_UNTIL_SENT_SECONDS, pause_until - time.monotonic()))
            began = time.thread_time()
            is_different = self._is_different(one)
            self._count(compared=1, different=int(is_different))
            if is_different and self._settings.on_difference == "model" and self._is_certain(one):
                _log.warning("shadow: the model's own code answers from now on")
                self.answers_itself = True
                return
            pause_until = time.monotonic() + (time.thread_time() - began) / _SHARE_OF_CORE

    def _is_different(self, one: _Comparison) -> bool:
        """Whether the model's own code answers otherwise; a difference is logged, without the request."""
        try:
            worst = worst_difference(self._answer, one.tensors, one.length, one.outputs, self.manifest)
        except MemoryError:
            _log.warning("shadow: out of memory for a comparison")
            return False
        except Exception as error:  # noqa: BLE001 - the user's code; its message may hold values of the request
            kind = type(error).__name__
            _log.warning("shadow: the model's own code fails on a request of %d timesteps: %s", one.length, kind)
            return True
        if worst is None:
            return False
        _log.warning(
            "shadow: the output %s of a request of %d timesteps differs by %.3g from that of the model's own code",
            *(worst[0].name, one.length, worst[1]),
        )
        return True

    def _is_certain(self, one: _Comparison) -> bool:
        """Whether a difference is larger than the change of the answer with inputs that differ by `_SHARES`.

        Or with weights that differ by `_WEIGHT_SHARES`. Clients can look for a request at which the answer jumps,
        overflows or fails. It is counted only.
        """
        if any(bool((x.abs() > _OVERFLOWING).any()) for x in one.tensors if x.is_floating_point()):
            return False
        try:
            expected = self._answer(one.tensors, one.length)
            seed = secrets.randbits(31)
            of_inputs = change_with(_SHARES, lambda x: self._answer(x, one.length), one.tensors, expected, seed)
            explained = [*map(max, of_inputs, self._change_with_weights(one, expected, seed))]
        except Exception:  # noqa: BLE001 - the user's code
            return False
        return _worst(one.outputs, expected, explained, self.manifest) is not None

    def _change_with_weights(self, one: _Comparison, expected: Tensors, seed: int) -> list[float]:
        """Return the change of each output with the weights, which are put back after each call."""
        before = [weight.detach().clone() for weight in self._weights()]

        def answer(moved: Sequence[torch.Tensor]) -> Tensors:
            try:
                _put(self._weights(), moved)
                return self._answer(one.tensors, one.length)
            finally:
                _put(self._weights(), before)

        return change_with(_WEIGHT_SHARES, answer, before, expected, seed)


def _put(weights: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip(weights, values):
            weight.copy_(value)


Worst = Optional[tuple[TensorSpec, float]]
"""The output that differs most, and by how much; None: all are within the tolerance."""


def worst_difference(
    answer: Answer, tensors: Sequence[torch.Tensor], length: int, outputs: Tensors, manifest: Manifest
) -> Worst:
    """Compare the outputs of a request with those of the model's own code.

    Rounding errors are allowed beside the tolerance.
    """
    expected = answer(tensors, length)
    worst = _worst(outputs, expected, [0.0] * len(expected), manifest)
    if worst is None:
        return None
    try:
        rounding = allowed_rounding(lambda changed: answer(changed, length), tensors, expected)
    except Exception:  # noqa: BLE001 - the user's code
        return worst
    return _worst(outputs, expected, rounding, manifest)


def _worst(outputs: Tensors, expected: Tensors, rounding: Sequence[float], manifest: Manifest) -> Worst:
    """Return the worst output. Whole numbers must be equal, except for rounding errors of what they follow from."""
    worst: Worst = None
    for spec, ours, theirs, allowed in zip(manifest.outputs, outputs, expected, rounding):
        atol, rtol = manifest.tolerance if theirs.is_floating_point() else (0.0, 0.0)
        error, ratio = difference(ours, theirs, (atol + allowed, rtol))
        if ratio > 1 and allowed < math.inf and (worst is None or error > worst[1]):
            worst = spec, error
    return worst


def load_shadow(
    directory: Path,
    manifest: Manifest,
    settings: Shadow,
    importing: Importing = working_directory,
    calling: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> OwnProgram:
    """Load the model of an unpacked archive beside the lowered one.

    `importing` makes a context in which the archive's files can be imported, `calling` one in which they are called.

    Raises `RuntimeError`: it cannot be made here.
    """
    files = [directory / file for file in (manifest.weights, manifest.constants) if file is not None]
    weights = {name: tensor for file in files for name, tensor in read_weights(file).items()}
    making = partial(importing, directory)
    program = load_own_model(settings.model, manifest.inputs, directory, weights, making, calling=calling)
    # Modules of the archive that appear beside a call are those of the host, which imports them for other calls.
    program.imported = lambda known: False
    return program
