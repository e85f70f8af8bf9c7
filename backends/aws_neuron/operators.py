"""Operators of an exported program that the Neuron compilers support, as far as AWS documents it.

For neuronx-cc there is no complete list: it compiles more by way of XLA than its own page names. So an operator is
refused only for a known reason. neuron-cc (Inf1) has a list, collected from its release notes, and supports nothing
else.
"""

from __future__ import annotations

import operator

import torch

from ..recurrent_operators import is_recurrent

_NO_WORK = frozenset(
    """
    alias detach lift_fresh_copy sym_size sym_numel sym_stride sym_storage_offset sym_constrain_range_for_size
    _assert_tensor_metadata _assert_scalar
    """.split()  # noqa: SIM905 - words, to be read
)
"""Operators that disappear once the sizes are fixed."""

_DATA_DEPENDENT = frozenset(
    """
    nonzero nonzero_numpy nonzero_static argwhere masked_select unique_consecutive unique_dim _unique _unique2 bincount
    repeat_interleave _local_scalar_dense item
    """.split()  # noqa: SIM905 - words, to be read
)
"""Operators whose outputs have sizes that depend on the data."""

_MISSING = frozenset({"sort", "argsort", "msort", "searchsorted", "multinomial", "histc", "kthvalue", "mode", "cross"})
_MISSING_FAMILIES = ("fft_", "_fft_", "linalg_", "_linalg_", "special_", "complex", "view_as_complex", "quantize")

_NEURON = frozenset(
    """
    Int ScalarImplicit __and__ _convolution _convolution_mode _shape_as_tensor _weight_norm abs adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d add addmm all amax amin any arange argmax argmin
    avg_pool2d baddbmm batch_norm bmm broadcast_tensors broadcast_to bucketize cat ceil chunk clamp clamp_max clamp_min
    clip clone constant_pad_nd contiguous cos detach div dot dropout einsum embedding_renorm_ empty empty_like eq erf
    exp expand expand_as eye fill_ flatten flip floor floor_divide full full_like ge gelu group_norm gt hardsigmoid
    hardswish hardtanh index_select instance_norm isnan layer_norm le leaky_relu linear log log2 log_softmax logical_and
    logical_not logical_or logical_xor lt masked_fill matmul max max_pool2d mean meshgrid min mm movedim mul mv ne neg
    new_empty new_ones norm numel one_hot ones ones_like permute pixel_shuffle pow prelu reciprocal reflection_pad2d
    relu remainder repeat reshape roll rsqrt rsub select sigmoid silu sin size slice softmax softplus split
    split_with_sizes sqrt squeeze stack sub sum t tanh tensor_split tensordot threshold to topk transpose tril triu
    true_divide trunc type_as unbind unsqueeze upsample_bilinear2d upsample_nearest2d values view where zero_ zeros
    zeros_like
    """.split()  # noqa: SIM905 - words, to be read
)

_EXPORTED_AS = {
    "_to_copy": "to",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "native_layer_norm": "layer_norm",
    "convolution": "_convolution",
    "conv1d": "_convolution",
    "conv2d": "_convolution",
    "conv3d": "_convolution",
    "slice_copy": "slice",
    "_unsafe_view": "reshape",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "bitwise_not": "logical_not",
    "bitwise_and": "__and__",
    "scalar_tensor": "full",
    "new_zeros": "zeros",
    "new_full": "full",
    "pad": "constant_pad_nd",
}
"""Names of torch.export for operators of that list, by which the compiler gets them."""


def neuronx_refusal(node: torch.fx.Node) -> str | None:
    """Return why neuronx-cc does not support a call; None if no reason is known."""
    name, refusal = _name_and_refusal(node)
    if name in _DATA_DEPENDENT:
        return f"the size of the output of aten::{name} depends on the data, and a compiled program has fixed sizes"
    if name in _MISSING or name.startswith(_MISSING_FAMILIES):
        return f"neuronx-cc does not support aten::{name}"
    return refusal


def neuron_refusal(node: torch.fx.Node) -> str | None:
    """Return why neuron-cc does not support a call; None if its published list has the operator."""
    name, refusal = _name_and_refusal(node)
    if name and name not in _NO_WORK and _EXPORTED_AS.get(name, name) not in _NEURON:
        return f"aten::{name} is not among the operators that neuron-cc supports"
    return refusal


def _name_and_refusal(node: torch.fx.Node) -> tuple[str, str | None]:
    """Return aten's operator without overload, empty for others, and why neither compiler supports the call."""
    value, refusal = node.meta.get("val"), None
    if isinstance(value, torch.Tensor) and value.dtype.is_complex:
        refusal = f"the device has no tensors of dtype {str(value.dtype).removeprefix('torch.')}"
    if node.op in ("placeholder", "output") or node.target is operator.getitem:
        return "", refusal
    if is_recurrent(node.target):  # unrolled into basic operators before a compiler sees it
        return "", refusal
    if not isinstance(node.target, torch._ops.OpOverload):
        if isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return "", None  # arithmetic on sizes
        return "", "a traced program cannot branch on data"
    if node.target.namespace != "aten":
        return "", f"the compiler supports only torch's own operators, not {node.target.namespace}'s"
    return node.target._opname, refusal
