"""Results of one run: seconds of every contestant in every round, and the rates derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from torchserve_neuron_lstm.bucketing.cost import CostModel

from .cases import Case, Size

OURS = "this engine"
PLANNED = "ONNX Runtime planned"
PACKED = "eager packed"
PADDED = "eager padded"
ONNX = "ONNX Runtime padded"


@dataclass(frozen=True)
class Measured:
    """One case: for each contestant the seconds of all its batches, one value for each round."""

    case: Case
    seconds: Mapping[str, tuple[float, ...]]
    fma_gflops: tuple[float, ...]
    """The cores' rate of multiply-adds in each round."""

    def took(self, contestant: str) -> float:
        """Seconds of all batches: the median of the rounds."""
        return median(self.seconds[contestant])

    def gflops(self, contestant: str) -> float:
        """Useful GFLOP/s."""
        return self.case.flop / self.took(contestant) / 1e9

    def best_gflops(self, contestant: str) -> float:
        """The rate of the best round."""
        return self.case.flop / min(self.seconds[contestant]) / 1e9

    def share_in_round(self, contestant: str) -> float:
        """The useful rate as a share of the multiply-adds of the same round: the median of the rounds.

        Where a shared machine gives the cores half of their rate at times, only this compares like with like.
        """
        rounds = zip(self.seconds[contestant], self.fma_gflops, strict=True)
        return median(self.case.flop / seconds / 1e9 / fma for seconds, fma in rounds)

    def times_faster(self, other: str) -> float:
        """The ratio of another contestant's time to ours."""
        return self.took(other) / self.took(OURS)


@dataclass(frozen=True)
class Rates:
    """Rates of the machine in GFLOP/s."""

    fma: float
    """Fused multiply-adds of its cores, the best of the run: no program is faster."""
    usual_fma: float
    """The median of the run; the gap to the best rate is the cost of other processes on the machine."""
    gemm: float
    """Torch's matrix product, the best of the run."""


@dataclass(frozen=True)
class Run:
    """All cases of one run."""

    rates: Rates
    cores_obtained: float
    """The share of the cores' time that this process got while it requested all of it."""
    measured: tuple[Measured, ...]
    chunk_costs: Mapping[Size, CostModel]
    """Costs of the chunks of each chunked model, measured by packaging."""

    @property
    def quiet(self) -> bool:
        """Whether the machine had little other load."""
        return self.cores_obtained > 0.9

    def of(self, case: Case) -> Measured:
        """Return the measurement of a case."""
        return next(found for found in self.measured if found.case == case)

    def ratio(self, case: Case, contestant: str = OURS) -> float:
        """The useful rate as a share of the cores' rate of multiply-adds."""
        return self.of(case).gflops(contestant) / self.rates.fma
