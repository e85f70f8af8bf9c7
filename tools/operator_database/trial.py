"""Trials: a sample's graph over a ragged batch, against the operator on each request alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.lowering.errors import LoweringError
from torchserve_neuron_lstm.lowering.one_request.decompositions import decompositions_of
from torchserve_neuron_lstm.lowering.ragged.batched import run_ragged
from torchserve_neuron_lstm.lowering.ragged.sizes import evaluate

from .database import Placement, Sample, Sizes, placements

TIMESTEPS = 23
_PASSES = 4
KINDS = ("sample", "ties", "zeros", "signed zeros", "constant", "large", "low", "not finite", "minus infinity")
_NOT_FINITE = (math.nan, math.inf, -math.inf)
_PADDING = (*_NOT_FINITE, 1e30, -1e30)
_FINITE_ONLY = ("nn.functional.gelu", "var_mean", "std_mean")
"""Operators whose kernels differ for infinite elements by where these are in a vector of the processor."""
LENGTHS = (17, 1, 40, 3, 24, 2, 9, 33, 5, 64)


@dataclass(frozen=True)
class Trial:
    """The result for one placement of a sample."""

    operators: frozenset[str]
    outcome: str
    """`lowered`, `refused`, `wrong`, or `unfit`: eager mode answers no request of other lengths."""
    reason: str = ""


def trials(sample: Sample) -> Iterator[Trial]:
    """Try every placement of a sample that eager mode takes."""
    for alternatives in placements(sample):
        placed = next((item for item in (_Placed(sample, placement) for placement in alternatives) if item.fits), None)
        if placed is None:
            continue
        others = [n for n, shape in enumerate(placed.shapes) if n and "time" not in shape]
        forms = [frozenset(others)] if not others else [frozenset(others), frozenset[int]()]
        results = [_try(placed, shared) for shared in forms]
        yield next((r for want in ("wrong", "lowered", "refused") for r in results if r.outcome == want), results[0])


@dataclass(frozen=True)
class _Placed:
    """A sample whose dimensions have roles."""

    sample: Sample
    placement: Placement

    @property
    def shapes(self) -> Sequence[Sequence[Any]]:
        return self.placement.shapes

    @property
    def fits(self) -> bool:
        lengths = (TIMESTEPS, 40) if self.placement.has_time else (1,)
        return all(self.answer(self.inputs(length, "sample", 0), length) for length in lengths)

    def inputs(self, timesteps: int, kind: str, seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        pairs = zip(self.sample.tensors, self.shapes, strict=True)
        first, *others = [_resized(tensor, tuple(shape), timesteps, generator) for tensor, shape in pairs]
        return [_with_kind(first, kind, generator), *others]

    def call(self, tensors: Sequence[torch.Tensor], timesteps: Any) -> Any:
        return self.sample.call(tensors, dict.fromkeys(self.placement.numbers, timesteps))

    def answer(self, tensors: Sequence[torch.Tensor], timesteps: int) -> list[torch.Tensor] | None:
        """Return what eager mode answers to one request; None if it fails, or answers no tensor."""
        torch.default_generator.manual_seed(timesteps)  # `torch.manual_seed` keeps the stack for each kind of device
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                leaves = pytree.tree_leaves(self.call([t.clone() for t in tensors], timesteps))
        except Exception:  # noqa: BLE001 - whatever a call raises
            return None
        found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
        return found if found and len(found) == len(leaves) else None

    def as_input(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        return tensor if "batch" in self.shapes[number] else tensor.unsqueeze(0)


def _try(placed: _Placed, shared: frozenset[int]) -> Trial:
    example = placed.inputs(TIMESTEPS, "sample", 0)
    specs = placed.placement.specs(placed.sample)
    given = [number for number in range(len(specs)) if number not in shared]

    def function(*inputs: torch.Tensor) -> tuple[Any, ...]:
        tensors, timesteps = list(example), None
        for number, x in zip(given, inputs, strict=True):
            tensors[number] = x if "batch" in placed.shapes[number] else x.select(0, 0)
            if timesteps is None and "time" in specs[number].shape:
                timesteps = x.shape[specs[number].shape.index("time")]
        return tuple(pytree.tree_leaves(placed.call(tensors, 1 if timesteps is None else timesteps)))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = _trace(function, [specs[n] for n in given], [placed.as_input(example[n], n) for n in given])
    except Exception as error:  # noqa: BLE001 - whatever a trace raises
        return Trial(frozenset(), "untraced", f"{type(error).__name__}: {str(error)[:100]}")
    targets = (node.target for node in traced.module.graph.nodes)
    operators = frozenset(str(target) for target in targets if isinstance(target, torch._ops.OpOverload))
    return Trial(operators, *_compared(placed, given, example, traced))


@dataclass(frozen=True)
class _Row:
    timesteps: int
    kind: str
    tensors: list[torch.Tensor]
    answer: list[torch.Tensor]
    exact: list[torch.Tensor] | None
    """The answer in double precision."""

    def difference(self, found: Sequence[torch.Tensor]) -> str | None:
        """Return how results differ from the answer by more than rounding; None if they do not."""
        for number, (a, b) in enumerate(zip(self.answer, found, strict=True)):
            if a.shape != b.shape:
                return f"result {number}: sizes {list(b.shape)} instead of {list(a.shape)}"
            if a.dtype != b.dtype:
                return f"result {number}: {b.dtype} instead of {a.dtype}"
            if not _close(a, b, None if self.exact is None else self.exact[number]):
                where = ~torch.isclose(a.to(torch.complex128), b.to(torch.complex128), equal_nan=True)
                return f"result {number}: {b[where][:3].tolist()} instead of {a[where][:3].tolist()}"
        return None


def _rows(placed: _Placed, given: Sequence[int], example: Sequence[torch.Tensor], traced: _Traced) -> Iterator[_Row]:
    for turn in range(2):
        for index, kind in enumerate(KINDS):
            if kind in ("not finite", "minus infinity") and placed.sample.operator.startswith(_FINITE_ONLY):
                continue
            timesteps = LENGTHS[(index + turn * 3) % len(LENGTHS)] if placed.placement.has_time else 1
            if not traced.holds(timesteps):
                timesteps = next((n for n in sorted(LENGTHS) if traced.holds(n) and n >= timesteps), TIMESTEPS)
            tensors = placed.inputs(timesteps, kind, 10 * index + turn)
            tensors = [t if number in given else example[number] for number, t in enumerate(tensors)]
            answer = placed.answer(tensors, timesteps)
            if answer is not None:
                doubles = [t.double() if t.dtype is torch.float32 else t for t in tensors]
                yield _Row(timesteps, kind, tensors, answer, placed.answer(doubles, timesteps))


def _compared(
    placed: _Placed, given: Sequence[int], example: Sequence[torch.Tensor], traced: _Traced
) -> tuple[str, str]:
    rows = list(_rows(placed, given, example, traced))
    for row in rows[:1]:
        torch.default_generator.manual_seed(99)
        if row.difference(pytree.tree_leaves(placed.call(row.tensors, row.timesteps))) is not None:
            return "unfit", "random"
    try:
        results = _run(placed, given, traced, rows)
    except LoweringError as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001 - a fault of a rule
        return "wrong", f"{type(error).__name__}: {str(error)[:200]}"
    for row, found in zip(rows, results, strict=True):
        if row.timesteps == 1 and [x.dim() for x in row.answer] != [x.dim() for x in found]:
            continue  # of one timestep, `squeeze` makes another shape; packaging compares such requests with the model
        if (difference := row.difference(found)) is not None:
            return "wrong", f"{difference} at {row.timesteps} timesteps, {row.kind}"
    return "lowered", ""


def _run(placed: _Placed, given: Sequence[int], traced: _Traced, rows: Sequence[_Row]) -> list[list[torch.Tensor]]:
    """Run the graph over all rows as one batch, and return the results of each."""
    specs = placed.placement.specs(placed.sample)
    longest = max(row.timesteps for row in rows)
    generator = torch.Generator().manual_seed(7)
    arguments = []
    for number in given:
        shape = specs[number].shape
        inputs = [placed.as_input(row.tensors[number], number) for row in rows]
        parts = [_padded(tensor, shape, longest, generator) for tensor in inputs]
        arguments.append(torch.cat(parts, shape.index("batch")))
    lengths = torch.tensor([row.timesteps for row in rows])
    named = [(name, specs[number]) for name, number in zip(traced.names, given, strict=True)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = run_ragged(traced.module, named, traced.constants, arguments, lengths, longest)
    return [
        [
            value.tensor[index][tuple(slice(int(evaluate(size, row.timesteps))) for size in value.sizes)]
            for value in values
        ]
        for index, row in enumerate(rows)
    ]


def _padded(tensor: torch.Tensor, shape: Sequence[Any], longest: int, generator: torch.Generator) -> torch.Tensor:
    if "time" not in shape:
        return tensor
    sizes = [longest if size == "time" else own for size, own in zip(shape, tensor.shape, strict=True)]
    full = _padding(sizes, tensor.dtype, generator)
    full[tuple(slice(size) for size in tensor.shape)] = tensor
    return full


def _close(wanted: torch.Tensor, got: torch.Tensor, exact: torch.Tensor | None) -> bool:
    """Whether two results differ by rounding only: by no more than the rounding of eager mode where that is large."""
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return torch.equal(wanted, got)
    if not wanted.numel():
        return True
    kind = torch.complex128 if wanted.is_complex() else torch.float64
    finite = wanted.isfinite()
    scale = float(wanted[finite].abs().max()) if finite.any() else 1.0
    rounding = 0.0
    if exact is not None and exact.shape == wanted.shape:
        errors = (wanted.to(kind) - exact.to(kind)).abs()[finite & exact.isfinite()]
        rounding = float(errors.max()) if errors.numel() else 0.0
    return torch.allclose(wanted.to(kind), got.to(kind), 1e-5, 2e-6 * max(scale, 1.0) + 4 * rounding, equal_nan=True)


def _resized(tensor: torch.Tensor, shape: Sizes, timesteps: int, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor of a request's sizes, made of the elements of another one."""
    for dim, size in enumerate(shape):
        wanted = timesteps if size == "time" else 1 if size == "batch" else size
        if size in ("time", "batch"):
            if not tensor.shape[dim]:
                tensor = tensor.new_zeros([1 if d == dim else n for d, n in enumerate(tensor.shape)])
            chosen = torch.randint(tensor.shape[dim], (wanted,), generator=generator)
            tensor = tensor.index_select(dim, chosen)
    return tensor.clone()


