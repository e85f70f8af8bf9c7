"""The order in which records expire: what the table has noted, and what is true."""

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchserve_neuron_lstm.sessions.admission import StoreUsage
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.expiry import open_sessions, remove_expired, seconds_until_room
from torchserve_neuron_lstm.sessions.sqlite.file import open_database
from torchserve_neuron_lstm.sessions.sqlite.rows import NewRow, put_records
from torchserve_neuron_lstm.sessions.store import RecordUpdate

LIMITS = Limits(sessions=100, bytes=100_000, idle_seconds=100.0, retry_seconds=20.0, confirm_seconds=30.0)
EVENTS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(("write", "write", "end", "unconfirmed", "look")), st.integers(0, 40)),
    max_size=40,
)
"""A session, what happens to it, and the seconds until the next event."""


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    return open_database(tmp_path_factory.mktemp("store") / "tagger.sessions", 1.0)[0]


def true_wait(connection: sqlite3.Connection, now: float) -> float:
    """The seconds until the next open session expires, from all rows."""
    waits = [LIMITS.idle_seconds]
    for last, is_unconfirmed in connection.execute("SELECT last, revision < 0 FROM session WHERE ended = 0"):
        waits.append((LIMITS.lifetime if is_unconfirmed else LIMITS.idle_seconds) - (now - last))
    return min(waits)


@settings(deadline=None)
@given(EVENTS)
def test_the_noted_times_are_never_after_the_last_writes(
    connection: sqlite3.Connection, events: list[tuple[int, str, int]]
) -> None:
    connection.execute("DELETE FROM session")
    assert connection.execute("SELECT count(*) FROM expiry").fetchone() == (0,)
    now = 1000.0
    for name, event, seconds in events:
        key = bytes((name,)) * 16
        row = connection.execute("SELECT ended FROM session WHERE key = ?", (key,)).fetchone()
        if event == "look":
            before = set(connection.execute("SELECT key, ended, last, revision < 0 FROM session"))
            remove_expired(connection, StoreUsage(100, 100_000), LIMITS, now)
            alive = {
                one
                for one in before
                if one[2] >= now - (20.0 if one[1] else LIMITS.lifetime if one[3] else LIMITS.idle_seconds)
            }
            assert set(connection.execute("SELECT key, ended, last, revision < 0 FROM session")) == alive
            assert seconds_until_room(connection, LIMITS, now) == pytest.approx(true_wait(connection, now))
        else:
            change = RecordUpdate("", b"x", None, ended=event == "end", unconfirmed=event == "unconfirmed")
            continues = row == (0,) and event != "end"
            put_records(connection, [NewRow(key, -1 if change.unconfirmed else 1, change, continues)], now)
        noted = connection.execute(
            "SELECT count(*), sum(expiry.ended = session.ended), sum(expiry.last <= session.last) "
            "FROM session JOIN expiry USING (key)"
        ).fetchone()
        (count,) = connection.execute("SELECT count(*) FROM session").fetchone()
        (rows,) = connection.execute("SELECT count(*) FROM expiry").fetchone()
        assert (rows, *noted) == (count, count, count or None, count or None)
        counted = open_sessions(connection, LIMITS, now)
        lasts = connection.execute("SELECT last, revision < 0 FROM session WHERE ended = 0").fetchall()
        fresh = [last for last, new in lasts if last >= now - (LIMITS.lifetime if new else LIMITS.idle_seconds)]
        assert counted == (len(lasts) - len(fresh), min(fresh, default=None))
        now += seconds
