"""A model whose forward() is another of its methods, or takes one request without a batch dimension."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..config.strict import closest_key
from .errors import PackagingError


def serve_method(model: torch.nn.Module, name: str, *, batched: bool = True) -> None:
    """Let a call of the model run its method of this name, which may itself call forward() or the model.

    The signature of `model.forward` is then the method's. If it is not `batched`, it gets the tensors of a batch of one
    request without their first dimension, and its outputs get one.

    Raises:
        PackagingError: the class has no such method.
    """
    method = getattr(model, name, None)
    if not callable(method) or isinstance(method, torch.nn.Module):
        raise PackagingError(_no_method(model, name, method))
    if name == "forward" and batched:
        return
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


def _of_one_request(method: Any, args: Any, kwargs: Any) -> Any:
    alone, named = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.select(0, 0), (args, kwargs))
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.unsqueeze(0), method(*alone, **named))


def _no_method(model: torch.nn.Module, name: str, found: object) -> str:
    model_class = type(model)
    public = [own for own in dir(model_class) if not own.startswith("_")]
    known = [own for own in public if callable(getattr(model_class, own)) and not hasattr(torch.nn.Module, own)]
    near = closest_key(name, known)
    advice = f"did you mean {near}?" if near else f"its methods are {', '.join(('forward', *known))}"
    wrong = "has no method" if found is None else f"holds a {type(found).__name__}, not a method, named"
    return f"neuron_lstm.model.method: {model_class.__name__} {wrong} {name}: {advice}"
