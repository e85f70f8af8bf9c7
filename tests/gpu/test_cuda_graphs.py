"""The engine `cuda` on a real GPU. Without one, each test is skipped as not run."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from graph_programs import BUCKETS, Stepping, rehearsal, rehearsals
from recurrent import BATCH, CASES, GARBAGE, Case, Recurrent, exported, largest_error, ragged_batch
from torch import nn

from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device
from torchserve_neuron_lstm.backends.cuda.graph_program import GraphProgram
from torchserve_neuron_lstm.backends.cuda.kernels.nvrtc_kernel import too_old
from torchserve_neuron_lstm.backends.cuda.torch_device import TorchDevice, gpu_missing
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileSettings, LoadError, Precision
from torchserve_neuron_lstm.bucketing.shapes import Bucket

_MISSING = gpu_missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_MISSING is not None, reason=f"not run: {_MISSING}")]


def loaded(
    module: nn.Module, folder: Path, precision: Precision = "float32", *extra: torch.Tensor, own_kernel: bool = True
) -> GraphProgram:
    program = exported(module, *ragged_batch(0.0), *extra)
    Cuda().compile(program, None, folder, CompileSettings(precision))
    device = TorchDevice(0, own_kernel=own_kernel)
    assert (device.kernel is not None) == (own_kernel and too_old(torch.device("cuda", 0)) is None)
    run = load_on_device(device, {"sequence": folder}, weights_of(program), [] if extra else rehearsals("sequence"))
    found = run["sequence"]
    assert isinstance(found, GraphProgram)
    return found


@pytest.mark.parametrize("own_kernel", [True, False], ids=["own kernel", "cuDNN"])
@pytest.mark.parametrize("case", CASES, ids=str)
@torch.no_grad()
def test_equals_every_row_alone_whatever_the_padding_holds(case: Case, own_kernel: bool, tmp_path: Path) -> None:
    """The reference is torch on the CPU, so that TF32 would be noticed."""
    module = Recurrent(case).eval()
    run = loaded(module, tmp_path, own_kernel=own_kernel)
    for bucket in BUCKETS:
        for garbage in GARBAGE if case.ragged else (0.0,):
            x, lengths = ragged_batch(garbage, *bucket)
            assert largest_error(run([x, lengths]), module.alone(x, lengths)) <= 2e-5


@pytest.mark.parametrize("own_kernel", [True, False], ids=["own kernel", "cuDNN"])
@torch.no_grad()
def test_wide_layers_are_computed_in_float32(own_kernel: bool, tmp_path: Path) -> None:
    """At 256 hidden units the error of TF32 is a hundred times the tolerance."""
    module = Recurrent(Case(layers=2, bidirectional=True), hidden=256).eval()
    x, lengths = ragged_batch(0.0)
    expected = module.alone(x, lengths)

    for ours, theirs in zip(loaded(module, tmp_path, own_kernel=own_kernel)([x, lengths]), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("precision", "error"), [("bfloat16", 3e-2), ("float16", 4e-3)])
@pytest.mark.parametrize("own_kernel", [True, False], ids=["own kernel", "cuDNN"])
@torch.no_grad()
def test_a_lower_precision_is_near(precision: Precision, error: float, own_kernel: bool, tmp_path: Path) -> None:
    module = Recurrent(Case(layers=2)).eval()
    x, lengths = ragged_batch(0.0)
    run = loaded(module, tmp_path, precision, own_kernel=own_kernel)

    assert largest_error(run([x, lengths]), module.alone(x, lengths)) < error


@torch.no_grad()
def test_graphs_share_memory_in_any_order_of_calls_and_threads(tmp_path: Path) -> None:
    module = Recurrent(Case(layers=2, bidirectional=True)).eval()
    run = loaded(module, tmp_path)
    requests = [ragged_batch(0.0, *BUCKETS[index % 3]) for index in (0, 2, 1, 1, 0, 2) * 10]
    before = torch.cuda.current_device(), torch.cuda.current_stream()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(run, requests))

    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == before
    for (x, lengths), outputs in zip(requests, found, strict=True):
        assert largest_error(outputs, module.alone(x, lengths)) <= 2e-5


@pytest.mark.parametrize("precision", Cuda.precisions)
@torch.no_grad()
def test_the_weights_of_recurrences_are_in_the_block_that_cudnn_reads(precision: Precision, tmp_path: Path) -> None:
    """Otherwise torch warns, and copies them there with each call."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="RNN module weights are not part of single contiguous")
        loaded(Recurrent(Case(layers=2, bidirectional=True)).eval(), tmp_path, precision, own_kernel=False)


@torch.no_grad()
def test_a_bucket_that_does_not_fit_is_told_and_leaves_no_memory(tmp_path: Path) -> None:
    module = Recurrent(Case()).eval()
    program = exported(module, *ragged_batch(0.0))
    Cuda().compile(program, None, tmp_path)
    small, large = Bucket(1, 4), Bucket(1 << 15, 512)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()  # cuBLAS keeps 33 MiB for each stream of earlier tests
    torch.cuda.set_per_process_memory_fraction(min(1.0, (held + 2**30) / total))
    try:
        for buckets in ((small, large), (small,)):
            calls = [rehearsal("sequence", one) for one in buckets]
            given = TorchDevice(0), {"sequence": tmp_path}, weights_of(program), calls
            if large in buckets:
                with pytest.raises(LoadError, match=r": 32768 x 512\. Serve smaller buckets"):
                    load_on_device(*given)
            else:
                run = load_on_device(*given)["sequence"]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    x, lengths = ragged_batch(0.0, *small)

    assert largest_error(run([x, lengths]), module.alone(x, lengths)) <= 2e-5


@torch.no_grad()
def test_a_chain_of_chunks_carries_its_state_on_the_gpu(tmp_path: Path) -> None:
    module = Stepping().eval()
    run = loaded(module, tmp_path, "float32", torch.zeros(BATCH, 6))
    buckets = [Bucket(4, 4), Bucket(4, 4), Bucket(2, 8), Bucket(1, 4)]
    calls = [list(ragged_batch(0.0, *bucket)) for bucket in buckets]
    state = torch.randn(4, 6)
    for _ in range(2):
        carried = state
        for call, results in zip(calls, run.chain(buckets, calls, [state]), strict=True):
            expected = module(*call, carried[: len(call[0])])
            assert largest_error(results, list(expected)) <= 2e-5
            carried = expected[1]