def _with_kind(tensor: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor with values of a kind."""
    noise = torch.randn(tensor.shape, generator=generator)
    if tensor.dtype is torch.bool:
        made = {"zeros": noise > math.inf, "constant": noise < math.inf}.get(kind, tensor)
        return (noise > 0) if kind == "ties" else made
    if not tensor.is_floating_point():
        made = {
            "ties": torch.randint(3, tensor.shape, generator=generator),
            "zeros": torch.zeros_like(tensor),
            "constant": torch.full_like(tensor, 2),
            "large": (noise * 10000).to(tensor.dtype),
            "low": -10000 - (noise * 10).abs().to(tensor.dtype),
            # the lowest number has no negative: the processor stops at its division by -1
            "not finite": torch.where(noise > 0, torch.iinfo(tensor.dtype).max, 1 - torch.iinfo(tensor.dtype).max),
        }.get(kind, tensor)
        return made.to(tensor.dtype)
    made = {
        "ties": noise.round(),
        "zeros": torch.zeros_like(noise),
        "signed zeros": torch.where(noise > 0, 0.0, -0.0),
        "constant": torch.full_like(noise, 0.7),
        "large": noise * 10000,
        "low": -10000 - noise.abs(),
        "not finite": _mixed(noise, generator),
        "minus infinity": torch.full_like(noise, -math.inf),
    }.get(kind, tensor)
    return made.to(tensor.dtype)


def _mixed(noise: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    special = torch.tensor(_NOT_FINITE)[torch.randint(len(_NOT_FINITE), noise.shape, generator=generator)]
    return torch.where(noise > 0.3, special, noise)


def _padding(shape: list[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return arbitrary values, as they stand beyond the end of a row."""
    places = torch.randint(len(_PADDING), shape, generator=generator)
    if dtype.is_floating_point:
        return torch.tensor(_PADDING, dtype=dtype)[places]
    return places.to(dtype) if dtype is torch.bool else ((places - 2) * 1000003).to(dtype)


@dataclass(frozen=True)
class _Traced:
    """A graph with its placeholders' constants, and the numbers of timesteps for which it holds."""

    module: torch.fx.GraphModule
    names: tuple[str, ...]
    """Placeholders of the inputs; those of the other ones are in `constants`."""
    constants: dict[str, torch.Tensor]
    guards: tuple[sympy.Basic, ...]

    def holds(self, timesteps: int) -> bool:
        """Whether no condition of the trace excludes this number of timesteps."""
        return all(guard.xreplace(dict.fromkeys(guard.free_symbols, sympy.Integer(timesteps))) for guard in self.guards)


def _trace(function: Callable[..., Any], specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> _Traced:
    """Trace a function of the inputs of one request, which have `TIMESTEPS` timesteps."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    fakes = [
        mode.from_tensor(tensor, symbolic_context=_context(spec)) for spec, tensor in zip(specs, tensors, strict=True)
    ]
    module = _functional(_made(function, mode, fakes, {}), mode, fakes)
    table: dict[Any, Any] = {}
    for _ in range(_PASSES):
        if not (more := {target: d for target, d in decompositions_of(module).items() if target not in table}):
            break
        table |= more
        module = _functional(_made(module, mode, fakes, table), mode, fakes)
    names = tuple(node.name for node in module.graph.nodes if node.op == "placeholder")
    constants = _constants(module)
    return _Traced(module, names, constants, tuple(guard.expr for guard in env.guards if guard.expr.free_symbols))


def _context(spec: TensorSpec) -> StatelessSymbolicContext[Any, Any]:
    sizes = [DimDynamic.DUCK if size == "time" else DimDynamic.STATIC for size in spec.shape]
    return StatelessSymbolicContext(dynamic_sizes=sizes)


def _made(
    function: Callable[..., Any], mode: FakeTensorMode, fakes: Sequence[FakeTensor], table: dict[Any, Any]
) -> Any:
    with mode, enable_python_dispatcher(), torch.no_grad():
        return make_fx(function, decomposition_table=table, pre_dispatch=True, _allow_non_fake_inputs=True)(*fakes)


def _functional(module: torch.fx.GraphModule, mode: FakeTensorMode, fakes: Sequence[FakeTensor]) -> Any:
    targets = (node.target for node in module.graph.nodes)
    if not any(isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in targets):
        return module
    return _made(torch.func.functionalize(module), mode, fakes, {})


def _constants(module: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """Make placeholders of the tensors that the graph holds."""
    graph, constants = module.graph, dict[str, torch.Tensor]()
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        tensor = getattr(module, str(node.target))
        if isinstance(tensor, FakeTensor):
            raise TypeError("a constant has no value in a trace")
        with graph.inserting_before(next(iter(graph.nodes))):
            place = graph.placeholder(f"constant_{len(constants)}")
        place.meta["val"] = constants[place.name] = tensor
        node.replace_all_uses_with(place)
        graph.erase_node(node)
    return constants
