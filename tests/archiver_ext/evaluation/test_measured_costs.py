from dataclasses import replace

import pytest
from fake_model import GRID, make_manifest

from torchserve_neuron_lstm.archiver_ext.evaluation.measured_costs import buckets_to_measure
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid
from torchserve_neuron_lstm.config.manifest import Variant


def test_programs_of_fixed_shapes_are_measured_in_each() -> None:
    manifest = make_manifest()

    assert buckets_to_measure("sequence", manifest) == GRID.buckets
    assert buckets_to_measure("chunk", manifest) == GRID.buckets
    assert buckets_to_measure("start", manifest) == buckets_to_measure("head", manifest) == (Bucket(1, 1), Bucket(4, 1))


def test_programs_for_any_shape_are_measured_where_it_tells_most() -> None:
    variants = (Variant("sequence", None, "programs/any"),)
    manifest = make_manifest(shapes="any", variants=variants, grid=BucketGrid((2, 10), (50, 200)), longest=200)

    many = buckets_to_measure("chunk", manifest)
    few = buckets_to_measure("chunk", replace(manifest, longest=3))
    whole = buckets_to_measure("sequence", manifest)

    assert sorted({batch for batch, _ in many}) == [1, 2, 3, 4, 6, 8, 10]
    assert len({length for _, length in many}) == 2
    assert {length for _, length in few} == {3}
    assert {length for _, length in whole} == {50, 200}


@pytest.mark.parametrize(("shortest", "lengths"), [(1, {1, 32}), (5, {5, 32}), (32, {32})])
def test_a_single_length_is_measured_with_the_fewest_timesteps_of_the_model(shortest: int, lengths: set[int]) -> None:
    """A model that needs more timesteps fails on fewer."""
    variants = (Variant("sequence", None, "programs/any"),)
    manifest = make_manifest(
        shapes="any", variants=variants, grid=BucketGrid((1, 4), (32,)), longest=32, shortest=shortest
    )

    assert {length for _, length in buckets_to_measure("sequence", manifest)} == lengths
