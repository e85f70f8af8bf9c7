"""Configurations of the test models, each of which must be served exactly."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import causal_models as causal
import noncausal_models as noncausal
import pytest
import torch
import typical_models as typical
from torch import nn

from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel


@dataclass(frozen=True)
class Case:
    """A model and the part of its configuration that describes forward()."""

    make: Callable[[], nn.Module]
    inputs: str
    lengths: bool = True
    extra: str = ""
    buckets: str = "{batch: [1, 2, 4], length: [4, 9, 16]}"

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def yaml(self) -> str:
        lengths = "  lengths: lengths\n" if self.lengths else ""
        return f"neuron_lstm:\n  inputs: {self.inputs}\n{lengths}{self.extra}  buckets: {self.buckets}\n"


_X = "{x: {dtype: float32, shape: [batch, time, 6]}}"
_IDS = "{ids: {dtype: int64, shape: [batch, time]}}"
_TIME_MAJOR = "{inputs: {dtype: float32, shape: [time, batch, 3]}}"

_SPEAKER = "{x: {dtype: float32, shape: [batch, time, 6]}, speaker: {dtype: float32, shape: [batch, 3]}}"


def _of(module: ModuleType, names: str) -> tuple[Case, ...]:
    return tuple(Case(getattr(module, name), _X) for name in names.split())


CASES = (
    Case(typical.FixedLength, _TIME_MAJOR, lengths=False),
    Case(typical.PackedSorted, _TIME_MAJOR),
    Case(typical.Tagger, _IDS, extra="  outputs: [logits]\n"),
    Case(typical.OneHotLetters, _IDS),
    *_of(typical, "ProjectedFourLayers ResidualStack SelfAttention MaskedMeanPooling VanillaRnn"),
    Case(
        typical.GruWithState,
        "{x: {dtype: float32, shape: [batch, time, 6]}, h0: {dtype: float32, shape: [4, batch, 8]}}",
    ),
    Case(
        typical.LstmWithState,
        "{x: {dtype: float32, shape: [time, batch, 6]}, state.0: {dtype: float32, shape: [2, batch, 8]}, "
        "state.1: {dtype: float32, shape: [2, batch, 8]}}",
    ),
    Case(typical.AttentionPooling, _IDS),
    Case(
        typical.TwoInputs,
        "{ids: {dtype: int64, shape: [batch, time]}, frames: {dtype: float32, shape: [batch, time, 4]}, "
        "speaker: {dtype: float32, shape: [batch, 3]}}",
    ),
    Case(typical.LastStepClassifier, _X, lengths=False),
    Case(typical.CausalPerStep, _X, lengths=False),
    Case(typical.MeanOverTime, _X, lengths=False),
    Case(typical.MedianOverTime, _X, lengths=False),
    Case(typical.NoBatch, "{x: {dtype: float32, shape: [time, 6]}}", lengths=False, buckets="{length: [4, 9, 16]}"),
    Case(typical.OptionalPacking, _IDS, extra="  model: {forward: {use_pack_unpack: true}}\n"),
    Case(typical.NoTime, "{x: {dtype: float32, shape: [batch, 6]}}", lengths=False, buckets="{batch: [1, 2, 4]}"),
    *_of(causal, "MeanOfUnpacked MeanByCountedMask MeanCountedFromOne MaximumOfMasked MaximumOfUnpacked"),
    *_of(causal, "TwoLayersAndTheirEnd LearnedState Parallel ReluRnn ProjectedGivenState InplaceRelu"),
    Case(causal.Extremes, _IDS),
    Case(
        causal.GruGivenState,
        "{x: {dtype: float32, shape: [batch, time, 6]}, h0: {dtype: float32, shape: [2, batch, 8]}}",
    ),
    Case(
        causal.LstmGivenState,
        "{x: {dtype: float32, shape: [time, batch, 6]}, state.0: {dtype: float32, shape: [1, batch, 8]}, "
        "state.1: {dtype: float32, shape: [1, batch, 8]}}",
    ),
    Case(causal.StateOfSpeaker, _SPEAKER, lengths=False),
    Case(causal.SpeakerAtEveryStep, _SPEAKER, lengths=False),
    Case(causal.AddedInPlace, "{carried_0: {dtype: float32, shape: [batch, time, 6]}}"),
    *_of(causal, "LogSoftmaxAtEveryStep FixedStatistics LastStep LastStepByIndex LengthsAreAnAnswer"),
    Case(causal.TiedWeights, _IDS, lengths=False),
    Case(causal.Switched, "{x: {dtype: float32, shape: [batch, time, 6]}, keep: {dtype: bool, shape: [batch, time]}}"),
    Case(causal.FirstHundred, _X),
    Case(causal.RunningSum, _X),
    Case(noncausal.FirstStep, _X),
    Case(noncausal.PositionsEmbedded, _X),
    Case(noncausal.PositionsSliced, _X, buckets="{batch: [1, 2, 5], length: [4, 9, 16]}"),
    *_of(noncausal, "AllButTheLast PositionsAreAnAnswer EncoderDecoder EndAsQuery PlaceOfTheMaximum WritesIntoAView"),
    *_of(noncausal, "StateWrittenInPlace FoldedSum BackAndForth FlattenedSteps"),
)


FEW = frozenset(
    {
        *("FixedLength", "OneHotLetters", "ProjectedFourLayers", "ResidualStack", "MaskedMeanPooling", "TwoInputs"),
        *("Extremes", "LstmGivenState", "StateOfSpeaker", "AddedInPlace", "FixedStatistics", "FirstHundred"),
        *("LastStepByIndex", "Tagger", "MedianOverTime", "SelfAttention", "NoBatch", "NoTime", "EncoderDecoder"),
    }
)
"""Models that stand for the others in `make test`: every kind of layer, input, output, carried value and reason."""


def cases(named: Collection[str] | None = None, *, few: bool = False) -> list[Any]:
    """Return all cases, or those named, as parameters of a test; tests of one model run in one process.

    With `few`, CI runs those that are not in `FEW`.
    """

    def marks(case: Case) -> list[pytest.MarkDecorator]:
        ci = [pytest.mark.ci] if few and case.name not in FEW else []
        return [pytest.mark.xdist_group(f"model {case.name}"), *ci]

    wanted = [case for case in CASES if named is None or case.name in named]
    return [pytest.param(case, id=case.name, marks=marks(case)) for case in wanted]


@dataclass(frozen=True)
class Lowered:
    """A test model with seeded weights, and its lowered form."""

    model: nn.Module
    config: ServingConfig
    program: LoweredModel


@cache
def lowered(case: Case) -> Lowered:
    """Lower a case once: lowering takes a second, and tests only read or run the result."""
    torch.manual_seed(0)
    model, config = case.make().eval(), parse_config(case.yaml, "model-config.yaml")
    return Lowered(model, config, lower(model, config))
