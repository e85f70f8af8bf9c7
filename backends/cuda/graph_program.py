"""Programs whose shapes are captured as graphs.

A call is one copy to the device, one launch, one copy back, and one wait. Both copies move one buffer, which holds all
inputs or all outputs, through pinned memory. In a chain of chunks the carried values stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock

import torch

from ...bucketing.shapes import Bucket
from ..signature import Signature, describe_tensor
from .device import Device, OutOfMemory
from .memory_plan import BufferLayout, layout_of

Module = Callable[..., Sequence[torch.Tensor]]
"""A program as a function of its inputs; all its tensors are on the device."""


@dataclass(frozen=True)
class WarmShape:
    """A program that has run in one shape, and that can be captured in it."""

    inputs: BufferLayout
    input_buffer: torch.Tensor
    outputs: BufferLayout
    output_buffer: torch.Tensor
    values: int
    """The most bytes that its values take while it runs, beside inputs and outputs."""


def bytes_together(shapes: Iterable[WarmShape]) -> int:
    """Return the memory of programs that run one after the other: only that of their values is shared."""
    known = list(shapes)
    buffers = sum(shape.inputs.nbytes + shape.outputs.nbytes for shape in known)
    return buffers + max((shape.values for shape in known), default=0)


@dataclass(frozen=True)
class CapturedGraph:
    """A program in one shape, with the memory that its graph reads and writes."""

    inputs: BufferLayout
    input_buffer: torch.Tensor
    outputs: BufferLayout
    output_buffer: torch.Tensor
    launch: Callable[[], None]


def warm_up(device: Device, module: Module, inputs: Sequence[torch.Tensor]) -> tuple[WarmShape, Sequence[torch.Tensor]]:
    """Run a program on these inputs, so that it can be captured in their shapes; returns its outputs too.

    Inputs and outputs are on the CPU.

    Raises:
        OutOfMemory: it does not fit into the device's memory.
    """
    own = layout_of(inputs)
    input_buffer = device.allocate(own.nbytes)
    device.copy(input_buffer, _staged(device, own, inputs))
    arguments = own.views(input_buffer)
    found, most = device.warm_up(lambda: list(module(*arguments)))
    layout = layout_of(found)
    output_buffer = device.allocate(layout.nbytes)
    for result, value in zip(layout.views(output_buffer), found):
        result.copy_(value)
    del found  # no value of the warm-up may stay in memory while a graph is recorded
    fetched = device.pinned(layout.nbytes)
    device.copy(fetched, output_buffer)
    device.synchronize()
    return WarmShape(own, input_buffer, layout, output_buffer, most), layout.views(fetched)


def capture(device: Device, module: Module, shape: WarmShape) -> CapturedGraph:
    """Capture a program in a shape. Raises `OutOfMemory`: it does not fit into the device's memory."""
    arguments = shape.inputs.views(shape.input_buffer)
    results = shape.outputs.views(shape.output_buffer)

    def body() -> None:
        for result, value in zip(results, module(*arguments)):
            result.copy_(value)

    return CapturedGraph(shape.inputs, shape.input_buffer, shape.outputs, shape.output_buffer, device.capture(body))


