import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.commands.tuning.proposal import propose, result
from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import Target
from torchserve_neuron_lstm.bucketing.bucket_lengths import optimal_lengths, padding_stats
from torchserve_neuron_lstm.bucketing.shapes import Bucket

histograms = st.dictionaries(st.integers(1, 99), st.integers(1, 9), min_size=1, max_size=12)
grids = st.sets(st.integers(1, 99), min_size=1, max_size=5).map(lambda sizes: tuple(sorted(sizes)))


@given(histograms, grids)
def test_as_many_lengths_as_now_are_never_worse(histogram: dict[int, int], current: tuple[int, ...]) -> None:
    proposal = propose(histogram, Target(lengths=current))

    assert proposal.current is not None
    assert len(proposal.proposed.lengths) <= len(current)
    assert proposal.proposed.lengths[-1] == max(current[-1], *histogram)
    assert proposal.proposed.refused == 0
    if proposal.current.refused == 0:
        assert proposal.proposed.computed is not None
        assert proposal.current.computed is not None
        assert proposal.proposed.computed <= proposal.current.computed


def test_without_a_current_grid_eight_lengths_are_proposed() -> None:
    histogram = dict.fromkeys(range(1, 30), 1)

    proposal = propose(histogram)

    assert proposal.current is None
    assert proposal.grids == (proposal.proposed,)
    assert proposal.proposed.lengths == optimal_lengths(histogram, 8)
    assert proposal.proposed.computed == padding_stats(histogram, optimal_lengths(histogram, 8)).computed
    assert proposal.proposed.milliseconds is None


def test_milliseconds_are_told_where_costs_are_known() -> None:
    costs = {Bucket(1, 1): 1.0, Bucket(1, 11): 1.0, Bucket(1, 12): 100.0, Bucket(1, 40): 100.0}

    proposal = propose({10: 5, 11: 5, 40: 1}, Target(batches=(1,), costs=costs), count=3)

    assert proposal.proposed.lengths == (10, 11, 40)
    assert proposal.proposed.milliseconds == 110 / 11


def test_the_longest_length_can_be_given() -> None:
    histogram = {10: 5, 20: 5, 40: 2}

    refusing = propose(histogram, Target(lengths=(16,)), count=2, longest=20)
    cutting = propose(histogram, Target(lengths=(16,), truncate=True), count=2, longest=20)

    assert refusing.proposed.lengths == cutting.proposed.lengths == (10, 20)
    assert refusing.proposed.refused == 2
    assert cutting.proposed.refused == 0
    assert cutting.proposed.useful == 5 * 10 + 7 * 20
    assert cutting.current is not None
    assert cutting.current.useful == 5 * 10 + 7 * 16
    assert propose(histogram, count=2, longest=64).proposed.lengths[-1] == 64
    with pytest.raises(ValueError, match="no sequence"):
        propose(histogram, longest=5)


def test_a_program_can_read_it() -> None:
    told = propose({3: 1, 4: 1}, Target(lengths=(8,)), count=1).to_json()

    assert told["sequences"] == 2
    assert told["today"]["lengths"] == [8]
    assert told["today"]["padded_share"] == 9 / 16
    assert told["proposed"] == {
        "lengths": [8],
        "padded_share": 9 / 16,
        "useful_timesteps": 7,
        "computed_timesteps": 16,
        "refused_sequences": 0,
        "milliseconds_per_sequence": None,
    }


def test_the_saving_is_told() -> None:
    assert result(propose({3: 1, 16: 1}, Target(lengths=(16,)), count=2)) == "40.6 % fewer timesteps to compute"
    assert result(propose({3: 5, 16: 1}, Target(lengths=(3, 16)), count=1)) == "209.7 % more timesteps to compute"
    assert result(propose({3: 1, 20: 1}, Target(lengths=(4,)))) == "Too long: 1 sequence now, 0 as proposed"
    assert result(propose({3: 1})) == ""
