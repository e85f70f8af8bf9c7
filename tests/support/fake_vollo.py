"""Test doubles of Vollo's compiler, its torch front end and its runtime: they run modules with torch.

They refuse what the real ones refuse: unknown accelerators, unsupported operators, programs that do not fit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typing_extensions import Self

from torchserve_neuron_lstm.backends.vollo import engine as vollo

RELEASE = "29.0.0"
ESTIMATE_US = 1.5


class AllocationError(Exception):
    pass


@dataclass
class Fakes:
    """Behaviour of the doubles, which a test may change, and a record of their calls."""

    most_weights: int = 10**9
    unsupported: str | None = None
    accelerators: int = 0
    asked: list[str] = field(default_factory=list)
    programs: list[Any] = field(default_factory=list)


def install(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Install the doubles of the compiler and its front end; `install_runtime` adds the runtime."""
    fakes = Fakes()
    compiler, front, fx, nnir = (_module(monkeypatch, name) for name in _NAMES)
    compiler.__dict__.update(AllocationError=AllocationError, Config=_config(fakes), Program=_program(fakes))
    front.__dict__.update(fx=fx)
    fx.__dict__.update(nnir=nnir, prepare_shape=lambda module, *inputs: (module, module(*inputs)))
    nnir.__dict__.update(to_nnir=lambda module: _Graph(fakes, module))
    monkeypatch.setattr(vollo, "version", lambda name: RELEASE)
    vollo.no_accelerator_reason.cache_clear()
    vollo._warn_once.cache_clear()
    return fakes


def install_runtime(monkeypatch: pytest.MonkeyPatch, fakes: Fakes, accelerators: int) -> None:
    """Emulate a host with this number of accelerators."""
    fakes.accelerators = accelerators
    _module(monkeypatch, "vollo_rt").__dict__.update(VolloRTContext=lambda: _Context(fakes))
    monkeypatch.setattr(vollo, "_accelerators", iter(range(10)))
    vollo.no_accelerator_reason.cache_clear()


_NAMES = ("vollo_compiler", "vollo_torch", "vollo_torch.fx", "vollo_torch.fx.nnir")


def _module(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []
    monkeypatch.setitem(sys.modules, name, module)
    return module


def _config(fakes: Fakes) -> type:
    class Config:
        @staticmethod
        def bittware_ia840f_c3b64() -> str:
            return "bittware_ia840f_c3b64"

        @staticmethod
        def amd_v80_c6b32() -> str:
            return "amd_v80_c6b32"

        @staticmethod
        def ia_840f_c3b64() -> str:
            raise AssertionError("a former name, at which the real one warns")

        @staticmethod
        def load(path: str) -> str:
            raise AssertionError("no accelerator")

    return Config


class _Graph:
    def __init__(self, fakes: Fakes, module: torch.nn.Module, *, streams: bool = False) -> None:
        self.fakes, self.module, self.streams = fakes, module, streams
        if fakes.unsupported is not None:
            raise ValueError(
                f"\nUnsupported operations encountered translating to Vollo NNIR:\n  {fakes.unsupported}: found 1"
            )

    def to_program(self, config: str, **options: Any) -> Any:
        self.fakes.asked.append(config)
        if sum(one.numel() for one in self.module.parameters()) > self.fakes.most_weights:
            raise AllocationError("not enough weight store: needs 2, has 1\n\nLocation:\n    src/alloc.rs:1:1")
        program = _program(self.fakes)()
        program.module = self.module
        return program


def _program(fakes: Fakes) -> type:
    class Program:
        module: torch.nn.Module

        def pack(self) -> None:
            pass

        def compute_duration_per_inference_us(self) -> float:
            return ESTIMATE_US

        def save_bytes(self) -> bytes:
            fakes.programs.append(self)
            return str(len(fakes.programs) - 1).encode()

        @staticmethod
        def load_bytes(written: bytes) -> Any:
            return fakes.programs[int(written)]

        def to_vm(self) -> _Vm:
            return _Vm(self.module)

    return Program


class _Vm:
    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def run(self, inputs: list[Any]) -> Any:
        given = [torch.from_numpy(one).bfloat16().float() for one in inputs]
        with torch.no_grad():
            answers = self.module(*given)
        several = tuple(one.numpy() for one in (answers if isinstance(answers, tuple) else (answers,)))
        return several if len(several) > 1 else several[0]


class _Context:
    def __init__(self, fakes: Fakes) -> None:
        self.fakes = fakes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def add_accelerator(self, index: int) -> None:
        if index >= self.fakes.accelerators:
            raise RuntimeError(f"no accelerator {index}")

    def load_program(self, program: Any) -> None:
        written = Path(program).read_bytes() if isinstance(program, str) else program.save_bytes()
        self.vm = self.fakes.programs[int(written)].to_vm()

    def run(self, inputs: Any) -> Any:
        given = inputs if isinstance(inputs, list) else [inputs]
        assert all(one.dtype is torch.bfloat16 for one in given)
        answers = self.vm.run([one.float().numpy() for one in given])
        several = [torch.from_numpy(one).bfloat16() for one in (answers if isinstance(answers, tuple) else (answers,))]
        return several if len(several) > 1 else several[0]
