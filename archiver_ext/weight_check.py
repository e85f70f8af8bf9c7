"""Checks of weights before anything is compiled: their numbers and their precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from ..backends.signature import dtype_name
from .errors import PackagingError

_SHOWN = 4


def check_finite(model: torch.nn.Module, source: str) -> None:
    """Refuse weights that are NaN or infinite; `source` names their file.

    Buffers and frozen parameters may be infinite: a mask of attention often is.

    Raises:
        PackagingError: names the first of them, and how many there are.
    """
    found = list(_not_finite(model))
    if found:
        named = len(list(model.named_parameters())) + len(list(model.named_buffers()))
        raise PackagingError(
            f"{source}: {len(found)} of {named} weights hold NaN or infinite numbers, so the outputs would hold them "
            f"too:\n{_lines(found)}\nSave the weights of an earlier step of the training, in which "
            "all(torch.isfinite(w).all() for w in model.parameters()) is true"
        )


def _not_finite(model: torch.nn.Module) -> Iterator[str]:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        wrong = ~tensor.isfinite() if tensor.requires_grad else tensor.isnan()
        if count := int(wrong.sum()):
            yield f"{name}: {count} of {tensor.numel()}"


def check_dtypes(expected: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], source: str) -> None:
    """Refuse a state dict in another precision than that of the model, which programs are compiled for.

    Raises:
        PackagingError: names the first weights that differ, and how many do.
    """
    found = [
        f"{name}: the model has {dtype_name(expected[name])}, the file {dtype_name(tensor)}"
        for name, tensor in given.items()
        if name in expected and expected[name].dtype != tensor.dtype
    ]
    if found:
        raise PackagingError(
            f"{source}: {len(found)} of {len(given)} weights have another precision than the model's:\n"
            f"{_lines(found)}\nSave them in the model's: torch.save(model.float().state_dict(), ...) for float32; or "
            "convert the model in its constructor, as in self.double()"
        )


def _lines(problems: Iterable[str]) -> str:
    listed = list(problems)
    more = [f"and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    return "\n".join(f"  {line}" for line in (*listed[:_SHOWN], *more))
