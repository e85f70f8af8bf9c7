"""Table of rules by operator, and the rule of the operators without one of their own: each row by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..exported_graph import rule_table
from . import contraction_rules as contraction
from . import elementwise_rules as elementwise
from . import indexing_rules as indexing
from . import order_rules as order
from . import reduction_rules as reduction
from . import shape_rules as shape
from . import spectrum_rules as spectrum
from . import window_rules as window
from .recurrence_rules import recurrence
from .sizes import in_python, is_ragged
from .value import Batch, Call, NoRule, Results, Rule, Value


@contextmanager
def _without_loops() -> Iterator[None]:
    """Let torch refuse operators that it would call for one row after the other, of which a trace fixes the number."""
    functorch: Any = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)


def each_row(batch: Batch, call: Call) -> Results:
    """Run an operator for each row, where no dimension depends on the timesteps.

    Raises `NoRule`: a dimension or a number does, or torch cannot run the operator for several rows.
    """
    if any(map(is_ragged, call.all_sizes())):
        raise NoRule("the operator is not known")
    given = dict(call.arguments)
    dims = pytree.tree_map(lambda leaf: 0 if isinstance(leaf, Value) and not leaf.shared else None, given)
    plain = pytree.tree_map(lambda leaf: leaf.tensor if isinstance(leaf, Value) else in_python(leaf), given)
    try:
        with _without_loops():
            results = torch.vmap(lambda own: call.run(**own), (dims,))(plain)
    except RuntimeError as error:
        raise NoRule("the operator is not known, and torch cannot run it for several requests at once") from error
    return call.results(results, shared=False)


_LOW, _HIGH = float("-inf"), float("inf")


RULES: dict[str, Rule] = {
    **rule_table(
        (elementwise.same, "clone contiguous alias detach lift_fresh_copy"),
        (elementwise.pointwise, "to _to_copy dropout feature_dropout where __and__ __or__ hardswish fill"),
        (elementwise.pointwise, "rsub remainder isnan isinf alpha_dropout floor_divide _prelu_kernel"),
        (elementwise.pointwise, "complex polar real imag resolve_conj resolve_neg"),
        (elementwise.clamp, "clamp"),
        (elementwise.copy, "copy"),
        (elementwise.masked_fill, "masked_fill"),
        (spectrum.transform, "fft_rfft fft_fft"),
        (spectrum.inverse, "fft_irfft fft_ifft"),
        (elementwise.fourier, "_fft_r2c _fft_c2r _fft_c2c"),
        (elementwise.each_alike, "view_as_real view_as_complex unfold"),
        (elementwise.factory, "zeros ones empty full zeros_like ones_like empty_like full_like new_zeros new_ones"),
        (elementwise.factory, "new_empty new_full scalar_tensor"),
        (elementwise.arange, "arange"),
        (each_row, "linspace"),
        (shape.view, "view reshape _unsafe_view flatten unflatten"),
        (shape.permuted, "transpose permute t"),
        (shape.unsqueeze, "unsqueeze"),
        (shape.squeeze, "squeeze"),
        (shape.expand, "expand expand_as broadcast_to"),
        (shape.repeat, "repeat tile"),
        (shape.cat, "cat concat"),
        (shape.stack, "stack"),
        (shape.pad, "pad constant_pad_nd"),
        (shape.diagonal, "diagonal"),
        (indexing.select, "select"),
        (indexing.slice_, "slice narrow"),
        (indexing.slice_scatter, "slice_scatter"),
        (indexing.select_scatter, "select_scatter"),
        (indexing.gather, "gather"),
        (indexing.index_select, "index_select"),
        (indexing.index, "index"),
        (indexing.index_put, "index_put"),
        (indexing.scatter, "scatter scatter_add scatter_reduce"),
        (indexing.embedding, "embedding"),
        (indexing.flip, "flip"),
        (indexing.split, "split split_with_sizes chunk"),
        (indexing.unbind, "unbind"),
        (order.ordered, "sort argsort topk kthvalue mode median nanmedian"),
        (partial(reduction.reduction, 0), "sum nansum count_nonzero"),
        (partial(reduction.reduction, 1), "prod all"),
        (partial(reduction.reduction, False), "any"),
        (partial(reduction.reduction, _LOW), "max amax logsumexp"),
        (partial(reduction.reduction, _HIGH), "min amin"),
        (partial(reduction.extreme_position, _LOW), "argmax"),
        (partial(reduction.extreme_position, _HIGH), "argmin"),
        (reduction.mean, "mean"),
        (partial(reduction.variance, root=False), "var"),
        (partial(reduction.variance, root=True), "std"),
        (partial(reduction.variance, root=False, with_mean=True), "var_mean"),
        (reduction.vector_norm, "linalg_vector_norm"),
        (reduction.softmax, "softmax log_softmax _softmax _log_softmax"),
        (reduction.scan, "cumsum cumprod cummax cummin logcumsumexp"),
        (reduction.layer_norm, "layer_norm rms_norm native_layer_norm"),
        (reduction.batch_norm, "batch_norm _native_batch_norm_legit_no_training"),
        (reduction.instance_norm, "instance_norm"),
        (reduction.group_norm, "group_norm"),
        (window.convolution, "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
        (partial(window.pool, _LOW), "max_pool1d max_pool2d max_pool3d"),
        (window.max_pool_with_indices, "max_pool2d_with_indices max_pool3d_with_indices"),
        (window.average_pool, "avg_pool1d avg_pool2d"),
        (window.adaptive_pool, "adaptive_avg_pool1d adaptive_avg_pool2d"),
        (window.overlap_add, "col2im"),
        (window.upsample, "upsample_nearest1d upsample_nearest2d"),
        (window.upsample_linear, "upsample_linear1d"),
        (window.interpolation, "upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d upsample_nearest3d"),
        (window.interpolation, "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"),
        (contraction.linear, "linear"),
        (contraction.bilinear, "bilinear"),
        (contraction.matmul, "matmul mm bmm mv dot"),
        (contraction.attention, "scaled_dot_product_attention"),
    ),
    "neuron_lstm.lstm": recurrence,
    "neuron_lstm.rnn": recurrence,
}


def rule_for_spectra(target: object) -> Rule | None:
    """Return the rule of an operator that takes a spectrum over the timesteps."""
    rule = rule_of(target)
    return spectrum.product if target is torch.ops.aten.mul.Tensor else rule if rule is spectrum.inverse else None


def rule_of(target: object) -> Rule | None:
    """Return the rule of an operator; elementwise operators are known by torch's tag."""
    # The greater or the less of two tensors is no reduction.
    if target in (torch.ops.aten.max.other, torch.ops.aten.min.other):
        return elementwise.pointwise
    name = ".".join(str(target).split(".")[:2])
    rule = RULES.get(name)
    if rule is None and isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags:
        return elementwise.pointwise
    return rule
