"""Services and manifests for fuzzing: together they have every way in which a request is read.

Their model has exact answers and no engine: it answers NaN wherever a caller must not read.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import fake_model
import torch
from fake_model import FRAMES, GRID, IDS
from memory_store import Clock, MemoryStore

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import Pad, Tensors, execute
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, ResumedState, execute_chunks
from torchserve_neuron_lstm.bucketing.padding import pad
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import Planner, make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, CarriedValue, ProgramRole, TensorSpec
from torchserve_neuron_lstm.config.manifest import AcceptedRange, Manifest, MeasuredCost, MeasuredError, Variant
from torchserve_neuron_lstm.config.manifest_values import RequestLimits
from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.custom import UserCodec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import Labels, ModelIdentity
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.streaming.state import SessionSource
from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions
from torchserve_neuron_lstm.handlers.streaming.token_sessions import TokenSessions
from torchserve_neuron_lstm.sessions.settings import Limits, RedisSettings, SessionFields, SessionSettings

MEANS = TensorSpec("means", "float32", ("batch", "time"))
CLASSES = TensorSpec("classes", "float32", ("batch", 3))
TOTAL = TensorSpec("total", "float32", ("batch",))
_SUM = CarriedValue(TensorSpec("sum", "float32", ("batch", 1)), 0.0)
_LARGEST = CarriedValue(TensorSpec("largest", "float32", ("batch", 1)), -math.inf)
STATE_ID = "ab" * 16
FIELDS = SessionFields("session", "start", "end", "step", "token")
LIMITS = RequestLimits(sequences=16, timesteps=100, body_bytes=1 << 16)
KIND = TensorSpec("kind", "uint8", ("batch", 3), value_range=(0.0, 50.0))
COSTS = tuple(MeasuredCost("sequence", bucket, 10.0) for bucket in GRID.buckets)
"""Ten milliseconds for each call."""
TIME_FIRST = (
    TensorSpec("grid", "float32", ("time", "batch", 2, 2)),
    TensorSpec("mask", "bool", ("batch", "time")),
    TensorSpec("half", "bfloat16", ("batch", "time")),
    KIND,
)
"""Inputs of four dtypes: time before batch, one without time, one with a range of values."""


def make_manifest(*inputs: TensorSpec, **facts: Any) -> Manifest:
    """Return the manifest of a model over `GRID`, with some values changed."""
    return fake_model.make_manifest(inputs, **{"outputs": (MEANS,), "limits": LIMITS, **facts})


def session_manifest(**settings: Any) -> Manifest:
    """Return the manifest of a streaming model, with some settings of its sessions."""
    given: dict[str, Any] = {"store": "disk", "state": STATE_ID, "fields": FIELDS}
    return make_manifest(
        IDS,
        outputs=(MEANS, TOTAL),
        kind="chunk",
        kind_reason="a sum is carried",
        carried=(_SUM,),
        longest=64,
        streaming=SessionSettings(**given | settings),
        variants=(Variant("chunk", None, "programs/eager/chunk"), Variant("head", None, "programs/eager/head")),
    )


def written_manifests() -> Mapping[str, Manifest]:
    """Return manifests that have every field of a written one, by name."""
    redis = RedisSettings("rediss://sessions.example:6380/1", "neuron", "PASSWORD", "ca.pem", 2.0, 1)
    cluster = RedisSettings("redis://sessions.example", replicas=1, cluster=True)
    rich: dict[str, Any] = {
        "requires": (("torch", "torch", "2.13.0"),),
        "host": {"machine": "x86_64"},
        "outputs": (MEANS, TensorSpec("logits", "float32", ("batch", "(time - 1)//2 + 1", 3))),
        "checks": (MeasuredError(GRID.buckets[0], 1e-6),),
        "costs": (MeasuredCost("sequence", GRID.buckets[0], 0.5),),
        "weights": "weights.pt",
        "constants": "programs/constants.pt",
        "codec": "codec:Codec",
        "kernel": "kernel:choose",
        "placement": "cores",
        "threads": 2,
        "shortest": 2,
        "accepted": (AcceptedRange("frames", -1.0, 1.0),),
        "produced_by": {"torch": "2.13.0"},
    }
    every_shape: dict[str, Any] = {
        "shapes": "any",
        "variants": (Variant("sequence", None, "programs/native", 12.5),),
        "padding_costs": (MeasuredCost("sequence", GRID.buckets[1], 0.25),),
    }
    return {
        "plain": make_manifest(IDS),
        "chunks": replace(session_manifest(), carried=(_SUM, _LARGEST), streaming=None),
        "rich": make_manifest(IDS, FRAMES, **rich),
        "every_shape": make_manifest(IDS, **every_shape),
        "sessions_disk": session_manifest(directory="/var/sessions", client_header="x-client"),
        "sessions_redis": session_manifest(store="redis", redis=redis, max_sessions=7, confirm_seconds=5.0),
        "sessions_cluster": session_manifest(store="redis", redis=cluster),
        "sessions_client": session_manifest(store="client", key_env="KEY", token_seconds=60.0),
    }


@dataclass(frozen=True)
class BoundedSums:
    """A model of running means: no input makes an output large or NaN.

    An output with time is the mean of all inputs up to each timestep; one without is its last value.
    """

    manifest: Manifest

    def plan(self, lengths: Sequence[int]) -> Plan:
        return self._planner.plan(lengths)

    @cached_property
    def _planner(self) -> Planner:
        facts = self.manifest
        return make_planner(facts.kind, facts.grid, CostModel.proportional(facts.grid), longest=facts.longest)

    def run_plan(
        self, plan: Plan, sequences: Any, lengths: Sequence[int], pad: Pad = pad, resumed: ResumedState | None = None
    ) -> tuple[list[Tensors], Tensors]:
        facts = self.manifest
        signature = ChunkSignature(facts.inputs, facts.outputs, facts.carried)
        if facts.kind == "chunk":
            return execute_chunks(plan, sequences, lengths, signature, self._run_chunk, pad, resumed=resumed)
        run = self._run_whole
        return execute(plan, sequences, lengths, facts.inputs, facts.outputs, facts.takes_lengths, run, pad), ()

    def _run_whole(self, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        *inputs, lengths = tensors
        means = _means(inputs, self.manifest.inputs, bucket).cumsum(1) / torch.arange(1, bucket.length + 1)
        last = means.gather(1, (lengths - 1)[:, None])
        means[torch.arange(bucket.length) >= lengths[:, None]] = torch.nan
        return [_output(means, last, spec) for spec in self.manifest.outputs]

    def _run_chunk(self, part: ProgramRole, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if part == "head":
            return [tensors[1][:, 0].clone()]
        *inputs, lengths, before = tensors
        sums = _means(inputs, self.manifest.inputs, bucket).cumsum(1) + before
        carried = sums.gather(1, lengths[:, None] - 1)
        return [torch.tanh(sums), carried]


def _means(inputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], bucket: Bucket) -> torch.Tensor:
    """Return float32[B, T]: the mean of all inputs' bounded values at each timestep."""
    whole = torch.zeros(bucket.batch, bucket.length)
    for tensor, spec in zip(inputs, specs, strict=True):
        bounded = torch.tanh(tensor.float() / 100)
        if spec.time_dim is None:
            whole += bounded.reshape(bucket.batch, -1).mean(1, keepdim=True)
            continue
        batch_first = bounded.movedim((spec.batch_dim or 0, spec.time_dim), (0, 1))
        whole += batch_first.reshape(bucket.batch, bucket.length, -1).mean(2)
    return whole


