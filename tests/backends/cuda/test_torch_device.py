"""The adapter of torch.cuda where it needs no GPU: settings of torch, and errors about memory."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import pytest
import torch
import torch.backends.cudnn.rnn

from torchserve_neuron_lstm.backends.cuda.kernels.interface import KernelError
from torchserve_neuron_lstm.backends.cuda.torch_device import (
    OutOfMemory,
    _memory_errors,
    _without_collections,
    _without_tf32,
)

BACKENDS: Any = torch.backends
SETTINGS = (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn)


def written() -> list[str]:
    """The precision of float32 in products, convolutions and recurrences on a GPU."""
    return [setting.fp32_precision for setting in SETTINGS]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = written()
    yield
    for setting, value in zip(SETTINGS, before, strict=True):
        setting.fp32_precision = value


@pytest.mark.parametrize("chosen", [("ieee", "ieee", "ieee"), ("tf32", "tf32", "tf32"), ("tf32", "ieee", "tf32")])
def test_tf32_is_off_within_and_as_before_afterwards(chosen: tuple[str, ...]) -> None:
    """The settings may differ, which torch's former names of them cannot tell."""
    for setting, value in zip(SETTINGS, chosen, strict=True):
        setting.fp32_precision = value
    with _without_tf32():
        assert written() == ["ieee"] * 3
    assert written() == [*chosen]

    with pytest.raises(OutOfMemory), _memory_errors(), _without_tf32():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
    assert written() == [*chosen]


@contextmanager
def broken_capture() -> Iterator[None]:
    """The end of a capture whose work has failed: torch.cuda.graph raises in place of the reason."""
    try:
        yield
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore"),
        RuntimeError("CUDA error: out of memory\nmore"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        KernelError("CUDA_ERROR_OUT_OF_MEMORY: the kernel for recurrent layers cannot be compiled or launched"),
    ],
    ids=lambda error: str(error)[:20],
)
def test_every_report_of_missing_memory_is_understood(error: RuntimeError) -> None:
    with pytest.raises(OutOfMemory) as plain, _memory_errors():
        raise error
    with pytest.raises(OutOfMemory) as hidden, _memory_errors(), broken_capture():
        raise error

    assert str(plain.value) == str(hidden.value) == str(error).splitlines()[0]


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="sizes"), _memory_errors():
        raise RuntimeError("sizes do not match")


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_within_and_as_before_afterwards(enabled: bool) -> None:
    """A worker of TorchServe may have its collections off already."""
    if not enabled:
        gc.disable()
    try:
        with pytest.raises(OutOfMemory, match="collects: False"), _without_collections():
            raise OutOfMemory(f"collects: {gc.isenabled()}")
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_values_of_a_run_that_did_not_fit_are_freed_at_once() -> None:
    """Smaller buckets are tried next: no circle of errors and frames holds the memory."""
    made: list[ref[torch.Tensor]] = []

    def run() -> None:
        value = torch.ones(3)
        made.append(ref(value))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    gc.disable()
    try:
        with pytest.raises(OutOfMemory) as caught, _memory_errors():
            run()
        del caught
        assert made[0]() is None
    finally:
        gc.enable()
