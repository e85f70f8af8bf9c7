"""Draw of features: properties checked over the seeds of the full count, without lowering any model."""

from __future__ import annotations

from collections import Counter

from composer.features import FEATURES, FEWEST, MOST, draw_features

SEEDS = range(2000)


def test_every_feature_is_in_a_fifth_of_the_models() -> None:
    """No feature is rare."""
    counts = Counter(feature for seed in SEEDS for feature in draw_features(seed))

    assert set(counts) == set(FEATURES)
    assert {feature: count for feature, count in counts.items() if count < len(SEEDS) / 5} == {}


def test_a_model_has_three_to_eight_features() -> None:
    """All numbers occur, and no feature is drawn twice."""
    drawn = [draw_features(seed) for seed in SEEDS]

    assert {len(features) for features in drawn} == set(range(FEWEST, MOST + 1))
    assert all(len(set(features)) == len(features) for features in drawn)


def test_every_pair_of_features_is_composed() -> None:
    """Features are drawn independently of each other, in both orders."""
    pairs = {
        (first, second)
        for features in map(draw_features, SEEDS)
        for place, first in enumerate(features)
        for second in features[place + 1 :]
    }

    assert len(pairs) == len(FEATURES) * (len(FEATURES) - 1)