class GraphProgram:
    """A loaded program with one graph for each shape, captured when the shape is first seen.

    It has `chain`. Calls of several threads take turns, because graphs share their memory.
    """

    def __init__(self, device: Device, signature: Signature, module: Module, turn: Lock) -> None:
        """`turn` is held while graphs of this device run; programs that share graph memory share it."""
        self._device, self._signature, self._module, self._turn = device, signature, module, turn
        self._graphs: dict[tuple[tuple[int, ...], ...], CapturedGraph] = {}

    def warm_up(self, inputs: Sequence[torch.Tensor]) -> tuple[WarmShape, Sequence[torch.Tensor]]:
        """Run on inputs, so that their shapes can be captured; returns the outputs too.

        Raises:
            WrongInput: the inputs are not those of the program.
            OutOfMemory: the values do not fit into the device's memory.
        """
        self._signature.check_inputs(inputs)
        with self._turn, self._device.current(), torch.no_grad():
            return warm_up(self._device, self._module, inputs)

    def capture(self, shape: WarmShape) -> None:
        """Capture a shape in which the program has run.

        Raises:
            OutOfMemory: the graph does not fit into the device's memory.
        """
        with self._turn, self._device.current(), torch.no_grad():
            self._graphs[_shapes(shape.inputs)] = capture(self._device, self._module, shape)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run one call; inputs and outputs are on the CPU.

        Raises:
            WrongInput: the inputs are not those of the program.
        """
        self._signature.check_inputs(inputs)
        with self._turn, self._device.current(), torch.no_grad():
            graph = self._graph(inputs)
            self._device.copy(graph.input_buffer, _staged(self._device, graph.inputs, inputs))
            fetched = self._launch(graph)
            self._device.synchronize()
        return graph.outputs.views(fetched)

    def chain(
        self, buckets: Sequence[Bucket], calls: Sequence[list[torch.Tensor]], carried: list[torch.Tensor]
    ) -> Sequence[Sequence[torch.Tensor]]:
        """Run several chunks in sequence: the carried values go from one to the next on the device.

        Raises:
            WrongInput: the inputs are not those of the program.
        """
        fetched: list[tuple[CapturedGraph, torch.Tensor]] = []
        with self._turn, self._device.current(), torch.no_grad():
            for bucket, call in zip(buckets, calls):
                inputs = [*call, *(value[: bucket.batch] for value in carried)]
                self._signature.check_inputs(inputs)
                graph = self._graph(inputs)
                if fetched:
                    self._continue(graph, call, fetched[-1][0], len(carried))
                else:
                    self._device.copy(graph.input_buffer, _staged(self._device, graph.inputs, inputs))
                fetched.append((graph, self._launch(graph)))
            self._device.synchronize()
        return [graph.outputs.views(buffer) for graph, buffer in fetched]

    def _continue(self, graph: CapturedGraph, call: Sequence[torch.Tensor], before: CapturedGraph, count: int) -> None:
        """Give a graph its own inputs, and the last `count` outputs of the graph before it."""
        end = graph.inputs.end_of(len(call))
        staged = self._device.pinned(end)
        _write(graph.inputs, staged, call)
        self._device.copy(graph.input_buffer[:end], staged)
        places, values = graph.inputs.places[len(call) :], before.outputs.places[len(before.outputs.places) - count :]
        for place, value in zip(places, values):
            state = value.view(before.output_buffer)[: place.shape[0]]
            self._device.copy(place.view(graph.input_buffer), state)

    def _launch(self, graph: CapturedGraph) -> torch.Tensor:
        """Enqueue a graph, and the copy of its outputs into memory that is the caller's own."""
        graph.launch()
        fetched = self._device.pinned(graph.outputs.nbytes)
        self._device.copy(fetched, graph.output_buffer)
        return fetched

    def _graph(self, inputs: Sequence[torch.Tensor]) -> CapturedGraph:
        shapes = tuple([tuple(tensor.shape) for tensor in inputs])
        found = self._graphs.get(shapes)
        if found is None:
            found = self._graphs[shapes] = self._capture_new(inputs)
        return found

    def _capture_new(self, inputs: Sequence[torch.Tensor]) -> CapturedGraph:
        """Capture a shape that is first seen in a call."""
        try:
            shape, _ = warm_up(self._device, self._module, inputs)
            return capture(self._device, self._module, shape)
        except OutOfMemory as error:
            shown = ", ".join(map(describe_tensor, inputs))
            raise OutOfMemory(
                f"the graph of {shown} does not fit into the memory of {self._device.name} ({error}): serve smaller "
                f"buckets; or leave more memory free: fewer workers on this GPU, no other process on it"
            ) from error


@dataclass(frozen=True)
class WarmProgram:
    """A program with a shape in which it has run."""

    program: GraphProgram
    shape: WarmShape

    def capture(self) -> None:
        """Capture the program in the shape. Raises `OutOfMemory`: the graph does not fit into the device's memory."""
        self.program.capture(self.shape)


def _shapes(layout: BufferLayout) -> tuple[tuple[int, ...], ...]:
    return tuple([place.shape for place in layout.places])


def _staged(device: Device, layout: BufferLayout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pinned memory with tensors in their places."""
    staged = device.pinned(layout.nbytes)
    _write(layout, staged, tensors)
    return staged


def _write(layout: BufferLayout, buffer: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    for place, tensor in zip(layout.places, tensors):
        place.view(buffer).copy_(tensor)
