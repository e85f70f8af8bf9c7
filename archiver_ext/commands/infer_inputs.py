"""Inference of forward()'s inputs, from its signature and by calling it with small tensors of zeros or ones."""

from __future__ import annotations

import inspect
import itertools
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...backends.exported_program import quiet
from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import Axis, DType, TensorSpec
from ...lowering.errors import is_user_file
from ...lowering.packing.recurrence_fit import checked_packed_features

_LEAST_BATCH, _LEAST_TIME, _LEAST_CONVOLVED = 2, 5, 37
_CHARACTERS = 12
"""Ids of each timestep, such as the characters of a word, where nothing tells their number."""
_MOST_SECONDS = 10.0
_MOST_LOOSE = 2
"""Arguments without annotation that are taken for constants at once."""
_LENGTHS_NAME = re.compile(r"(.*_)?(len|lens|length|lengths|seqlens?|seqlengths?)")
_MASK_NAME = re.compile(r"(.*_)?mask|masks")
_CONSTANTS: dict[str, tuple[Any, ...]] = {"bool": (False, True), "int": (1, 0, 2), "float": (1.0, 0.0), "str": ("",)}
"""Values for arguments with these annotations, the likeliest first."""
_ANYTHING = ("Any", "typing.Any")


@dataclass(frozen=True)
class ForwardSignature:
    """The arguments of forward(), by their kinds."""

    tensors: tuple[str, ...]
    lengths: str | None
    constants: Mapping[str, Any]
    """Required arguments that are not tensors, each with an initial value."""
    optional: tuple[str, ...]
    """Arguments with defaults, which are not passed."""
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values to try for each constant, and for each argument that may be one instead of a tensor."""


@dataclass(frozen=True)
class InferredInputs:
    """The inferred arguments of a model."""

    signature: ForwardSignature
    inputs: tuple[TensorSpec, ...]
    """Layouts of the tensor arguments, in order; guesses if there is a `refusal`."""
    refusal: str | None
    """Error of forward() in the call that got furthest, if no guess was accepted; None: the inputs were accepted."""
    batched: bool = True
    """Whether forward() takes a batch; otherwise one request, and `batch` was put in front of its inputs."""
    unknown: frozenset[str] = frozenset()
    """Names of the inputs that were not inferred: no call got as far as to use them."""

    @property
    def mask(self) -> TensorSpec | None:
        """The input that is a mask, by its name and shape, beside one with time; None without one."""
        timed = [spec for spec in self.inputs if spec.time_dim is not None]
        masks = [s for s in timed if {*s.shape} == {"batch", "time"} and _MASK_NAME.fullmatch(s.name.lower())]
        return masks[0] if len(masks) == 1 and len(timed) > 1 and self.refusal is None else None


def infer_inputs(model: nn.Module) -> InferredInputs:
    """Find inputs that forward() accepts, among candidates from the model's layers.

    A recurrent model that takes no time beside a batch is tried without a batch.
    """
    signature = read_signature(model)
    candidates = candidate_inputs(model)
    found = _accepted(model, signature, candidates)
    if any(spec.time_dim is not None for spec in found.inputs) and found.refusal is None:
        return found
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    in_front = tuple(spec for spec in candidates if spec.shape[:2] == ("batch", "time")) if recurrent else ()
    alone = _accepted(model, signature, in_front, batched=False)
    return alone if alone.refusal is None else found


@torch.no_grad()
def _accepted(
    model: nn.Module, signature: ForwardSignature, candidates: tuple[TensorSpec, ...], *, batched: bool = True
) -> InferredInputs:
    """Return the first combination of candidates that forward() accepts, or else the one that gets furthest."""
    guess = tuple(replace(candidates[0], name=name) for name in signature.tensors) if candidates else ()
    furthest = InferredInputs(signature, guess, "it has no tensor argument", unknown=frozenset(signature.tensors))
    progress: tuple[int, ...] = (-1,)
    sizes = _trial_sizes(model, candidates)
    for strict, until in zip((False, True), itertools.count(time.monotonic() + _MOST_SECONDS, _MOST_SECONDS)):
        for tried in _variations(signature):
            own = [[replace(spec, name=n) for spec in _likeliest_first(n, candidates)] for n in tried.tensors]
            for specs, trial in _trials(partial(_call, model, tried, sizes, batched), own, strict, until):
                found, unknown = tuple(map(trial.described, specs)), frozenset(tried.tensors) - trial.used
                if trial.error is None:
                    return InferredInputs(tried, found, None, batched)
                if tried.tensors == signature.tensors and trial.progress > progress:
                    progress, furthest = trial.progress, InferredInputs(tried, found, trial.error, batched, unknown)
    return furthest


def _trials(
    call: Callable[..., _Trial], own: list[list[TensorSpec]], strict: bool, until: float
) -> Iterator[tuple[_Specs, _Trial]]:
    """Try one candidate for each argument, the likeliest combinations first, none with a part that was refused.

    After a refusal, that is the inputs of the failing call; if `strict`, all inputs that were used by then.
    """
    refused: dict[tuple[int, ...], set[_Specs]] = {}
    combinations = _combinations(own)
    while (specs := next(combinations, None)) is not None and time.monotonic() < until:
        if any(tuple(specs[place] for place in places) in parts for places, parts in refused.items()):
            continue
        trial = _try(call, specs)
        yield specs, trial
        names = trial.used if strict else trial.last or trial.used
        places = tuple(p for p, spec in enumerate(specs) if spec.name in names) or tuple(range(len(specs)))
        refused.setdefault(places, set()).add(tuple(specs[place] for place in places))
        if len(places) == 1:
            own[places[0]].remove(specs[places[0]])
            combinations = _combinations(own)


def read_signature(model: nn.Module) -> ForwardSignature:
    """Sort the arguments of forward() by name, annotation and default."""
    tensors, choices, optional = [], {}, []
    constants: dict[str, Any] = {}
    lengths = None
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = annotation_name(parameter)
        if lengths is None and _LENGTHS_NAME.fullmatch(parameter.name.lower()) and kind not in ("bool", "str"):
            lengths = parameter.name
        elif parameter.default is not parameter.empty:
            optional.append(parameter.name)
        elif kind in _CONSTANTS:
            choices[parameter.name] = _CONSTANTS[kind]
            constants[parameter.name] = _CONSTANTS[kind][0]
        else:
            tensors.append(parameter.name)
            if parameter.annotation is parameter.empty or kind in _ANYTHING or "None" in kind or "Optional" in kind:
                choices[parameter.name] = (None, False, True, 1, 1.0)  # where no tensor fits
    return ForwardSignature(tuple(tensors), lengths, constants, tuple(optional), choices)


def _variations(signature: ForwardSignature) -> Iterator[ForwardSignature]:
    """The signature, then those with other constants, then those with constants instead of tensors.

    At least one tensor is left.
    """
    fixed = [name for name in signature.choices if name in signature.constants]
    loose = [name for name in signature.choices if name not in signature.constants]
    for count in range(min(len(loose), len(signature.tensors) - 1, _MOST_LOOSE) + 1):
        for names in itertools.combinations(reversed(loose), count):
            for values in itertools.product(*(signature.choices[name] for name in (*fixed, *names))):
                constants = dict(zip((*fixed, *names), values, strict=True))
                tensors = tuple(name for name in signature.tensors if name not in constants)
                yield replace(signature, tensors=tensors, constants=constants)


def annotation_name(parameter: inspect.Parameter) -> str:
    """Return the annotation as text, empty or not."""
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def candidate_inputs(model: nn.Module) -> tuple[TensorSpec, ...]:
    """List the inputs that a model with these layers may take, the likeliest first."""
    modules = list(model.modules())
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase)]
    ids = any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in modules)
    usual: tuple[Axis, Axis] = ("batch", "time")
    other: tuple[Axis, Axis] = ("time", "batch")
    if recurrent and not any(module.batch_first for module in recurrent):
        usual, other = other, usual
    sizes = _feature_sizes(modules)
    channels = [_spec("float32", "batch", one.in_channels, "time") for one in modules if isinstance(one, nn.Conv1d)]
    sequences = [*_sequences(ids, sizes, usual), *_states(recurrent), *channels]
    items = [*(_spec("float32", "batch", size) for size in sizes), *([_spec("int64", "batch")] if ids else [])]
    likeliest = [*sequences, *items] if recurrent else [*items, *sequences]
    masks = [_spec("bool", *usual), _spec("float32", *usual)]
    one_hot = [_spec("int64", *usual)]  # ids without an embedding
    return tuple(dict.fromkeys([*likeliest, *masks, *one_hot, *_sequences(ids, sizes, other)]))


def _sequences(ids: bool, sizes: list[int], layout: tuple[Axis, Axis]) -> list[TensorSpec]:
    floats = [_spec("float32", *layout, size) for size in sizes]
    number = next(number for number in itertools.count(_CHARACTERS) if number not in sizes)
    return [_spec("int64", *layout), *floats, _spec("int64", *layout, number)] if ids else floats


def _states(recurrent: list[nn.RNNBase]) -> list[TensorSpec]:
    """Initial states [L*D, B, H], and those of projected outputs."""
    return [
        _spec("float32", module.num_layers * (1 + module.bidirectional), "batch", size)
        for module in recurrent
        for size in (module.proj_size, module.hidden_size)
        if size
    ]


def _spec(dtype: DType, *shape: int | Axis) -> TensorSpec:
    return TensorSpec("", dtype, shape)


def _feature_sizes(modules: list[nn.Module]) -> list[int]:
    """The sizes of the last dimension that an input may have, the likeliest first, each once.

    The input sizes of layers, recurrent layers first, and channels of convolutions; then the differences to the
    output sizes of embeddings and recurrent layers (as in `cat([embed(ids), frames], -1)`).
    """
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase)]
    linear = [module.in_features for module in modules if isinstance(module, nn.Linear)]
    normed = [module.normalized_shape[-1] for module in modules if isinstance(module, nn.LayerNorm)]
    channels = [module.in_channels for module in modules if isinstance(module, nn.Conv1d | nn.Conv2d)]
    cells = [module.input_size for module in modules if isinstance(module, nn.RNNCellBase)]
    taken = [*(module.input_size for module in recurrent), *cells, *linear, *channels]
    given = [module.embedding_dim for module in modules if isinstance(module, nn.Embedding)]
    given += [(module.proj_size or module.hidden_size) * (1 + module.bidirectional) for module in recurrent]
    rest = [whole - part for whole in taken for part in given if whole > part]
    return list(dict.fromkeys((*taken, *rest, *normed)))


def _combinations(own: list[list[TensorSpec]]) -> Iterator[tuple[TensorSpec, ...]]:
    """One of each list, the likeliest combinations first."""
    for total in range(sum(map(len, own))):
        for ranks in _ranks([len(specs) for specs in own], total):
            yield tuple(specs[rank] for specs, rank in zip(own, ranks, strict=True))


def _ranks(counts: list[int], total: int) -> Iterator[tuple[int, ...]]:
    """Yield ranks below these counts, of this sum."""
    if not counts and total == 0:
        yield ()
    for rank in range(min(total + 1, counts[0])) if counts else ():
        yield from ((rank, *others) for others in _ranks(counts[1:], total - rank))


def _likeliest_first(name: str, candidates: tuple[TensorSpec, ...]) -> list[TensorSpec]:
    """The candidates for one argument: a mask [batch, time] first, where it has such a name."""
    if not _MASK_NAME.fullmatch(name.lower()):
        return list(candidates)
    return sorted(candidates, key=lambda spec: spec.dtype == "int64" or {*spec.shape} != {"batch", "time"})


_LAYER = re.compile(r"\btorch.nn.modules.(?!module\.py)")
_NAMES = "_init_names"
"""The attribute of a tensor with the names of the inputs that it depends on."""
_Specs = tuple[TensorSpec, ...]
_Sizes = tuple[int, int]
"""Numbers of sequences and timesteps."""
Embedded = dict[str, nn.Embedding]
"""Embedding in which each of the arguments was looked up."""


class _Trial(TorchFunctionMode):
    """One call of forward(). Tensors bear the names of the inputs that they depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.error: str | None = None
        self.embedded: Embedded = {}
        self.counted: frozenset[str] = frozenset()
        """Ids that may not be 0, as timesteps are counted by them."""
        self.progress: tuple[int, ...] = ()
        """Number of inputs used, and the lines of the model's code that raised the error, the outermost first."""
        self.used: frozenset[str] = frozenset()
        """Inputs that torch's functions got, and of these, what the last one got."""
        self.last: frozenset[str] = frozenset()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.last = _names((args, kwargs))
        self.used |= self.last
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor):
                setattr(made, _NAMES, self.last)
        return result

    def described(self, spec: TensorSpec) -> TensorSpec:
        """An input; if it is ids, with their vocabulary and the embedding's own padding."""
        embedding = self.embedded.get(spec.name)
        if embedding is None:
            return spec
        known = replace(spec, vocabulary=embedding.num_embeddings, pad_value=embedding.padding_idx or 0)
        positive = embedding.padding_idx == 0 or spec.name in self.counted
        are_words = len(spec.shape) > 2  # whose characters are padded with 0 within a request
        return replace(known, value_range=(1, embedding.num_embeddings - 1)) if positive and not are_words else known


