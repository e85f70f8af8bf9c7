"""Strategies for the properties of `bucketing`: random values, and a hand-picked pool of awkward ones."""

from typing import Any

import torch
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.padding import torch_dtype
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, DType, DynamicShape, TensorSpec

AWKWARD_GRIDS = (
    BucketGrid((1,), (1,)),
    BucketGrid((1,), (1, 2, 3)),
    BucketGrid((3,), (5,)),  # no bucket for a single row
    BucketGrid((2, 3), (1, 7)),
    BucketGrid((1, 4), (16, 17)),
    BucketGrid((1, 2, 4), (1, 2, 4)),
)
ALL_DTYPES: tuple[DType, ...] = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip

_ascending = st.sets(st.integers(1, 9), min_size=1, max_size=3).map(lambda sizes: tuple(sorted(sizes)))


def grids() -> st.SearchStrategy[BucketGrid]:
    """Small grids, so that brute force can follow."""
    return st.sampled_from(AWKWARD_GRIDS) | st.builds(BucketGrid, _ascending, _ascending)


@st.composite
def costs(draw: st.DrawFn, grid: BucketGrid) -> CostModel:
    """Measured costs are in no order: a larger bucket may be cheaper. Few distinct values make ties."""
    kind = draw(st.sampled_from(("proportional", "equal", "ties", "any")))
    if kind == "proportional":
        return CostModel.proportional(grid)
    if kind == "equal":
        return CostModel(dict.fromkeys(grid.buckets, 1.0))
    nanoseconds = st.integers(1, 3) if kind == "ties" else st.integers(1, 5_000_000)
    return CostModel({bucket: draw(nanoseconds) / 1e6 for bucket in grid.buckets})


@st.composite
def problems(draw: st.DrawFn, max_size: int = 12) -> tuple[BucketGrid, CostModel, list[int]]:
    """Lengths that fit, often on an edge or one beside it."""
    grid = draw(grids())
    edges = {edge + step for edge in (0, *grid.lengths) for step in (-1, 0, 1)}
    on_edges = st.sampled_from(sorted(edge for edge in edges if 1 <= edge <= grid.lengths[-1]))
    lengths = st.lists(on_edges | st.integers(1, grid.lengths[-1]), min_size=1, max_size=max_size)
    return grid, draw(costs(grid)), draw(lengths)


@st.composite
def exact_problems(draw: st.DrawFn, max_size: int = 12) -> tuple[BucketGrid, CostModel, list[int]]:
    grid = draw(grids())
    lengths = st.lists(st.sampled_from(grid.lengths), min_size=1, max_size=max_size)
    return grid, draw(costs(grid)), draw(lengths)


def any_shapes() -> st.SearchStrategy[DynamicShape]:
    return st.builds(DynamicShape, st.integers(1, 12), st.integers(1, 40))


@st.composite
def measurements(draw: st.DrawFn, shape: DynamicShape) -> CostModel:
    """A few noisy measured points: the number of points may differ by rows, and larger ones may cost less."""
    if draw(st.booleans()):
        return CostModel.proportional(shape)
    points = [
        Bucket(batch, length)
        for batch in sorted(draw(st.sets(st.integers(1, shape.batch), min_size=1, max_size=4)))
        for length in sorted(draw(st.sets(st.integers(1, shape.length), min_size=1, max_size=3)))
    ]
    milliseconds = st.floats(1e-3, 10.0) | st.sampled_from((0.001, 1.0, 2.0))
    return CostModel({point: draw(milliseconds) for point in points})


@st.composite
def free_problems(draw: st.DrawFn, max_size: int = 12) -> tuple[DynamicShape, CostModel, list[int]]:
    """An engine for any shape, its measured costs, and lengths within its limit."""
    shape = draw(any_shapes())
    lengths = st.lists(st.integers(1, shape.length), min_size=1, max_size=max_size)
    return shape, draw(measurements(shape)), draw(lengths)


@st.composite
def chunk_problems(draw: st.DrawFn, max_size: int = 12, longest: int = 40) -> tuple[BucketGrid, CostModel, list[int]]:
    """A grid of chunks, its costs, and lengths that may take many chunks."""
    grid = draw(grids() | st.just(BucketGrid((1, 2, 4), (2, 4, 8, 16))))
    return grid, draw(costs(grid)), draw(st.lists(st.integers(1, longest), min_size=1, max_size=max_size))


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    """Layouts with batch and time in any position or absent; time may occur twice, as in an attention map."""
    named: list[str] = draw(st.sampled_from((["batch"], []))) + ["time"] * draw(st.integers(0, 2))
    fixed: list[int] = draw(st.lists(st.integers(1, 3), max_size=2))
    shape: list[Any] = draw(st.permutations([*named, *fixed]))
    return TensorSpec("x", draw(st.sampled_from(ALL_DTYPES)), tuple(shape), pad_value=draw(st.sampled_from((0, 1))))


def item_of(spec: TensorSpec, length: int, seed: int) -> torch.Tensor:
    """One request's tensor with random bits: NaN and infinity among them."""
    sizes = [length if isinstance(size, str) else size for size in spec.item_shape]
    dtype = torch_dtype(spec)
    count = torch.Size(sizes).numel()
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, sizes, generator=generator).bool()
    bits = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).reshape(sizes)


@st.composite
def padding_problems(draw: st.DrawFn) -> tuple[TensorSpec, Bucket, list[torch.Tensor], list[int]]:
    """A layout, a bucket, the items for some of its rows, and their lengths."""
    spec = draw(specs())
    bucket = Bucket(draw(st.integers(1, 4)) if spec.batch_dim is not None else 1, draw(st.integers(1, 5)))
    lengths = draw(st.lists(st.integers(1, bucket.length), min_size=1, max_size=bucket.batch))
    seed = draw(st.integers(0, 2**32 - 1))
    return spec, bucket, [item_of(spec, length, seed + row) for row, length in enumerate(lengths)], lengths
