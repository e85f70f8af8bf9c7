"""Features of composed models, and the draw of those that a seed stands for."""

from __future__ import annotations

import random

FEATURES = (
    "embedding",
    "convolution",
    "stride",
    "valid convolution",
    "pooling",
    "upsampling",
    "norm",
    "attention",
    "recurrence",
    "cell loop",
    "skip",
    "concatenation",
    "flip",
    "elementwise",
    "einsum",
    "transpose",
    "last step",
    "reduction",
)
FEWEST, MOST = 3, 8
"""Bounds of the number of features in a model."""


def draw_features(seed: int) -> tuple[str, ...]:
    """Draw 3 to 8 different features, in the order in which the model applies them.

    The number is uniform, and so is the choice: a feature is in 31 % of all models.

    >>> draw_features(0) == draw_features(0)
    True
    """
    choose = random.Random(seed)
    return tuple(choose.sample(FEATURES, choose.randint(FEWEST, MOST)))
