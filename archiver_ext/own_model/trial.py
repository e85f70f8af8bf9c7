"""Trial of a model's own code: requests of several lengths and scales, answered several times in different orders."""

from __future__ import annotations

import inspect
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any

import torch

from ...backends.signature import dtype_name
from ...bucketing.padding import padding_tensor, torch_dtype
from ...config.own_model import OwnModel
from ...config.schema import ServingConfig
from ...handlers.runtime.own_model import OwnProgram
from ...handlers.runtime.state_places import bits_of
from ...lowering.errors import explain_torch_error, format_source_line, is_user_file, raising_line, source_suffix
from ..commands.infer_inputs import watched_lookups
from ..errors import PackagingError
from ..evaluation.manifest_builder import BuildInput
from ..evaluation.reference import ReferenceRequest, as_batch
from ..evaluation.verification_cases import draw_inputs
from .described import make_program
from .learned_outputs import Answer, Observed

_SCALES = (1.0, 0.01, 30.0, 300.0)
_MOST_LENGTHS = 24

Outputs = list[tuple[str, torch.Tensor]]
MakeProgram = Callable[[tuple[str, ...]], OwnProgram]
"""A function that makes the model anew. Tensors of these names are put back after each request."""


class EagerFailure(PackagingError):
    """A model that fails in eager mode on one request."""

    def __init__(self, message: str, request: ReferenceRequest) -> None:
        super().__init__(message)
        self.request = request


@dataclass(frozen=True)
class Trial:
    """The answers of a model to its requests, and what was found out."""

    requests: tuple[ReferenceRequest, ...]
    answers: tuple[Outputs, ...]
    batch_dims: tuple[int | None, ...]
    """The batch dimension of each output."""
    vocabularies: dict[str, int]
    draws: bool
    """Whether answers differ, but not if random numbers are drawn from one seed."""
    answers_padding: bool
    rewritten: tuple[str, ...]
    state: tuple[str, ...]
    """Names of the state that requests leave behind, and that is put back."""
    error: float = 0.0
    """The largest difference of an output from eager mode."""
    failure: str = ""
    """The numbers of timesteps that were tried and that the model does not take, with its error; empty without one."""

    @property
    def observed(self) -> list[Answer]:
        """The layouts of the answers."""
        return [
            (request.length, tuple(_observed(place, tensor) for place, tensor in outputs))
            for request, outputs in zip(self.requests, self.answers, strict=True)
        ]


def _observed(place: str, tensor: torch.Tensor) -> Observed:
    unknown = tensor.numel() == 0 and tensor.dim() == 1
    dtype = str(tensor.dtype).removeprefix("torch.") if tensor.is_complex() else dtype_name(tensor)
    return Observed(place, "" if unknown else dtype, tuple(tensor.shape))


def try_described(
    build: BuildInput, description: OwnModel, constants: Mapping[str, torch.Tensor], lengths: Sequence[int]
) -> tuple[OwnModel, Trial]:
    """Try the model of a description, as `try_model` does; returns the description with what was found out too."""
    method = build.config.model.method
    name = description.name if method is None else f"{description.name}.{method}"
    trial = try_model(partial(make_program, build, description, constants), name, build.config, lengths)
    padding = trial.answers_padding
    return replace(description, draws=trial.draws, answers_padding=padding, rewritten=trial.rewritten), trial


def try_model(make: MakeProgram, name: str, config: ServingConfig, to_answer: Sequence[int]) -> Trial:
    """Answer requests of these timesteps twice, then in the opposite order, and compare the answers bit for bit.

    Raises `EagerFailure`: the model fails on one request, and not only at some numbers of timesteps.
    Raises `PackagingError`: its answers differ, and not because it draws random numbers.
    """
    try:
        return _tried(make, name, config, to_answer)
    except EagerFailure as failure:
        _require_failure_anew(make, name, config, failure)
        raise


