"""Programs whose shapes are captured as graphs.

A call is one copy to the device, one launch, one copy back, and one wait. Both copies move one buffer, which holds all
inputs or all outputs, through pinned memory. In a chain of chunks the carried values stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from threading import Lock

import torch

from ...bucketing.shapes import Bucket
from ..signature import Signature, describe_tensor
from .torch_device import OutOfMemory, TorchDevice

Module = Callable[..., Sequence[torch.Tensor]]
"""A program as a function of its inputs; all its tensors are on the device."""


_ALIGNMENT = 256
"""Bytes, as CUDA aligns its own allocations: vectorized kernels need it."""


@dataclass(frozen=True)
class _TensorPlace:
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the tensor that is there in a buffer, uint8[N]."""
        return buffer[self.start : self.start + self.nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class BufferLayout:
    """The places of several tensors, in their order."""

    places: tuple[_TensorPlace, ...]
    nbytes: int

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors in a buffer, uint8[nbytes]; each is contiguous and shares its memory."""
        return [place.view(buffer) for place in self.places]


def layout_of(tensors: Sequence[torch.Tensor]) -> BufferLayout:
    """Lay tensors out one after the other.

    >>> layout_of([torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)]).nbytes
    512
    """
    places, start = [], 0
    for tensor in tensors:
        nbytes = prod(tensor.shape) * tensor.element_size()
        places.append(_TensorPlace(tensor.dtype, tuple(tensor.shape), start, nbytes))
        start += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return BufferLayout(tuple(places), start)


@dataclass(frozen=True)
class WarmShape:
    """A program that has run in one shape, and that can be captured in it."""

    inputs: BufferLayout
    input_buffer: torch.Tensor
    outputs: BufferLayout
    output_buffer: torch.Tensor


_Graph = tuple[WarmShape, Callable[[], None]]
"""A program in one shape, and its launch."""


class GraphProgram:
    """A loaded program with one graph for each shape, captured when the shape is first seen.

    It has `chain`. Calls of several threads take turns, because graphs share their memory.
    """

    def __init__(self, device: TorchDevice, signature: Signature, module: Module, turn: Lock) -> None:
        """`turn` is held while graphs of this device run; programs that share graph memory share it."""
        self._device, self._signature, self._module, self._turn = device, signature, module, turn
        self._graphs: dict[tuple[tuple[int, ...], ...], _Graph] = {}

    def warm_up(self, inputs: Sequence[torch.Tensor]) -> tuple[WarmShape, Sequence[torch.Tensor]]:
        """Run on inputs, so that their shapes can be captured; returns the outputs too. All are on the CPU.

        Raises `WrongInput`: the inputs are not those of the program.
        Raises `OutOfMemory`: the values do not fit into the device's memory.
        """
        self._signature.check_inputs(inputs)
        with self._turn, self._device.current(), torch.no_grad():
            return self._warm_up(inputs)

    def capture(self, shape: WarmShape) -> None:
        """Capture a shape in which the program has run.

        Raises `OutOfMemory`: the graph does not fit into the device's memory.
        """
        with self._turn, self._device.current(), torch.no_grad():
            self._graphs[tuple([place.shape for place in shape.inputs.places])] = self._capture(shape)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run one call; inputs and outputs are on the CPU.

        Raises `WrongInput`: the inputs are not those of the program.
        """
        self._signature.check_inputs(inputs)
        with self._turn, self._device.current(), torch.no_grad():
            shape, launch = self._graph(inputs)
            self._copy_inputs(shape.inputs, shape.input_buffer, inputs)
            launch()
            fetched = self._fetch(shape.outputs, shape.output_buffer)
            self._device.synchronize()
        return shape.outputs.views(fetched)

    def chain(
        self, buckets: Sequence[Bucket], calls: Sequence[list[torch.Tensor]], carried: list[torch.Tensor]
    ) -> Sequence[Sequence[torch.Tensor]]:
        """Run several chunks in sequence: the carried values go from one to the next on the device.

        Raises `WrongInput`: the inputs are not those of the program.
        """
        fetched: list[tuple[WarmShape, torch.Tensor]] = []
        with self._turn, self._device.current(), torch.no_grad():
            for bucket, call in zip(buckets, calls):
                inputs = [*call, *(value[: bucket.batch] for value in carried)]
                self._signature.check_inputs(inputs)
                shape, launch = self._graph(inputs)
                self._copy_inputs(shape.inputs, shape.input_buffer, call if fetched else inputs)
                if fetched:
                    self._copy_state(shape, len(call), fetched[-1][0], len(carried))
                launch()
                fetched.append((shape, self._fetch(shape.outputs, shape.output_buffer)))
            self._device.synchronize()
        return [shape.outputs.views(buffer) for shape, buffer in fetched]

    def _copy_inputs(self, layout: BufferLayout, buffer: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Enqueue the copy of the first inputs, by pinned memory."""
        end = layout.places[len(tensors)].start if len(tensors) < len(layout.places) else layout.nbytes
        staged = self._device.pinned(end)
        for place, tensor in zip(layout.places, tensors):
            place.view(staged).copy_(tensor)
        self._device.copy(buffer if end == layout.nbytes else buffer[:end], staged)

    def _copy_state(self, shape: WarmShape, first: int, before: WarmShape, count: int) -> None:
        """Enqueue the copies of the last `count` outputs of the call before to the inputs from `first` on."""
        places, values = shape.inputs.places[first:], before.outputs.places[len(before.outputs.places) - count :]
        for place, value in zip(places, values):
            state = value.view(before.output_buffer)[: place.shape[0]]
            self._device.copy(place.view(shape.input_buffer), state)

    def _fetch(self, layout: BufferLayout, buffer: torch.Tensor) -> torch.Tensor:
        """Enqueue the copy of outputs into memory that is the caller's own."""
        fetched = self._device.pinned(layout.nbytes)
        self._device.copy(fetched, buffer)
        return fetched

    def _graph(self, inputs: Sequence[torch.Tensor]) -> _Graph:
        shapes = tuple([tuple(tensor.shape) for tensor in inputs])
        found = self._graphs.get(shapes)
        if found is None:
            found = self._graphs[shapes] = self._capture_new(inputs)
        return found

    def _capture_new(self, inputs: Sequence[torch.Tensor]) -> _Graph:
        try:
            shape, _ = self._warm_up(inputs)
            return self._capture(shape)
        except OutOfMemory as error:
            shown = ", ".join(map(describe_tensor, inputs))
            raise OutOfMemory(
                f"the graph of {shown} does not fit into the memory of {self._device.name} ({error}): serve smaller "
                f"buckets; or leave more memory free: fewer workers on this GPU, no other process on it"
            ) from error

    def _warm_up(self, inputs: Sequence[torch.Tensor]) -> tuple[WarmShape, Sequence[torch.Tensor]]:
        device, layout = self._device, layout_of(inputs)
        input_buffer = device.allocate(layout.nbytes)
        self._copy_inputs(layout, input_buffer, inputs)
        arguments = layout.views(input_buffer)
        values = device.warm_up(lambda: list(self._module(*arguments)))
        outputs = layout_of(values)
        output_buffer = device.allocate(outputs.nbytes)
        for result, value in zip(outputs.views(output_buffer), values):
            result.copy_(value)
        del values  # no value of the warm-up may stay in memory while a graph is recorded
        fetched = self._fetch(outputs, output_buffer)
        device.synchronize()
        return WarmShape(layout, input_buffer, outputs, output_buffer), outputs.views(fetched)

    def _capture(self, shape: WarmShape) -> _Graph:
        arguments, results = shape.inputs.views(shape.input_buffer), shape.outputs.views(shape.output_buffer)
        module = self._module

        def body() -> None:
            for result, value in zip(results, module(*arguments)):
                result.copy_(value)

        return shape, self._device.capture(body)
