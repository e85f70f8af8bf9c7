"""The method of a model that answers requests in place of forward(), with or without a batch dimension."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


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
