"""The layouts of a model's outputs, learned from its answers to requests of several lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from ...bucketing.shapes import ANY_SIZE, DType, Size, TensorSpec, size_at
from ..errors import PackagingError

_DTYPES: tuple[str, ...] = get_args(DType)
_MOST_FACTOR = 8


@dataclass(frozen=True)
class Observed:
    """One output of the answer to one request, a batch of one."""

    place: str
    """Its place in what the model returned: `logits`, `1.0`, or empty."""
    dtype: str
    """Empty for an empty list, which has none."""
    shape: tuple[int, ...]


Answer = tuple[int, tuple[Observed, ...]]
"""The timesteps of a request, and the outputs."""


def learned_outputs(
    answers: Sequence[Answer], batch_dims: Sequence[int | None], names: Sequence[str] | None
) -> tuple[TensorSpec, ...]:
    """Return the layouts of the outputs; `batch_dims` are those of each output.

    Raises `PackagingError`: the number, the names, the dtypes or the dimensions of the outputs differ by request.
    """
    places = _places(answers)
    if not places:
        raise PackagingError("the model returns no tensor and no number: there is nothing to answer with")
    own = [place or "output" for place in places]
    if names is not None and len(names) != len(own):
        raise PackagingError(
            f"outputs: {len(names)} names ({', '.join(names)}) for the {len(own)} tensors that the model returns "
            f"({', '.join(own)}). Write one name for each, or leave `outputs` out"
        )
    return tuple(
        TensorSpec(name, _dtype(answers, index, name), tuple(_shape(answers, index, name, batch_dims[index])))
        for index, name in enumerate(names or own)
    )


def _places(answers: Sequence[Answer]) -> list[str]:
    first_length, first = answers[0]
    expected = [output.place for output in first]
    for length, outputs in answers[1:]:
        if (places := [output.place for output in outputs]) != expected:
            raise PackagingError(
                f"the model returns other tensors for a request of {length} timesteps ({_listed(places)}) than for one "
                f"of {first_length} ({_listed(expected)}): return the same for every request, as in "
                "torch.stack(steps) for a list with an element for each timestep"
            )
    return expected


def _listed(places: Sequence[str]) -> str:
    return ", ".join(place or "output" for place in places) or "none"


def _dtype(answers: Sequence[Answer], index: int, name: str) -> DType:
    dtypes = dict.fromkeys(outputs[index].dtype for _, outputs in answers if outputs[index].dtype)
    if len(dtypes) > 1:
        raise PackagingError(
            f"the model returns the output {name} as {' and as '.join(dtypes)}, by request: convert it to one dtype"
        )
    dtype = next(iter(dtypes), "float32")
    if dtype not in _DTYPES:
        raise PackagingError(
            f"the model returns the output {name} as {dtype}, and a response can hold {', '.join(_DTYPES)}: convert "
            "it, as in torch.view_as_real(x) for complex numbers"
        )
    return cast(DType, dtype)


def _shape(answers: Sequence[Answer], index: int, name: str, batch_dim: int | None) -> Iterator[Size]:
    ranks = {len(outputs[index].shape) for _, outputs in answers if outputs[index].dtype}
    if len(ranks) > 1 and (ranks != {0, 1} or batch_dim is not None):  # a number becomes a list of one
        counts = " or ".join(map(str, sorted(ranks)))
        raise PackagingError(f"the model returns the output {name} with {counts} dimensions, by request: return one")
    for dim in range(max(ranks, default=1)):
        sizes = [(length, (outputs[index].shape or (1,))[dim]) for length, outputs in answers if outputs[index].dtype]
        yield "batch" if dim == batch_dim else learned_size(sizes)


def learned_size(sizes: Sequence[tuple[int, int]]) -> Size:
    """Return the size that a dimension has, from pairs of timesteps and sizes.

    >>> learned_size([(4, 4), (9, 9)]), learned_size([(4, 8), (9, 8)]), learned_size([(4, 2), (9, 5), (7, 4)])
    ('time', 8, '(time - 1)//2 + 1')
    >>> learned_size([(4, 3), (4, 2)])
    'any'
    """
    lengths = {length for length, _ in sizes}
    if all(size == length for length, size in sizes):
        return "time"
    if len({size for _, size in sizes}) == 1 and sizes:
        return sizes[0][1]
    if len(lengths) < 3:
        return ANY_SIZE
    fitting = (text for text in _expressions(sizes) if all(size_at(text, length) == size for length, size in sizes))
    return next(fitting, ANY_SIZE)


def _expressions(sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield expressions of `time` that hold for the first pair."""
    length, size = sizes[0]
    for factor in range(1, _MOST_FACTOR + 1):
        rest = size - factor * length
        product = "time" if factor == 1 else f"{factor}*time"
        yield product if rest == 0 else f"{product} {'+' if rest > 0 else '-'} {abs(rest)}"
    for divisor in range(2, _MOST_FACTOR + 1):
        yield f"(time - 1)//{divisor} + 1"
        yield f"time//{divisor}"
