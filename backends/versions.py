"""Comparison of a host with what an archive was packaged with: releases of packages, device emulation.

An emulated program runs from the source that its compiler was given: the outputs are the model's, the speed is torch's.
Packaging enables emulation to verify programs without the device. On a host only its operator enables it: a server
whose device is missing is misconfigured, and must fail.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .interface import Requirement


def release(version: str) -> tuple[int, int, int]:
    """Return the numbers that a version begins with.

    >>> release("2.13+cpu"), release("2.14.0.dev20260101")
    ((2, 13, 0), (2, 14, 0))
    """
    numbers = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", version)
    if numbers is None:
        return 0, 0, 0
    major, minor, patch = (int(number or 0) for number in numbers.groups())
    return major, minor, patch


def minor_release(version: str) -> str:
    """Return major and minor number.

    >>> minor_release("2.13.1+cpu")
    '2.13'
    """
    return ".".join(version.split(".")[:2])


def torch_version() -> str:
    """Return the version of torch here, without the kind of its build."""
    return str(torch.__version__).partition("+")[0]


def torch_requirement() -> Requirement:
    """Return the requirement of torch in the version that is here."""
    return Requirement("torch", "torch", torch_version())


LOWEST_TORCH = "2.1.0"
"""The oldest release of torch on which archives are served, but for those of AWS's packages for Inf1."""

LOWEST_TORCH_REQUIREMENT = Requirement("torch", "torch", LOWEST_TORCH)
"""For programs that no release of torch binds. Packaging raises it to the release that has a source's operators."""

VARIABLE = "NEURON_LSTM_STAND_IN"
_CPU = "cpu"


def emulation_enabled() -> bool:
    """Whether the environment enables emulation."""
    return os.environ.get(VARIABLE) == _CPU


@contextmanager
def enable_emulation() -> Iterator[None]:
    """Enable emulation within the context, also for processes that are started in it."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = _CPU
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