def _tried(make: MakeProgram, name: str, config: ServingConfig, to_answer: Sequence[int]) -> Trial:
    program = make(())
    with _kept_generators():
        lengths, failure = _taken(make, program, name, config, to_answer)
        requests = tuple(_drawn(config, lengths))
        first = [answer(program, request, name, config) for request in requests]
        rewritten = tuple(program.state.unnoticed())
        if rewritten:
            program = make(rewritten)
            first = [answer(program, request, name, config) for request in requests]
        second = [answer(program, request, name, config) for request in reversed(requests)][::-1]
        different = [i for i, (one, other) in enumerate(zip(first, second, strict=True)) if not equal(one, other)]
        programs = [program, make(rewritten)]
        for index in different or range(0, len(requests), max(1, len(requests) // 2)):
            _require_same(programs, requests[index], name, config)
        changed = tuple(program.state.changed)  # before hooks are set, which are put back too
        vocabularies = _vocabularies(program, requests, config)
        dims = _batch_dims(program, requests[0], first, config)
        padding, draws = _answers_padding(program, config), bool(different)
        return Trial(requests, tuple(first), dims, vocabularies, draws, padding, rewritten, changed, failure=failure)


def _taken(
    make: MakeProgram, program: OwnProgram, name: str, config: ServingConfig, lengths: Sequence[int]
) -> tuple[list[int], str]:
    """Return the numbers of timesteps that the model takes, such as multiples of 32, and why it fails at others.

    Raises `EagerFailure`: it fails at all of them.
    """
    failures: dict[int, EagerFailure] = {}
    for request in islice(_drawn(config, lengths), len(lengths)):
        try:
            answer(program, request, name, config)
        except EagerFailure as error:  # noqa: PERF203 - the others are tried too
            failures[request.length] = error
    taken = [length for length in lengths if length not in failures]
    if not failures:
        return taken, ""
    first, *_ = failures.values()
    if not taken:
        raise first
    _require_failure_anew(make, name, config, first)
    reason = str(first).partition(". It was called with")[0]
    tried, others = (", ".join(map(str, numbers)) for numbers in (lengths, failures))
    return taken, f"requests of some lengths get an error: of {tried} timesteps, it takes not {others}: {reason}"


def lengths_to_answer(config: ServingConfig, shortest: int) -> list[int]:
    """Return the timesteps of the requests: around the bucket lengths, the shortest and the longest."""
    longest = config.longest
    chosen = {shortest, shortest + 1, (shortest + longest) // 2, longest - 1, longest}
    for length in config.grid.lengths[-_MOST_LENGTHS // 3 :]:
        chosen |= {length, length - 1, length + 1}
    return sorted(length for length in chosen if shortest <= length <= longest)[-_MOST_LENGTHS:]


def _drawn(config: ServingConfig, lengths: Sequence[int]) -> Iterator[ReferenceRequest]:
    rng = torch.Generator().manual_seed(0)
    specs = config.input_specs
    for index in range(max(len(lengths), len(_SCALES))):
        length, scale = lengths[index % len(lengths)], _SCALES[index % len(_SCALES)]
        scaled = (
            tensor * scale if tensor.is_floating_point() and spec.value_range is None else tensor
            for tensor, spec in zip(draw_inputs(specs, length, rng), specs, strict=True)
        )
        yield ReferenceRequest(length, tuple(scaled))


def batch_of(request: ReferenceRequest, config: ServingConfig) -> list[torch.Tensor]:
    """Return the tensors of a batch of one request, which a model may write into."""
    return [as_batch(tensor.clone(), spec) for tensor, spec in zip(request.inputs, config.input_specs, strict=True)]


def answer(program: OwnProgram, request: ReferenceRequest, name: str, config: ServingConfig) -> Outputs:
    """Answer a request. Raises `EagerFailure`: the model fails."""
    try:
        return program.outputs(batch_of(request, config), request.length)
    except Exception as error:
        given = ", ".join(
            f"{spec.name} as {spec.dtype} {list(tensor.shape)}"
            for spec, tensor in zip(config.input_specs, batch_of(request, config), strict=True)
        )
        message, line = _message_of(error)
        reason = explain_torch_error(message) or message
        raise EagerFailure(
            f"{name} fails in eager mode on one request of {request.length} timesteps, a batch of 1"
            f"{source_suffix(line)}: {reason}. It was called with {given}: check these under `inputs`, dtype, shape "
            "and `range`, if they are not what it takes",
            request,
        ) from error


def _require_failure_anew(make: MakeProgram, name: str, config: ServingConfig, failure: EagerFailure) -> None:
    """Refuse a model that fails on a request only after others."""
    try:
        answer(make(()), failure.request, name, config)
    except EagerFailure:
        return
    reason = str(failure).partition(". It was called with")[0].partition("a batch of 1")[2]
    raise PackagingError(
        f"{name} answers a request of {failure.request.length} timesteps when it is made anew, but fails on it after "
        f"other requests{reason}. {_KEEPS_STATE}"
    ) from failure


_KEEPS_STATE = (
    "It keeps state between calls that cannot be put back, such as that of an iterator or a file. Compute what a "
    "request needs within the call"
)
_SCRIPT_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def _message_of(error: Exception) -> tuple[str, str | None]:
    """Return the message of an error, and the user's line. TorchScript has both in a traceback of its own."""
    text = str(error).strip().rstrip(".")
    if "TorchScript interpreter" not in text:
        return f"{type(error).__name__}: {text}", raising_line(error)
    *_, last = text.splitlines()
    lines = [match for match in _SCRIPT_LINE.finditer(text) if is_user_file(match["file"])]
    return last, format_source_line(lines[-1]["file"], int(lines[-1]["line"])) if lines else None


def equal(one: Outputs, other: Outputs) -> bool:
    """Whether two answers are equal in every bit; NaN equals NaN."""
    return [place for place, _ in one] == [place for place, _ in other] and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits_of(a), bits_of(b))
        for (_, a), (_, b) in zip(one, other, strict=True)
    )


def _require_same(programs: Sequence[OwnProgram], request: ReferenceRequest, name: str, config: ServingConfig) -> None:
    """Refuse a model whose answers to one request differ although all random numbers are drawn alike."""
    answers = []
    for program in (programs[0], *programs):
        torch.manual_seed(0)
        random.seed(0)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(0)
        answers.append(answer(program, request, name, config))
    line = source_suffix(_line_of_forward(programs[0].model))
    if not equal(answers[0], answers[1]):
        raise PackagingError(
            f"{name} returns different outputs when it is called again with the same request ({request.length} "
            f"timesteps){line}. {_KEEPS_STATE}"
        )
    if not equal(answers[0], answers[2]):
        raise PackagingError(
            f"{name} returns different outputs when it is made anew with the same weights{line}: its constructor draws "
            "random numbers that --serialized-file does not hold. Keep them as parameters or with register_buffer"
        )


def _line_of_forward(model: torch.nn.Module) -> str | None:
    function = inspect.unwrap(model.forward)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return None if code is None else format_source_line(code.co_filename, code.co_firstlineno)


@contextmanager
def _kept_generators() -> Iterator[None]:
    numpy: Any = sys.modules.get("numpy")
    before = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(before[0])
        if numpy:
            numpy.random.set_state(before[1])


def _batch_dims(
    program: OwnProgram, request: ReferenceRequest, answers: Sequence[Outputs], config: ServingConfig
) -> tuple[int | None, ...]:
    """Return the dimension of each output that doubles where the first request is given twice, in one batch.

    Where the model takes no batch, or none of two: the batch dimension of the first input, if all answers have 1 there.
    """
    alone, expected = answers[0], config.input_specs[0].batch_dim
    if expected is None:
        return (None,) * len(alone)
    doubled = [
        tensor if spec.batch_dim is None else torch.cat([tensor, tensor], spec.batch_dim)
        for spec, tensor in zip(config.input_specs, batch_of(request, config), strict=True)
    ]
    try:
        twice = program.outputs(doubled, request.length, rows=2) if config.model.batched else []
    except Exception:  # noqa: BLE001 - the user's code, which need not take a batch
        twice = []
    if len(twice) == len(alone) and all(a.dim() == b.dim() for (_, a), (_, b) in zip(twice, alone, strict=True)):
        shapes = [(tuple(one.shape), tuple(other.shape)) for (_, one), (_, other) in zip(alone, twice, strict=True)]
        return tuple(
            next((i for i, pair in enumerate(zip(*both, strict=True)) if pair == (1, 2)), None) for both in shapes
        )
    outputs = zip(*answers, strict=False)  # learning their layouts refuses answers of other numbers of outputs
    have_one = (all(tensor.shape[expected : expected + 1] == (1,) for _, tensor in same) for same in outputs)
    return tuple(expected if has_one else None for has_one in have_one)


def _answers_padding(program: OwnProgram, config: ServingConfig) -> bool:
    padded = (
        ReferenceRequest(length, tuple(padding_tensor(spec, length) for spec in config.input_specs))
        for length in config.grid.lengths
    )
    return all(_answers(program, request, config) for request in padded)


def _vocabularies(program: OwnProgram, requests: Sequence[ReferenceRequest], config: ServingConfig) -> dict[str, int]:
    """Return the size of the embedding that takes each input of ids as it is, in every request.

    An input is left out if a request with an id outside is answered: another embedding may take it then.
    """
    found = _looked_up(program, requests[0], config)
    for request in requests[1:]:
        if not found:
            break
        found = dict(found.items() & _looked_up(program, request, config).items())
    longest = max(requests, key=lambda request: request.length)
    names = [spec.name for spec in config.input_specs]
    return {
        name: size
        for name, size in found.items()
        if not any(_answers(program, other, config) for other in _with_ids_outside(longest, names.index(name), size))
    }


def _looked_up(program: OwnProgram, request: ReferenceRequest, config: ServingConfig) -> dict[str, int]:
    tensors = batch_of(request, config)
    named = zip(config.input_specs, tensors, strict=True)
    ids = {spec.name: tensor for spec, tensor in named if not torch_dtype(spec).is_floating_point}
    if not ids:
        return {}
    with watched_lookups(program.model, ids) as embedded:  # each time anew: hooks are put back after a call
        program.outputs(tensors, request.length)
    return {name: embedding.num_embeddings for name, embedding in embedded.items()}


def _with_ids_outside(request: ReferenceRequest, index: int, size: int) -> Iterator[ReferenceRequest]:
    """Yield requests with ids outside of 0 to size - 1: at the first place, at the last one, and at all."""
    limits = torch.iinfo(request.inputs[index].dtype)
    for other, place in product((-1, size, 10 * size), (slice(1), slice(-1, None), slice(None))):
        if limits.min <= other <= limits.max:
            inputs = [tensor.clone(memory_format=torch.contiguous_format) for tensor in request.inputs]
            inputs[index].view(-1)[place] = other
            yield ReferenceRequest(request.length, tuple(inputs))


def _answers(program: OwnProgram, request: ReferenceRequest, config: ServingConfig) -> bool:
    try:
        program.outputs(batch_of(request, config), request.length)
    except Exception:  # noqa: BLE001 - the user's code, which need not take such a request
        return False
    return True
