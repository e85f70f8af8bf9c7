from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.sessions.admission import OtherSessions, RecordInfo, StoreUsage, admit, admit_all
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import RecordUpdate, Written

LIMITS = Limits(sessions=5, bytes=1000, idle_seconds=100.0, retry_seconds=20.0, confirm_seconds=30.0)
NOW = 1000.0
SIZES = st.integers(0, 300)
SOME = st.just(False) | st.booleans()
INFOS = st.builds(RecordInfo, st.just(7), SOME, st.sampled_from((899.0, 900.0, 980.0)), SIZES, st.just(False))
_BASES, _CLIENTS = st.sampled_from((7, 7, 7, 8, None)), st.none() | st.just("client")
CHANGES = st.builds(RecordUpdate, st.just("a"), SIZES.map(bytes), _BASES, SOME, SOME, _CLIENTS)
PAIRS = st.tuples(CHANGES, INFOS | st.none())
PLAIN = st.tuples(
    st.builds(RecordUpdate, st.just("a"), SIZES.map(bytes), st.just(7)),
    st.builds(RecordInfo, st.just(7), st.just(False), st.just(980.0), SIZES),
)


@given(st.lists(PLAIN, max_size=5) | st.lists(PAIRS, max_size=5), st.integers(0, 1200))
def test_a_batch_is_admitted_as_its_changes_one_after_the_other(
    batch: list[tuple[RecordUpdate, RecordInfo | None]], size: int
) -> None:
    usage = StoreUsage(5, size)
    after = admit_all([change for change, _ in batch], [info for _, info in batch], usage, LIMITS, NOW)
    if after is None:
        return
    for change, info in batch:
        outcome, usage = admit(change, info, usage, LIMITS, NOW, OtherSessions())
        assert outcome == Written()
    assert usage == after


def test_requests_of_open_sessions_are_admitted_at_once() -> None:
    """They are most requests; a start, an end and a limit that is near are decided alone."""
    info = RecordInfo(7, ended=False, last=980.0, size=10)
    plain = RecordUpdate("a", bytes(20), 7)

    assert admit_all([plain] * 2, [info] * 2, StoreUsage(2, 100), LIMITS, NOW) == StoreUsage(2, 120)
    for change in (plain._replace(revision=None), plain._replace(ended=True), plain._replace(record=bytes(700))):
        assert admit_all([plain, change], [info] * 2, StoreUsage(2, 100), LIMITS, NOW) is None
    assert admit_all([plain], [None], StoreUsage(2, 100), LIMITS, NOW) is None
