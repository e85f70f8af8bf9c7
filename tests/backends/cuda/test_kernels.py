import logging
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from cuda_bindings import Code, FakeCuda
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.backends.cuda.kernels import nvrtc_kernel
from torchserve_neuron_lstm.backends.cuda.kernels import nvrtc_kernel as nvrtc
from torchserve_neuron_lstm.backends.cuda.kernels.interface import KernelError, LayerCall
from torchserve_neuron_lstm.backends.cuda.kernels.nvrtc_kernel import WIDEST, NvrtcKernel, geometry, kernel_missing
from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice

HERE = torch.device("cpu", 0)
"""A device in place of the first GPU."""
REGISTERS = 1 << 16
"""Registers of 32 bits in a multiprocessor."""


@given(st.integers(1, WIDEST), st.integers(1, 2000), st.integers(1, 2), st.integers(1, 200))
def test_every_size_is_one_that_a_gpu_can_launch(hidden: int, batch: int, directions: int, processors: int) -> None:
    sizes = geometry(hidden, batch, directions, processors)

    assert sizes.cluster in (1, 2, 4, 8)
    assert hidden <= sizes.cluster * sizes.units
    assert sizes.threads % 32 == 0
    assert sizes.threads <= 512
    assert sizes.rows % sizes.rows_at_once == 0
    assert nvrtc.SLICES % sizes.rows_at_once == 0
    assert 4 * sizes.units * -(-hidden // 64) * 64 <= REGISTERS // 2


@given(st.integers(1, WIDEST), st.integers(1, 2000))
def test_a_larger_batch_never_has_fewer_rows_in_a_cluster(hidden: int, batch: int) -> None:
    assert geometry(hidden, batch, 1, 132).rows <= geometry(hidden, batch + 1, 1, 132).rows
    assert geometry(hidden, 1, 1, 132).rows == 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    nvrtc_kernel._function.cache_clear()
    nvrtc_kernel._cubin.cache_clear()
    facts = SimpleNamespace(multi_processor_count=132, major=9, minor=0)
    stream = SimpleNamespace(cuda_stream=77, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (facts.major, facts.minor))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return FakeCuda().install(monkeypatch)


def call(batch: int, hidden: int) -> LayerCall:
    state = torch.zeros(1, batch, hidden)
    gates, y = torch.zeros(batch, 5, 1, 3 * hidden), torch.zeros(batch, 5, hidden)
    w_hh, b_hn = torch.zeros(1, 3 * hidden, hidden), torch.zeros(1, hidden)
    return LayerCall("gru", gates, w_hh, b_hn, None, state, None, y, state.clone(), None)


def test_a_launch_has_the_sizes_and_the_addresses(cuda: FakeCuda) -> None:
    given = call(32, 256)
    NvrtcKernel(0).enqueue(given)
    (*blocks, threads, _, _, shared, stream, arguments, _) = cuda.launches[0]

    assert (blocks, threads, shared, stream) == ([8, 16, 1], 512, 0, 77)
    values, types = arguments
    assert len(values) == len(types)
    assert values[0] == given.gates.data_ptr()
    assert (values[3], values[5], values[8], *values[-2:]) == (0, 0, 0, 32, 5)


def test_sizes_are_compiled_once(cuda: FakeCuda) -> None:
    for batch in (32, 30, 1):
        for _ in range(2):
            NvrtcKernel(0).enqueue(call(batch, 256))

    rows = [[option for option in options if option.startswith("-DROWS=")] for options in cuda.compiled]
    assert rows == [["-DROWS=2"], ["-DROWS=1"]]
    assert {"-DCELL=GRU", "-DHIDDEN=256", "--gpu-architecture=sm_90"} <= {*cuda.compiled[0]}


def test_errors_of_cuda_are_raised(cuda: FakeCuda) -> None:
    cuda.code = Code.ERROR_LAUNCH
    with pytest.raises(KernelError, match="ERROR_LAUNCH"):
        NvrtcKernel(0).enqueue(call(1, 6))
    cuda.refused = "-DHIDDEN=7"
    with pytest.raises(KernelError, match=r"ERROR_COMPILATION.*: recurrence.cu\(1\): error: no such architecture$"):
        NvrtcKernel(0).enqueue(call(1, 7))


def test_the_reason_is_told_where_the_kernel_cannot_run(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_missing(HERE) is None
    assert (len(cuda.compiled), len(cuda.launches)) == (1, 1)
    cuda.code = Code.ERROR_LAUNCH
    assert str(kernel_missing(HERE)).startswith("ERROR_LAUNCH: ")
    nvrtc_kernel._function.cache_clear()
    nvrtc_kernel._cubin.cache_clear()
    cuda.refused = "--gpu-architecture=sm_90"
    assert "no such architecture" in str(kernel_missing(HERE))
    nvrtc_kernel._function.cache_clear()
    monkeypatch.setattr(nvrtc_kernel, "import_module", Mock(side_effect=ModuleNotFoundError("No module named 'cuda'")))
    assert str(kernel_missing(HERE)).startswith("it needs the package cuda-bindings: No module named")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    assert str(kernel_missing(HERE)) == "the GPU has compute capability 8.6, and the kernel needs 9.0 or higher"


def test_a_device_without_the_kernel_says_so_in_the_log(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own layers then compute, which is no error."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA X")
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(nvrtc_kernel, "_trial", lambda _: call(1, 64))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    assert isinstance(TorchDevice(0).kernel, NvrtcKernel)
    assert TorchDevice(0, own_kernel=False).kernel is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    with caplog.at_level(logging.INFO):
        assert TorchDevice(0).kernel is None
    assert "recurrent layers run in cuDNN" in caplog.text
    assert "compute capability 8.6" in caplog.text
