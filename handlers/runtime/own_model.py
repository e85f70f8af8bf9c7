"""A model that answers requests by its own code: each alone, at its own length, without padding."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import TensorSpec
from ...config.json_codec import REPACKAGE
from ...config.own_model import OwnModel
from .constructor_arguments import as_argument
from .kept_state import KeptState
from .model_arguments import argument_makers
from .model_outputs import output_tensors, row_of
from .state_places import put_elements
from .user_code import end_error, imported_anew, is_interrupt, modules_of, user_modules

Tensors = tuple[torch.Tensor, ...]
Answer = Callable[[Sequence[torch.Tensor], int], Tensors]
"""A function of the tensors of a request and its timesteps."""
Made = tuple[torch.nn.Module, KeptState, torch.dtype]
_TURN = threading.RLock()
"""Held while the user's code runs."""


def _renew_turn() -> None:
    global _TURN  # noqa: PLW0603 - the thread that held it is not in the fork
    _TURN = threading.RLock()


os.register_at_fork(after_in_child=_renew_turn)


class OwnProgram:
    """The model, in the place of an engine's program."""

    def __init__(
        self,
        model: torch.nn.Module,
        description: OwnModel,
        inputs: Sequence[TensorSpec],
        state: KeptState,
        calling: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`calling` makes a context in which the model may be called."""
        self.model, self.state = model, state
        self.default_dtype = torch.get_default_dtype()
        """That of torch in calls."""
        self.made: Callable[[], Made] = lambda: (self.model, self.state, self.default_dtype)
        """A function that makes the model, its state and its default dtype, as at load."""
        self.imported: Callable[[set[str]], bool] = lambda known: False
        """A function that says whether modules of the archive were imported that are not known."""
        self.making = calling
        """A function that makes a context in which the model can be made."""
        self._is_whole, self._known = True, set(sys.modules)
        self._calling = calling
        self._makers = tuple(argument_makers(description).items())
        self._batch_dims = [spec.batch_dim for spec in inputs]
        self._time_dims = [spec.time_dim for spec in inputs]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Call the model with tensors that have a batch dimension of one request; returns its outputs."""
        dims = zip(tensors, self._time_dims)
        length = next((tensor.shape[dim] for tensor, dim in dims if dim is not None), 1)
        return [tensor for _, tensor in self.outputs(tensors, length)]

    def outputs(self, tensors: Sequence[torch.Tensor], length: int, rows: int = 1) -> list[tuple[str, torch.Tensor]]:
        """Call the model with tensors of a batch of `rows`, of one length; returns its outputs, with their places.

        The outputs share no memory with anything else.

        Raises `RuntimeError`: the code called sys.exit(), or raised what is no `Exception`; or whatever it raises.
        """
        lengths = [length] * rows
        context = self._calling if self._is_whole else self.making  # before the turn, as while it is loaded
        with torch.no_grad(), context(), _TURN:
            if not self._is_whole:
                self.model, self.state, self.default_dtype = self.made()
            if len(sys.modules) != len(self._known):
                self._known = set(sys.modules)
            before = torch.get_default_dtype()
            try:
                if before is not self.default_dtype:
                    torch.set_default_dtype(self.default_dtype)
                returned = self.model(**{name: make(tensors, lengths) for name, make in self._makers})
                if type(returned) is torch.Tensor and returned.layout is torch.strided and not returned.is_quantized:
                    return [("", returned.clone(memory_format=torch.contiguous_format))]
                return [
                    (place, tensor.clone(memory_format=torch.contiguous_format))
                    for place, tensor in output_tensors(returned)
                ]
            except BaseException as error:
                if isinstance(error, Exception) or is_interrupt(error):
                    raise
                raise end_error(error, "the model's code") from error
            finally:
                if torch.get_default_dtype() is not before:
                    torch.set_default_dtype(before)
                self._is_whole = self.state.restore()
                if len(sys.modules) != len(self._known) and self.imported(self._known):
                    self._is_whole = False  # their state at import is not known

    def weights(self) -> list[torch.Tensor]:
        """Return the model's parameters and buffers of floats."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        return [tensor for tensor in tensors if tensor.is_floating_point()]

    def answering(self, specs: Sequence[TensorSpec]) -> Answer:
        """Return a function that answers one request with outputs of these layouts.

        It takes and returns tensors without a batch dimension. It raises `RuntimeError` if the outputs are not of the
        number, the dtypes or the dimensions that the archive declares.
        """
        layouts = [(spec, torch_dtype(spec), len(spec.shape), spec.batch_dim) for spec in specs]
        dims = self._batch_dims

        def answer(request: Sequence[torch.Tensor], length: int) -> Tensors:
            tensors = [
                tensor.clone() if dim is None else tensor.unsqueeze(dim).clone()  # a model may write into its arguments
                for tensor, dim in zip(request, dims)
            ]
            outputs = self.outputs(tensors, length)
            if len(outputs) != len(layouts):
                raise RuntimeError(f"the model returned {len(outputs)} tensors, the archive declares {len(layouts)}")
            return tuple(
                [
                    tensor.select(dim, 0)
                    if tensor.dtype is dtype and tensor.dim() == rank and dim is not None and tensor.shape[dim] == 1
                    else row_of(tensor, spec)
                    for (_, tensor), (spec, dtype, rank, dim) in zip(outputs, layouts)
                ]
            )

        return answer


def load_own_model(
    description: OwnModel,
    inputs: Sequence[TensorSpec],
    directory: Path,
    weights: Mapping[str, torch.Tensor],
    importing: Callable[[], AbstractContextManager[None]],
    threads: int = 1,
    calling: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> OwnProgram:
    """Make the model of a file in the archive's `directory`, with its weights.

    `importing` makes a context in which the archive's modules can be imported, `calling` one in which they are called.

    Raises `RuntimeError`: it cannot be made here; with the cause.
    """
    files: list[ModuleType] = []
    changed: dict[str, None] = {}

    def made() -> Made:
        with importing(), default_dtype(torch.get_default_dtype()):
            files[:] = imported_anew(files)
            if not files and description.module is not None:
                files.extend(user_modules(description.module, directory))
            model = _model_of(getattr(files[0], description.name) if files else None, description, directory, weights)
            own_dtype = torch.get_default_dtype()
        if description.recurrences is not None:
            from .native_layers import use_native_layers  # only archives with such layers carry the files for it

            use_native_layers(model, directory / description.recurrences, threads)
        return model, KeptState(model, files, weights, description.rewritten, changed), own_dtype

    def imported(known: set[str]) -> bool:
        files.extend(new := modules_of(directory, known))
        return bool(new)

    model, state, own_dtype = made()
    program = OwnProgram(model, description, inputs, state, importing if description.imports_late else calling)
    program.default_dtype, program.made, program.imported = own_dtype, made, imported
    program.making = importing
    return program


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype in this context; after it, it is what it was before, whatever the user's code sets.

    It is one of the process. Models of one file, as that of a shadow, share its globals. So they take turns.
    """
    with _TURN:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _model_of(
    target: Any, description: OwnModel, directory: Path, weights: Mapping[str, torch.Tensor]
) -> torch.nn.Module:
    try:
        if target is None:
            return _answering(load_script(directory / description.file), description)
        model = _answering(_made(target, description), description)
        saved = model.state_dict()
        if saved:
            model.load_state_dict({name: weights[name] for name in saved})
        for name, buffer in model.named_buffers():
            if name not in saved and name in weights:
                put_elements(buffer, weights[name])
    except Exception as error:
        raise RuntimeError(
            f"the model {description.name} of {description.file} cannot be made here "
            f"({type(error).__name__}: {error}): {REPACKAGE} on a host like this one"
        ) from error
    return model


def load_script(file: Path) -> torch.nn.Module:
    """Load a TorchScript program in eval mode, on the CPU."""
    program: torch.nn.Module = torch.jit.load(str(file), map_location="cpu")  # type: ignore[no-untyped-call,unused-ignore]
    if hasattr(program, "training"):  # a frozen one has no mode
        program.eval()
    return program


def _made(target: Any, description: OwnModel) -> torch.nn.Module:
    if isinstance(target, type):
        values = {name: as_argument(value) for name, value in description.args.items()}
        model: torch.nn.Module = target(**{**values, **{name: tuple(values[name]) for name in description.tuples}})
    else:
        model = torch.nn.Module()
        model.forward = target
    model.eval()
    return model


def _answering(model: torch.nn.Module, description: OwnModel) -> torch.nn.Module:
    """Let a call of the model run the method that answers."""
    method = description.method or "forward"
    if method != "forward" or not description.batched:
        run_method(model, getattr(model, method), batched=description.batched)
    return model


def run_method(model: torch.nn.Module, method: Callable[..., Any], *, batched: bool) -> None:
    """Let a call of the model run this method of it, which may itself call forward() or the model.

    The signature of `model.forward` is then the method's. If it is not `batched`, it gets the tensors of a batch of one
    request without their first dimension, and its outputs get one.
    """
    own = model.forward

    @functools.wraps(method)
    def forward(*args: Any, **kwargs: Any) -> Any:
        outer = model.__dict__.get("forward")
        model.forward = own
        try:
            return method(*args, **kwargs) if batched else _of_one_request(method, args, kwargs)
        finally:
            del model.forward
            if outer is not None:
                model.forward = outer

    model.forward = forward


def _of_one_request(method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    alone, named = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.select(0, 0), (args, kwargs))
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.unsqueeze(0), method(*alone, **named))
