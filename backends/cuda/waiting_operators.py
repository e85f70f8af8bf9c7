"""Operators whose CUDA kernels wait for a value, which torch's tags do not say.

Used while packaging only. Read in torch's source of release 2.13 and before, not observed on a GPU. Operators that wait
for some large sizes only, such as `mode`, are not among them: loading names these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Waits = Callable[[Sequence[Any]], bool]
"""Whether a call waits, by all its arguments in the order of the operator's schema."""

_aten = torch.ops.aten
_FEWEST_SORTED = 10
"""Elements from which on `isin` sorts out equal ones first, whose number is a size."""


def waits_for_value(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call waits for a value of a tensor, although torch has no tag for it."""
    waits = _WAITING.get(target)
    return waits is not None and waits(_in_order(target, args, kwargs))


def _in_order(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """All arguments of a call, with their defaults."""
    left = target._schema.arguments[len(args) :]
    return [*args, *(kwargs.get(one.name, one.default_value) for one in left)]


def _always(arguments: Sequence[Any]) -> bool:
    return True


def _if_checked(arguments: Sequence[Any]) -> bool:
    """Whether `check_errors`, the last argument, is set."""
    return bool(arguments[-1])


def _if_range_is_read(arguments: Sequence[Any]) -> bool:
    _, _, low, high = arguments
    return bool(low == high)


def _if_probabilities_are_checked(arguments: Sequence[Any]) -> bool:
    _, count, replacement, *_ = arguments
    return not replacement or count == 1


def _if_lengths_are_checked(arguments: Sequence[Any]) -> bool:
    *_, unsafe, _ = arguments
    return not unsafe


def _if_equal_ones_are_sorted_out(arguments: Sequence[Any]) -> bool:
    _, tested, unique, _ = arguments
    return not unique and int(tested.numel()) >= _FEWEST_SORTED


_WAITING: Mapping[torch._ops.OpOverload, Waits] = {
    # Results that are checked for singular matrices and for convergence.
    _aten._linalg_check_errors.default: _always,
    _aten._linalg_eigh.default: _always,
    _aten._linalg_svd.default: _always,
    _aten.linalg_eig.default: _always,
    _aten._linalg_eigvals.default: _always,
    _aten.linalg_pinv.atol_rtol_tensor: _always,
    _aten.cholesky.default: _always,
    _aten.linalg_inv_ex.default: _if_checked,
    _aten.linalg_cholesky_ex.default: _if_checked,
    _aten.linalg_lu_factor_ex.default: _if_checked,
    _aten.linalg_ldl_factor_ex.default: _if_checked,
    _aten._linalg_solve_ex.default: _if_checked,
    # The degree of the polynomial is chosen by the norms.
    _aten.linalg_matrix_exp.default: _always,
    # The number of those that are not NaN is read, or the range, or what is to be checked.
    _aten.nanmedian.default: _always,
    _aten.histc.default: _if_range_is_read,
    _aten.multinomial.default: _if_probabilities_are_checked,
    _aten.segment_reduce.default: _if_lengths_are_checked,
    _aten.isin.Tensor_Tensor: _if_equal_ones_are_sorted_out,
    # Ends of a range that are tensors.
    _aten.linspace.Tensor_Tensor: _always,
    _aten.linspace.Tensor_Scalar: _always,
    _aten.linspace.Scalar_Tensor: _always,
    _aten.logspace.Tensor_Tensor: _always,
    _aten.logspace.Tensor_Scalar: _always,
    _aten.logspace.Scalar_Tensor: _always,
}
