"""Explanations of torch's own errors while a model is traced or run, in terms of the configuration."""

from __future__ import annotations

import re

OTHER_FEATURES = (
    "{layer} takes {1} features (its input_size), but gets {2}{at}: write {1} in place of {2} in `shape` under "
    "`inputs`, or build the layer with input_size={2}"
)
NO_FEATURES = (
    "{layer} takes {1} features (its input_size) at the last dimension, which is batch or time here{at}: list "
    "the dimensions of `shape` under `inputs` in the order in which forward() takes them"
)
_FIXED_STATE = (
    "the initial state of a recurrent layer has the fixed shape [{2}], which fits one batch size only: read the batch "
    "size from the input, as in torch.zeros(layers, x.shape[0], hidden), or leave the state out"
)
_FIXED_VIEW = (
    "a tensor is reshaped to {1}, which fits one batch size or one number of timesteps only: read these sizes from a "
    "tensor, as in y.reshape(x.shape[0], -1, 9)"
)
_PRECISION = (
    "weights and inputs have different precisions: save the weights of model.float(), or declare the inputs with the "
    "`dtype` of the weights"
)
_RECURRENT_PRECISION = (
    "a recurrent layer has {2} weights, but gets {1} data: declare the inputs with `dtype: {2}`, or convert the model "
    "before its weights are saved, as in model.float()"
)
_VOCABULARY = (
    "an id is outside the vocabulary of an embedding, or the classes of a one_hot: give `range: [least, largest]` to "
    "the ids under `inputs`, both included, as in [0, 4999] for 5000 ids"
)
_SIZES = (
    "a layer takes {2} features, but gets {1}: compare the layer's size with `shape` under `inputs`, and the order of "
    "its dimensions with that of forward()"
)
_TOTAL = (
    "pad_packed_sequence pads to total_length={1}, and no sequence can be longer than that: leave larger buckets out, "
    "or pass total_length=x.size(1), of the padded input"
)
_TUPLE = (
    "a tuple has no attribute {1}. If it is an argument, its inputs are named by position, such as batch.0: name them "
    "by attribute instead, such as batch.{1}, under `inputs` and `lengths`"
)
_EXPLANATIONS = (
    (r"Expected total_length to be at least .*but got total_length=(\d+)", _TOTAL),
    (r"'tuple' object has no attribute '(\w+)'", _TUPLE),
    (r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\d+)", OTHER_FEATURES),
    (r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\S+)", NO_FEATURES),
    (r"Expected hidden(?:\[\d\])? size \(([^)]*)\), got [\[(]([^\])]*)[\])]", _FIXED_STATE),
    (r"shape '(\[[^']*\])' is invalid for input of size", _FIXED_VIEW),
    (r"RNN input dtype \(torch\.(\w+)\) does not match weight dtype \(torch\.(\w+)\)", _RECURRENT_PRECISION),
    (r"(expected|must) (m1 and m2 to )?have the same dtype", _PRECISION),
    (r"[Ii]nput type .* and (weight|bias) type .* should be the same", _PRECISION),
    (r"index out of range in self|Class values must be smaller than num_classes", _VOCABULARY),
    (r"a and b must have same reduction dim, but got \[.*?([^, ]+)\] X \[(\d+), \d+\]", _SIZES),
    (r"mat1 and mat2 shapes cannot be multiplied \(.*x(.+) and (\d+)x\d+\)", _SIZES),
)
"""Patterns of torch's messages, and what they mean, with the pattern's groups."""


def explain_torch_error(message: str) -> str | None:
    """Explain an error of torch; None where it says enough itself.

    >>> explain_torch_error("Expected hidden size (1, s77, 8), got [1, 4, 8]")[:69]
    'the initial state of a recurrent layer has the fixed shape [1, 4, 8],'
    """
    for pattern, explanation in _EXPLANATIONS:
        if (match := re.search(pattern, message)) is not None:
            return explanation.format(match[0], *match.groups(), layer="a recurrent layer", at="")
    return None
