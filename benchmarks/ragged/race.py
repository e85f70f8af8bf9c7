"""All contestants on the same requests: verified against eager mode, then timed interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch

from torchserve_neuron_lstm.archiver_ext.commands.matrix_product import gemm, gemm_gflops
from torchserve_neuron_lstm.archiver_ext.commands.timing import TimingConfig, time_interleaved
from torchserve_neuron_lstm.archiver_ext.torch_threads import on_threads
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.handlers.runtime.loader import measured_cost

from ..fma.loop import FmaLoop
from .archive import make_model, packaged
from .cases import Case, Size
from .contestants import Contestant, alone, disagreement, eager_packed, eager_padded, onnx_padded, served
from .measured import ONNX, OURS, PACKED, PADDED, PLANNED, Measured, Rates, Run
from .model import Ragged

_FMA, _GEMM = "FMA", "GEMM"


class WrongAnswers(RuntimeError):
    """A contestant whose answers differ from the model's: its time means nothing."""


def race(
    cases: Sequence[Case], folder: Path, backend: str, threads: int, pace: TimingConfig, tell: Callable[[str], None]
) -> Run:
    """Measure all cases. Archives are made in `folder`; `tell` receives the progress.

    Raises:
        CannotCompile: there is no C++ compiler for the loop of multiply-adds.
        CannotArchive: a model cannot be packaged.
        WrongAnswers: a contestant differs from eager.
    """
    loop = FmaLoop(threads, folder)
    loops: list[float] = []
    products: list[float] = []
    obtained: list[float] = []
    measured: dict[Case, Measured] = {}
    chunk_costs: dict[Size, CostModel] = {}
    for size, same in _by_size(cases):
        tell(f"packaging {size}")
        model = make_model(size)
        archive = packaged(model, size, folder / f"archive-{len(measured)}", backend)
        planned = packaged(model, size, folder / f"planned-{len(measured)}", "onnxruntime")
        contestants = _contestants(model, archive, planned, threads)
        if cost := measured_cost(read_manifest(planned), "chunk"):
            chunk_costs[size] = cost
        for case in same:
            tell(f"measuring {case}")
            obtained.append(cores_obtained(threads))
            limits: dict[str, Callable[[], object]] = {_FMA: loop, _GEMM: on_threads(threads, gemm())}
            seconds = seconds_of(case, model, contestants, limits, pace)
            of_loop = seconds.pop(_FMA)
            loops += of_loop
            products += seconds.pop(_GEMM)
            measured[case] = Measured(case, seconds, tuple(loop.gflops([one]) for one in of_loop))
    in_order = tuple(measured[case] for case in cases)
    rates = Rates(loop.gflops(loops), loop.gflops([median(loops)]), gemm_gflops(products))
    return Run(rates, median(obtained), in_order, chunk_costs)


def cores_obtained(threads: int, calls: int = 5) -> float:
    """The share of the cores' time that this process gets during matrix products on `threads` threads."""
    product = on_threads(threads, gemm())
    product()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(calls):
        product()
    return (time.process_time() - used) / (time.perf_counter() - began) / threads


def _by_size(cases: Sequence[Case]) -> Iterator[tuple[Size, list[Case]]]:
    for size in dict.fromkeys(case.size for case in cases):
        yield size, [case for case in cases if case.size == size]


def _contestants(model: Ragged, archive: Path, planned: Path, threads: int) -> dict[str, Contestant]:
    contestants = {
        OURS: served(archive, threads),
        PLANNED: served(planned, threads),
        ONNX: on_threads(threads, onnx_padded(model, threads)),
        PACKED: on_threads(threads, eager_packed(model)),
    }
    if model.directions == 1:
        contestants[PADDED] = on_threads(threads, eager_padded(model))
    return contestants


def seconds_of(
    case: Case,
    model: Ragged,
    contestants: Mapping[str, Contestant],
    limits: Mapping[str, Callable[[], object]],
    pace: TimingConfig,
) -> dict[str, tuple[float, ...]]:
    """Seconds of each contestant and of each limit of the machine, taken in turns.

    Raises:
        WrongAnswers: a contestant differs from eager; nothing is timed then.
    """
    torch.manual_seed(0)
    batches = [[torch.randn(length, case.size.features) for length in batch] for batch in case.batches]
    for name, contestant in contestants.items():
        _compare(f"{name} on {case}", contestant, alone(model), batches)
    calls = {name: partial(_answer_all, contestant, batches) for name, contestant in contestants.items()}
    return time_interleaved({**calls, **limits}, pace)


def _compare(what: str, contestant: Contestant, reference: Contestant, batches: Sequence[list[torch.Tensor]]) -> None:
    worst = max(disagreement(contestant(batch), reference(batch)) for batch in batches)
    if not worst <= 1:
        raise WrongAnswers(f"{what}: an answer differs from the model's by {worst:.3g} times the tolerance")


def _answer_all(contestant: Contestant, batches: Sequence[list[torch.Tensor]]) -> None:
    for batch in batches:
        contestant(batch)