def _names(values: Any) -> frozenset[str]:
    return frozenset(name for leaf in tree_leaves(values) for name in getattr(leaf, _NAMES, ()))


def _try(call: Callable[..., _Trial], specs: tuple[TensorSpec, ...]) -> _Trial:
    """Call forward() with zeros, and where it refuses them with ones: padding may be counted by its zeros."""
    zeros = call(specs, {spec.name for spec in specs})
    if zeros.error is None:
        return zeros
    ones = call(specs, set())
    if ones.error is None:
        ones.counted = frozenset(name for name in ones.embedded if call(specs, {name}).error is not None)
    return max(zeros, ones, key=lambda trial: (trial.error is None, trial.progress))


def _call(
    model: nn.Module, signature: ForwardSignature, sizes: _Sizes, batched: bool, specs: _Specs, zero: set[str]
) -> _Trial:
    """Call forward() once, with zeros for the inputs of these names and ones for the others."""
    batch, steps = sizes
    given = {one.name: torch.full(one.sizes(*sizes), one.name not in zero, dtype=torch_dtype(one)) for one in specs}
    extra = {} if signature.lengths is None else {signature.lengths: torch.tensor([steps, *[steps - 2] * (batch - 1)])}
    if not batched:
        given, extra = ({name: tensor[0] for name, tensor in tensors.items()} for tensors in (given, extra))
    for name, tensor in given.items():
        setattr(tensor, _NAMES, {name})
    trial = _Trial()
    try:
        with watched_lookups(model, given) as trial.embedded, checked_packed_features(model), quiet(), trial:
            model(**given, **extra, **signature.constants)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything, and another guess may fit
        trial.error = " ".join(f"{type(error).__name__}: {error}".split())
        frames = [(frame, frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        trial.progress = (len(trial.used), *(line for _, file, line in frames if is_user_file(file)))
        trial.last |= _names([frame.f_locals for frame, file, _ in frames if _LAYER.search(file)])
    return trial


def _trial_sizes(model: nn.Module, candidates: _Specs) -> _Sizes:
    """Numbers of sequences and timesteps that equal no size of a candidate, lest one is taken for the other."""
    taken: set[Any] = {axis for spec in candidates for axis in spec.shape}
    convolved = any(isinstance(module, nn.Conv1d | nn.Conv2d) for module in model.modules())
    first, *others = (number for number in range(_LEAST_BATCH, _LEAST_BATCH + 99) if number not in taken)
    return first, next(number for number in others if number >= (_LEAST_CONVOLVED if convolved else _LEAST_TIME))


@contextmanager
def watched_lookups(model: nn.Module, given: Mapping[str, torch.Tensor]) -> Iterator[Embedded]:
    """Watch which of the given tensors reach an embedding; of several, the one with the fewest ids counts."""
    found: Embedded = {}
    names = {tensor.untyped_storage().data_ptr(): name for name, tensor in given.items()}

    def watch(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        name = names.get(arguments[0].untyped_storage().data_ptr()) if arguments else None
        if name is not None and isinstance(module, nn.Embedding):
            found[name] = min(module, found.get(name, module), key=lambda embedding: embedding.num_embeddings)

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                hooks.enter_context(module.register_forward_pre_hook(watch))
        yield found
