"""Inference of forward()'s inputs, from its signature and by calling it with small tensors of zeros."""

from __future__ import annotations

import inspect
import itertools
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ...backends.exported_program import quiet
from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import Axis, DType, TensorSpec
from ...lowering.packing.recurrence_fit import checked_packed_features

_BATCH, _TIME = 2, 5
_MOST_TRIALS = 4000
_MOST_SECONDS = 20.0
_MOST_LOOSE = 2
"""Arguments without annotation that are taken for constants at once."""
_LENGTHS_NAME = re.compile(r"(.*_)?(len|lens|length|lengths|seqlens?|seqlengths?)")
_MASK_NAME = re.compile(r"(.*_)?mask|masks")
_CONSTANTS: dict[str, tuple[Any, ...]] = {"bool": (False, True), "int": (1, 0, 2), "float": (1.0, 0.0), "str": ("",)}
"""Values for arguments with these annotations, the likeliest first."""
_ANYTHING = ("Any", "typing.Any")
_ANY_CONSTANT = (None, False, True, 1, 1.0)
"""Values for an argument without annotation that no tensor fits."""


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
    """First error of forward() if no guess was accepted; None: the inputs were accepted."""
    batched: bool = True
    """Whether forward() takes a batch; otherwise one request, and `batch` was put in front of its inputs."""

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


def _accepted(
    model: nn.Module, signature: ForwardSignature, candidates: tuple[TensorSpec, ...], *, batched: bool = True
) -> InferredInputs:
    """Call forward() with one combination of candidates after the other; the first that it accepts."""
    refusal: str | None = "it has no tensor argument"
    until = time.monotonic() + _MOST_SECONDS
    for tried in _variations(signature):
        trials = itertools.islice(_combinations(tried.tensors, candidates), _MOST_TRIALS)
        for specs in itertools.takewhile(lambda _: time.monotonic() < until, trials):
            outcome = _call(model, tried, specs, batched)
            if not isinstance(outcome, str):
                return InferredInputs(tried, _described(specs, outcome), None, batched)
            refusal = refusal if refusal != "it has no tensor argument" else outcome
    likeliest = candidates[0] if candidates else _spec("float32", "batch", "time", 1)
    return InferredInputs(signature, tuple(replace(likeliest, name=name) for name in signature.tensors), refusal)


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
                choices[parameter.name] = _ANY_CONSTANT
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
    sequences = [*_sequences(ids, sizes, usual), *_states(recurrent)]
    items = [*(_spec("float32", "batch", size) for size in sizes), *([_spec("int64", "batch")] if ids else [])]
    likeliest = [*sequences, *items] if recurrent else [*items, *sequences]
    masks = [_spec("bool", *usual), _spec("float32", *usual)]
    one_hot = [_spec("int64", *usual)]  # ids without an embedding
    return tuple(dict.fromkeys([*likeliest, *masks, *one_hot, *_sequences(ids, sizes, other)]))


def _sequences(ids: bool, sizes: list[int], layout: tuple[Axis, Axis]) -> list[TensorSpec]:
    return [*([_spec("int64", *layout)] if ids else []), *(_spec("float32", *layout, size) for size in sizes)]


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

    The input sizes of layers, recurrent layers first; then the differences to the output sizes of embeddings and
    recurrent layers (as in `cat([embed(ids), frames], -1)`).
    """
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase)]
    linear = [module.in_features for module in modules if isinstance(module, nn.Linear)]
    normed = [module.normalized_shape[-1] for module in modules if isinstance(module, nn.LayerNorm)]
    taken = [*(module.input_size for module in recurrent), *linear]
    given = [module.embedding_dim for module in modules if isinstance(module, nn.Embedding)]
    given += [(module.proj_size or module.hidden_size) * (1 + module.bidirectional) for module in recurrent]
    rest = [whole - part for whole in taken for part in given if whole > part]
    return list(dict.fromkeys((*taken, *rest, *normed)))


def _combinations(names: tuple[str, ...], candidates: tuple[TensorSpec, ...]) -> Iterator[tuple[TensorSpec, ...]]:
    """One candidate for each name, the likeliest combinations first."""
    if not names:
        return
    ranks = range(len(candidates))
    if len(names) > 3:  # too many to sort: try them as they come
        orders: Iterator[tuple[int, ...]] = itertools.product(ranks, repeat=len(names))
    else:
        orders = iter(sorted(itertools.product(ranks, repeat=len(names)), key=sum))
    ordered = [_likeliest_first(name, candidates) for name in names]
    for order in orders:
        yield tuple(replace(own[rank], name=name) for rank, own, name in zip(order, ordered, names, strict=True))


def _likeliest_first(name: str, candidates: tuple[TensorSpec, ...]) -> list[TensorSpec]:
    """The candidates for one argument: a mask [batch, time] first, where it has such a name."""
    if not _MASK_NAME.fullmatch(name.lower()):
        return list(candidates)
    return sorted(candidates, key=lambda spec: spec.dtype == "int64" or {*spec.shape} != {"batch", "time"})


Embedded = dict[str, nn.Embedding]
"""Embedding in which each of the arguments was looked up."""


def _call(
    model: nn.Module, signature: ForwardSignature, specs: tuple[TensorSpec, ...], batched: bool
) -> Embedded | str:
    """Call forward() once; returns the embeddings that it used, or its error."""
    given = {spec.name: torch.zeros(spec.sizes(_BATCH, _TIME), dtype=torch_dtype(spec)) for spec in specs}
    extra = {} if signature.lengths is None else {signature.lengths: torch.tensor([_TIME, _TIME - 2])}
    if not batched:
        given, extra = ({name: tensor[0] for name, tensor in tensors.items()} for tensors in (given, extra))
    try:
        with watched_lookups(model, given) as embedded, checked_packed_features(model), quiet(), torch.no_grad():
            model(**given, **extra, **signature.constants)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything, and another guess may fit
        return " ".join(f"{type(error).__name__}: {error}".split())
    return embedded


@contextmanager
def watched_lookups(model: nn.Module, given: Mapping[str, torch.Tensor]) -> Iterator[Embedded]:
    """Watch which of the given tensors reach an embedding; of several, the one with the fewest ids counts."""
    found: Embedded = {}
    names = {tensor.untyped_storage().data_ptr(): name for name, tensor in given.items()}

    def watch(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        name = names.get(arguments[0].untyped_storage().data_ptr()) if arguments else None
        if name is not None and isinstance(module, nn.Embedding):
            found[name] = min(module, found.get(name, module), key=lambda embedding: embedding.num_embeddings)

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_pre_hook(watch) for module in embeddings]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _described(specs: tuple[TensorSpec, ...], embedded: Embedded) -> tuple[TensorSpec, ...]:
    """The accepted inputs, those that are ids with their vocabulary and the embedding's own padding."""
    return tuple(_with_embedding(spec, embedded[spec.name]) if spec.name in embedded else spec for spec in specs)


def _with_embedding(spec: TensorSpec, embedding: nn.Embedding) -> TensorSpec:
    known = replace(spec, vocabulary=embedding.num_embeddings, pad_value=embedding.padding_idx or 0)
    return replace(known, value_range=(1, embedding.num_embeddings - 1)) if embedding.padding_idx == 0 else known