def _output(means: torch.Tensor, last: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    if spec.time_dim is not None:
        return means.clone()
    return last * torch.arange(1, spec.item_sizes(1)[0] + 1)


IDENTITY = ModelIdentity("model", "1.0")
KEY = bytes(range(32))
"""The key that signs session tokens."""
NOW = 1_700_000_000.0
"""The time of every clock: an input does the same whenever it is sent."""
MOST_RESPONSE_BYTES = 4096
OPEN_SESSION = "open"
"""A session that is open before each request."""


@dataclass(frozen=True)
class ServiceKind:
    """A service that begins each batch in the same state."""

    service: Service
    good: RawRequest
    """A request that is answered with 200."""
    reset: Callable[[], None]
    """A function that brings back the state in which the service began."""


class WordsCodec:
    """A user's codec: numbers as words, answered as words."""

    content_type = "text/plain"

    def decode(self, body: bytes, content_type: str) -> object:
        return {"ids": [int(word) for word in body.decode().split()]}

    def encode(self, outputs: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> object:
        """Write the outputs of a sequence as bytes, a single one as JSON; two are not taken."""
        if len(outputs["means"]) == 1:
            return outputs
        if len(outputs["means"]) == 2:
            raise ValueError("two numbers are no text")
        return " ".join(f"{value:.3f}" for value in outputs["means"].tolist()).encode()


class LinesCodec(WordsCodec):
    """A user's codec: one sequence in each line of the body."""

    def decode(self, body: bytes, content_type: str) -> object:
        return [super(LinesCodec, self).decode(line, content_type) for line in body.splitlines()]

    def encode(self, outputs: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> object:
        return {**outputs, "ids": inputs["ids"]}


KINDS: Mapping[str, Callable[[], ServiceKind]] = {
    "ids": lambda: _whole(make_manifest(IDS)),
    "two_inputs": lambda: _whole(make_manifest(IDS, FRAMES, outputs=(MEANS, CLASSES))),
    "named_inputs": lambda: _whole(
        make_manifest(TensorSpec("inputs", "float32", ("batch", "time", 2)), overflow="truncate")
    ),
    "shortest": lambda: _whole(make_manifest(TensorSpec("instances", "int64", ("batch", "time")), shortest=2)),
    "dtypes": lambda: _whole(make_manifest(*TIME_FIRST)),
    "rank_four": lambda: _whole(make_manifest(TensorSpec("grid", "float64", ("batch", "time", 2, 2)))),
    "time_last": lambda: _whole(make_manifest(TensorSpec("bands", "float32", ("batch", 2, 2, "time")))),
    "static": lambda: _whole(make_manifest(KIND, outputs=(CLASSES,))),
    "costly": lambda: _whole(make_manifest(IDS, costs=COSTS, limits=LIMITS._replace(milliseconds=25.0))),
    "narrow": lambda: _whole(make_manifest(TensorSpec("levels", "int8", ("batch", "time")))),
    "labels": lambda: _whole(make_manifest(IDS, outputs=(CLASSES,)), labels=Labels(("no", "maybe", "yes"))),
    "codec": lambda: _whole(make_manifest(IDS), user_codec=WordsCodec()),
    "codec_lines": lambda: _whole(make_manifest(IDS), user_codec=LinesCodec()),
    "sessions": lambda: _stored(session_manifest(), sessions=100),
    "few_sessions": lambda: _stored(session_manifest(client_header="x-client"), sessions=2, bytes=4096),
    "tokens": lambda: _signed(session_manifest(store="client", key_env="KEY")),
}
KIND_NAMES = tuple(KINDS)
"""Makers of the services by name; the first is that of an input that names none."""


@cache
def kind_of(name: str) -> ServiceKind:
    """Return the service of a name of `KINDS`."""
    return KINDS[name]()


def _whole(manifest: Manifest, labels: Labels | None = None, user_codec: UserCodec | None = None) -> ServiceKind:
    of_four = {spec.name: _nested(spec, spec.item_sizes(4)) for spec in manifest.inputs}
    good: object = "1 2 3 4" if user_codec else json.dumps(of_four)
    row = RawRequest({"body": bytearray(str(good).encode())})
    return ServiceKind(_service(manifest, None, labels, user_codec), row, lambda: None)


def _stored(manifest: Manifest, **limits: float) -> ServiceKind:
    given: dict[str, Any] = {"sessions": 100, "bytes": 10**6, "idle_seconds": 600.0, "client_sessions": 2, **limits}
    store = MemoryStore(Limits(**given), Clock())
    service = _service(manifest, StoreSessions(store))
    service.handle([_of_session(OPEN_SESSION, [1, 2])])
    begin = dict(store.entries)

    def reset() -> None:
        store.entries.clear()
        store.entries.update(begin)

    return ServiceKind(service, _of_session("good", [1, 2, 3, 4]), reset)


def _signed(manifest: Manifest) -> ServiceKind:
    sessions = TokenSessions((KEY, bytes(32)), bytes.fromhex(STATE_ID), 4, IDENTITY.name, 60.0, lambda: NOW)
    return ServiceKind(_service(manifest, sessions), _of_session("good", [1, 2, 3, 4]), lambda: None)


def _of_session(name: str, ids: list[int]) -> RawRequest:
    body = json.dumps({"ids": ids, "session": name, "start": True})
    return RawRequest({"body": bytearray(body.encode())}, {"x-client": name})


def _service(
    manifest: Manifest,
    sessions: SessionSource | None,
    labels: Labels | None = None,
    user_codec: UserCodec | None = None,
) -> Service:
    return Service(
        BoundedSums(manifest),
        make_codec(manifest, IDENTITY, labels, user_codec, MOST_RESPONSE_BYTES),
        {"described": True},
        MOST_RESPONSE_BYTES,
        clock=lambda: 0.0,
        unix_clock=lambda: NOW,
        sessions=sessions,
    )


def _nested(spec: TensorSpec, sizes: tuple[int, ...]) -> Any:
    if sizes:
        return [_nested(spec, sizes[1:]) for _ in range(sizes[0])]
    return True if spec.dtype == "bool" else 1
