from contextlib import ExitStack, closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from session_service import ask, make_service, make_store, piece

from torchserve_neuron_lstm.handlers.streaming.store_sessions import CachedSession, SessionCache, StoreSessions
from torchserve_neuron_lstm.sessions.session import Reply, Session
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore

LIMITS = Limits(sessions=100, bytes=10**6, idle_seconds=600.0)
SESSION = Session(1, 0, b"", Reply(b"", ""), b"", bytes(16))


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.integers(0, 3000)), max_size=40))
def test_the_latest_sessions_are_known_within_the_bytes(kept: list[tuple[str, int | None]]) -> None:
    cache, expected = SessionCache(most=8000), dict[str, CachedSession]()
    for number, (name, size) in enumerate(kept):
        one = None if size is None else CachedSession(number, SESSION, size)
        cache.keep({name: one})
        expected.pop(name, None)
        if one is not None:
            expected[name] = one
        while sum(each.size + 1024 for each in expected.values()) > 8000:
            del expected[next(iter(expected))]
        assert cache.find("abcde") == expected


def test_a_session_that_has_waited_too_long_is_forgotten() -> None:
    now = 0.0
    cache = SessionCache(seconds=60.0, clock=lambda: now)
    cache.keep({"a": CachedSession(1, SESSION, 10), "b": CachedSession(1, SESSION, 10)})
    now = 50.0
    cache.keep({"a": CachedSession(2, SESSION, 10)})
    now = 61.0
    cache.keep({"c": CachedSession(1, SESSION, 10)})

    assert sorted(cache.find("abc")) == ["a", "c"]


def test_workers_in_turn_see_what_the_other_has_written(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(SqliteStore(tmp_path, "m", LIMITS))) for _ in range(2)]
        services = [make_service(StoreSessions(store)) for store in stores]
        ask(services[0], piece([1], id="a", start="true"), piece([1], id="b", start="true"))
        for number, turn in enumerate((0, 1, 1, 0, 1, 0, 0, 1)):
            both = ask(services[turn], piece([2], id="a"), piece([3], id="b"))

            assert [body["total"] for _, body in both] == [3 + 2 * number, 4 + 3 * number]


def test_a_session_that_has_gone_from_the_store_is_not_answered_from_memory(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(SqliteStore(tmp_path, "m", LIMITS))) for _ in range(2)]
        one, other = (make_service(StoreSessions(store)) for store in stores)
        ask(one, piece([1], id="a", start="true"), piece([1], id="b", start="true"))
        ask(other, piece([1], id="a", end="true"))

        assert [status for status, _ in ask(one, piece([2], id="a"), piece([2], id="b"))] == [410, 200]
        for path in tmp_path.iterdir():
            path.unlink()
        assert ask(one, piece([2], id="b"))[0][0] == 410


def test_a_session_that_ended_takes_no_memory_and_its_last_request_can_be_repeated(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path, "m", LIMITS)) as store:
        sessions = StoreSessions(store)
        service = make_service(sessions)
        ask(service, piece([1], id="a", start="true", step="0"), piece([1], id="b", start="true"))
        ended, again = (ask(service, piece([2], id="a", end="true", step="1")) for _ in range(2))

        assert again == ended
        assert list(sessions.cache.find("ab")) == ["b"]


def test_the_record_of_another_session_is_a_damaged_one() -> None:
    """An index with a flipped bit, or whoever can write to the store, leads to it."""
    service = make_service(StoreSessions(store := make_store()))
    ask(service, piece([1], id="a", start="true"), piece([50], id="b", start="true"))
    store.entries = {"a": store.entries["b"], "b": store.entries["a"]}
    found = ask(make_service(StoreSessions(store)), piece([2], id="a", step="1"), piece([2], id="b"))

    assert [body["type"] for _, body in found] == ["SessionDamaged"] * 2
