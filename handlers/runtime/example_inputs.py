"""Inputs of an archive's programs, to capture and to measure them: zeros in full buckets."""

from __future__ import annotations

import torch

from ...bucketing.padding import lengths_tensor, zeros
from ...bucketing.shapes import Bucket, ProgramRole
from ...config.manifest import Manifest


def example_inputs(
    manifest: Manifest, part: ProgramRole, bucket: Bucket, *, padded: bool = False
) -> list[torch.Tensor]:
    """Return inputs of a bucket; `padded`: one row has all timesteps, the others have one."""
    specs = [spec for spec in manifest.inputs if part in ("sequence", "chunk") or spec.time_dim is None]
    tensors = [zeros(spec, bucket.length, bucket.batch) for spec in specs]
    if manifest.takes_lengths:
        others = 1 if padded else bucket.length
        tensors.append(lengths_tensor([bucket.length, *[others] * (bucket.batch - 1)], bucket))
    if part in ("chunk", "head"):
        tensors += [zeros(value.spec, bucket.length, bucket.batch) for value in manifest.carried]
    return tensors
