"""Sums over the calls of plans."""

from collections.abc import Sequence

from torchserve_neuron_lstm.bucketing.plan import Plan


def useful_timesteps(plan: Plan, lengths: Sequence[int]) -> int:
    """Count the real timesteps that the calls of a plan compute."""
    return sum(min(call.bucket.length, lengths[row] - call.start) for call in plan.calls for row in call.rows)
