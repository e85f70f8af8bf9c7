"""The engine for NVIDIA GPUs, on a double that holds captures to the rules of CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_device import GraphDevice, RuleBroken
from graph_programs import BUCKETS, compiled, loaded, rehearsals
from recurrent import BATCH, CASES, GARBAGE, TIME, Case, Recurrent, exported, largest_error, ragged_batch
from torch import nn
from torch_kernel import TorchKernel

from torchserve_neuron_lstm.backends import masked, simulation
from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device, placed_source
from torchserve_neuron_lstm.backends.cuda.graph_program import GraphProgram
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileError, LoadError
from torchserve_neuron_lstm.backends.signature import WrongInput
from torchserve_neuron_lstm.bucketing.shapes import Bucket


@pytest.mark.parametrize("own_kernel", [True, False], ids=["own kernel", "layers of the device"])
@pytest.mark.parametrize("case", CASES, ids=str)
@torch.no_grad()
def test_equals_every_row_alone_whatever_the_padding_holds(case: Case, own_kernel: bool, tmp_path: Path) -> None:
    """This holds for layers, directions, projections, cells and given states, in every captured shape."""
    kernel = TorchKernel()
    module, device = Recurrent(case).eval(), GraphDevice(kernel=kernel if own_kernel else None)
    program = exported(module, *ragged_batch(0.0))
    run = loaded(device, compiled(program, tmp_path / "program"), weights_of(program))
    captured = len(device.captured)

    for bucket in BUCKETS:
        for garbage in GARBAGE if case.ragged else (0.0,):
            x, lengths = ragged_batch(garbage, *bucket)
            assert largest_error(run([x, lengths]), module.alone(x, lengths)) <= 1e-5
    assert len(device.captured) == captured == len(BUCKETS)
    assert {*kernel.cells} == ({case.cell} if own_kernel and not case.projected else set())


@torch.no_grad()
def test_a_call_is_a_launch_between_two_copies_and_one_wait(tmp_path: Path) -> None:
    """However many inputs and outputs a program has."""
    module, device = Recurrent(CASES[0]).eval(), GraphDevice()
    program = exported(module, *ragged_batch(0.0))
    run = loaded(device, compiled(program, tmp_path / "program"), weights_of(program))
    launches, waits, copies = device.launches, device.waits, device.to_host
    run(ragged_batch(0.0))

    assert (device.launches - launches, device.waits - waits, device.to_host - copies) == (1, 1, 1)


@torch.no_grad()
def test_no_later_call_changes_the_outputs(tmp_path: Path) -> None:
    """The caller owns them, although each call of a shape writes the same memory of the device."""
    module = Recurrent(CASES[0]).eval()
    program = exported(module, *ragged_batch(0.0))
    run = loaded(GraphDevice(), compiled(program, tmp_path / "program"), weights_of(program))
    x, lengths = ragged_batch(0.0)
    first = run([x, lengths])
    kept = [tensor.clone() for tensor in first]
    run([x + 1, lengths])

    assert all(torch.equal(tensor, before) for tensor, before in zip(first, kept, strict=True))


@torch.no_grad()
def test_weights_are_uploaded_and_laid_out_once_for_all_graphs(tmp_path: Path) -> None:
    """Two programs in three shapes each share one copy, also of those with the gate-masking column."""
    module, device = Recurrent(Case(layers=2, bidirectional=True)).eval(), GraphDevice()
    program = exported(module, *ragged_batch(0.0))
    directory = compiled(program, tmp_path / "program")
    weights = weights_of(program)
    load_on_device(device, {"sequence": directory, "chunk": directory}, weights, rehearsals("sequence", "chunk"))

    assert (device.uploads, device.flattened, len(device.captured)) == (len(weights), 4, 6)


@torch.no_grad()
def test_the_largest_bucket_is_captured_first(tmp_path: Path) -> None:
    """Its memory then serves all smaller ones."""
    module, device = Recurrent(CASES[0]).eval(), GraphDevice()
    program = exported(module, *ragged_batch(0.0))
    loaded(device, compiled(program, tmp_path / "program"), weights_of(program))

    assert device.captured == sorted(device.captured, reverse=True)


@torch.no_grad()
def test_buckets_that_do_not_fit_are_named_with_the_grid_that_would_fit(tmp_path: Path) -> None:
    """Loading fails with one message, which says what the others take.

    The bucket of 4 x 9 fits, but a grid with it has one of 1 x 9 too, which was not captured.
    """
    module, device = Recurrent(CASES[0]).eval(), GraphDevice()
    program = exported(module, *ragged_batch(0.0))
    directory, weights = compiled(program, tmp_path / "program"), weights_of(program)
    held = loaded(device, directory, weights)
    for_the_second = device.used + device.captured[1]
    del held
    with pytest.raises(LoadError, match="do not fit into the memory of the double") as caught:
        loaded(GraphDevice(for_the_second), directory, weights)

    assert f"{2 * BATCH} x {TIME} takes about" in str(caught.value)
    assert "would fit is buckets: {batch: [1], length: [4]}" in str(caught.value)


@torch.no_grad()
def test_loading_needs_no_more_memory_than_serving(tmp_path: Path) -> None:
    """All buckets run before the first is captured: a run beside graphs would need memory twice."""
    module, device = Recurrent(CASES[0]).eval(), GraphDevice()
    program = exported(module, *ragged_batch(0.0))
    directory, weights = compiled(program, tmp_path / "program"), weights_of(program)
    held = loaded(device, directory, weights)
    enough = device.used + device.pool
    del held
    small = GraphDevice(enough)
    loaded(small, directory, weights)

    assert len(small.captured) == len(BUCKETS)


@torch.no_grad()
def test_threads_take_turns_on_the_device(tmp_path: Path) -> None:
    """Each thread makes the device current for its own call, and gets its own outputs."""
    module = Recurrent(CASES[0]).eval()
    program = exported(module, *ragged_batch(0.0))
    run = loaded(GraphDevice(), compiled(program, tmp_path / "program"), weights_of(program))
    requests = [ragged_batch(0.0, *bucket) for bucket in BUCKETS * 6]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(run, requests))

    for (x, lengths), outputs in zip(requests, found, strict=True):
        assert largest_error(outputs, module.alone(x, lengths)) <= 1e-5


@torch.no_grad()
def test_states_reach_layers_in_the_form_that_cudnn_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is carried batch first, or one row for a whole batch, is copied before."""
    plain, (x, lengths), state = masked.aten_lstm, ragged_batch(0.0), torch.randn(BATCH, 2, 6)
    module = BatchFirstState().eval()
    program, expected = exported(module, x, lengths, state), list(module(x, lengths, state))

    def picky(
        x: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        assert all(state.is_contiguous() for state in states), "rnn: hx is not contiguous"
        return plain(x, states, weights)

    monkeypatch.setattr(masked, "aten_lstm", picky)
    directory = compiled(program, tmp_path / "program")
    run = load_on_device(GraphDevice(), {"chunk": directory}, weights_of(program))["chunk"]

    assert largest_error(run([x, lengths, state]), expected) <= 1e-5


class BatchFirstState(nn.Module):
    """Layers whose h[B, L, H] is carried batch first, and whose c is one learned row for all."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(5, 6, 2, batch_first=True)
        self.c_0 = nn.Parameter(torch.randn(2, 1, 6))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states = h.transpose(0, 1), self.c_0.expand(-1, x.shape[0], -1)
        weights = list(self.core._flat_weights)
        y, h_n, c_n = torch.ops.neuron_lstm.lstm(x, lengths, *states, weights, True, 2, False, True)
        return y, c_n, h_n.transpose(0, 1)


@torch.no_grad()
def test_weights_that_do_not_fit_are_told(tmp_path: Path) -> None:
    """No bucket is blamed for them."""
    program = exported(Recurrent(CASES[0]), *ragged_batch(0.0))
    directory = compiled(program, tmp_path / "program")
    with pytest.raises(LoadError, match="the weights do not fit"):
        loaded(GraphDevice(100), directory, weights_of(program))


def test_inputs_of_another_dtype_are_refused(tmp_path: Path) -> None:
    """The graph would read other numbers."""
    program = exported(Recurrent(CASES[0]), *ragged_batch(0.0))
    run = loaded(GraphDevice(), compiled(program, tmp_path / "program"), weights_of(program))
    x, lengths = ragged_batch(0.0)
    with pytest.raises(WrongInput, match="float64"):
        run([x.double(), lengths])


class Selecting(nn.Module):
    """A model whose output has a size that depends on its data."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum() + lengths


class Attention(nn.Module):
    """A recurrence, then masked attention, pooling, and tensors that the program makes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Recurrent(Case("gru", bidirectional=True))
        self.score = nn.Linear(12, 1)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, _ = self.core(x, lengths)
        padding = torch.arange(x.shape[1])[None, :] >= lengths[:, None]
        share = self.score(y).squeeze(2).masked_fill(padding, float("-inf")).softmax(1)
        return (share[:, :, None] * y).sum(1), y.masked_fill(padding[:, :, None], float("-inf")).amax(1)


@torch.no_grad()
def test_attention_and_pooling_around_a_recurrence_are_exact(tmp_path: Path) -> None:
    """Masks are made on the device."""
    module = Attention().eval()
    program = exported(module, *ragged_batch(0.0))
    run = loaded(GraphDevice(), compiled(program, tmp_path / "program"), weights_of(program))
    inputs = ragged_batch(0.0)

    assert largest_error(run(inputs), list(module(*inputs))) <= 1e-5


class WrittenByMask(nn.Module):
    """A model that writes where a mask is true."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[x[:, :, 0] > 0] = torch.ones(5)
        return y + lengths[:, None, None]


class Places(nn.Module):
    """A model that counts places, by a composite operator without a tag."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0)[0].sum() + lengths


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Selecting(), r"index\.Tensor selects by a mask"),
        (WrittenByMask(), r"index_put_\.default selects by a mask"),
        (Places(), r"where\.default returns a size that depends on data"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_size_that_depends_on_data_is_refused_when_packaging(model: nn.Module, reason: str, tmp_path: Path) -> None:
    """The message names the call, and what to do."""
    program = exported(model, *ragged_batch(0.0))
    with pytest.raises(CompileError, match=rf"{reason}.*partitioner_config"):
        compiled(program, tmp_path / "program")


class Stepping(nn.Module):
    """A chunk program: x[B, t, F], lengths[B], h[B, H] -> y[B, t, H], h[B, H]."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.GRU(5, 6, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, h_n = torch.ops.neuron_lstm.rnn(x, lengths, h[None], list(self.core._flat_weights), "gru", True, 1, False)
        return y, h_n[0]


@torch.no_grad()
def test_a_chain_of_chunks_carries_its_state_on_the_device(tmp_path: Path) -> None:
    """Chunks of shrinking batches equal single calls, with one wait in all."""
    module, device = Stepping().eval(), GraphDevice()
    x, lengths = ragged_batch(0.0, 4, 4)
    program = exported(module, x, lengths, torch.zeros(4, 6))
    run = load_on_device(device, {"chunk": compiled(program, tmp_path / "program")}, weights_of(program))["chunk"]
    assert isinstance(run, GraphProgram)
    buckets = [Bucket(4, 4), Bucket(4, 4), Bucket(2, 8), Bucket(1, 4)]
    calls = [list(ragged_batch(0.0, *bucket)) for bucket in buckets]
    calls = [[call[0] + index, call[1]] for index, call in enumerate(calls)]
    state = torch.randn(4, 6)
    run.chain(buckets, calls, [state])  # captures
    waits = device.waits
    found = run.chain(buckets, calls, [state])

    assert device.waits == waits + 1
    for call, results, bucket in zip(calls, found, buckets, strict=True):
        expected = module(*call, state[: bucket.batch])
        assert largest_error(results, list(expected)) <= 1e-5
        state = expected[1]


@pytest.mark.parametrize(("precision", "error"), [("bfloat16", 3e-2), ("float16", 4e-3)])
@pytest.mark.parametrize("case", [Case(layers=2), Case(projected=True, bidirectional=True), Case("gru")], ids=str)
@torch.no_grad()
def test_a_lower_precision_computes_recurrences_in_it(case: Case, precision: str, error: float, tmp_path: Path) -> None:
    """Inputs and outputs keep their dtype, whatever the padding holds; the weights are reduced once."""
    module, device = Recurrent(case).eval(), GraphDevice()
    program = exported(module, *ragged_batch(0.0))
    run = loaded(device, compiled(program, tmp_path / "program", precision=precision), weights_of(program))
    for garbage in GARBAGE:
        x, lengths = ragged_batch(garbage)
        outputs = run([x, lengths])

        assert {output.dtype for output in outputs} == {torch.float32}
        assert 1e-6 < largest_error(outputs, module.alone(x, lengths)) < error


@torch.no_grad()
def test_packaging_computes_in_the_precision_that_the_gpu_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification on the CPU sees the rounding: more than that of float32, less than that of bfloat16."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    module, inputs = Recurrent(Case(layers=2)).eval(), ragged_batch(0.0)
    program, errors = exported(module, *inputs), {}
    for precision in Cuda.precisions:
        directory = compiled(program, tmp_path / precision, precision=precision)
        with simulation.enable_emulation():
            run = Cuda().load(directory, weights_of(program), {}, 1)
        errors[precision] = largest_error(run(inputs), module.alone(*inputs))

    assert errors["float32"] < 1e-6 < errors["float16"] < errors["bfloat16"]


@torch.no_grad()
def test_without_a_gpu_the_source_runs_on_the_cpu_while_packaging_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packaging verifies it so; a host refuses to serve, and says why."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    module = Recurrent(CASES[0]).eval()
    program = exported(module, *ragged_batch(0.0))
    directory, weights = compiled(program, tmp_path / "program"), weights_of(program)
    inputs = ragged_batch(1.0)
    with simulation.enable_emulation():
        run = Cuda().load(directory, weights, {}, 1)
        assert "emulated by torch on this CPU" in str(Cuda().simulation())
        assert largest_error(run(inputs), module.alone(*inputs)) <= 1e-5
    with pytest.raises(LoadError, match=r"run on an NVIDIA GPU.*another backend"):
        Cuda().load(directory, weights, {}, 1)


class Making(nn.Module):
    """A program that makes tensors: with a device, without one, and of another dtype."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(x.shape[1], device="cpu").to("cpu")
        return x + torch.ones(5) + steps[None, :, None] + torch.full((5,), 2, dtype=torch.int64)


def test_tensors_that_a_program_makes_are_made_on_the_gpu(tmp_path: Path) -> None:
    """Each of them names its device in the source, and loading replaces it."""
    directory = compiled(exported(Making(), *ragged_batch(0.0)), tmp_path / "program")
    source = placed_source((directory / "program.py").read_text("utf-8"), torch.device("cuda", 1))
    made = [
        line for line in source.splitlines() if any(f"= aten_{name}" in line for name in ("arange", "ones", "full"))
    ]

    assert len([line for line in made if "torch.device('cuda:1')" in line]) == 3
    assert "'cpu'" not in source


def test_the_double_notices_broken_rules() -> None:
    """Waits, allocations, tensors that outlive a capture, and memory of the host."""
    device = GraphDevice()
    with pytest.raises(RuleBroken, match="another device"):
        device.allocate(8)
    with device.current():
        own = device.allocate(8)
    host = torch.ones(8, dtype=torch.uint8)
    kept: list[torch.Tensor] = []
    broken: dict[str, Callable[[], Any]] = {
        "waits for a value": lambda: bool(own.sum()),
        "allocates memory": lambda: device.allocate(1),
        "waits for the device": device.synchronize,
        "outlive": lambda: kept.append(own + 1),
        "is not on the device": lambda: own.add_(host),
    }
    for message, body in broken.items():
        with device.current(), pytest.raises(RuleBroken, match=message):
            device.capture(body)
