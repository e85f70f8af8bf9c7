"""Clients under stress against servers that answer right, wrong or not at all, and what a run is judged by."""

import asyncio
import io
import json
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from answering_server import answering, response
from hypothesis import given
from hypothesis import strategies as st
from tools.stress import checks, faults
from tools.stress.bad_requests import BAD, HANG_UPS, KINDS, STREAM, BadRequest, json_request
from tools.stress.checks import ID, STEP, Reading, Reply, Session, Tally, Verdict, answer_laws, outputs, process_laws
from tools.stress.faults import TRUNCATED, WORKERS, HostFaults, disturb, kill_workers
from tools.stress.hosts import Host, make_model
from tools.stress.traffic import Sentence, Traffic, draw_request, send

from torchserve_neuron_lstm.handlers.responses import STATUSES

MODEL = make_model()
SCRIPT = checks.draw_script(MODEL, 6, random.Random(0))
SENTENCES = [Sentence(ids, outputs(MODEL, ids)) for ids in ([1, 2, 3], [7], [9, 8], [4] * 32, [5, 6])]
KIND = "an unknown session"


@dataclass
class Server:
    """A server that keeps sessions and answers as the model does; `spoil` may change an answer, by its number."""

    spoil: Callable[[int, bytes], bytes] = lambda _, answer: answer
    sessions: dict[str, list[int]] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    """The step of every chunk."""
    count: int = 0

    def answer(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        self.count += 1
        return self.spoil(self.count, self._right(body, headers))

    def _right(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        if ID not in headers:
            return response(json.dumps(whole(body)).encode())
        if headers[ID].startswith("unknown"):
            return refusal(410, "SessionUnknown")
        self.steps.append(int(headers[STEP]))
        before = self.sessions.setdefault(headers[ID], [])[: self.steps[-1]]  # a chunk that is sent again
        ids = self.sessions[headers[ID]] = [*before, *json.loads(body)]
        values = {name: value.tolist() for name, value in outputs(MODEL, ids).items()}
        fields = {ID: headers[ID], STEP: len(ids)}
        answer = {**values, "tags": values["tags"][len(before) :], **fields}
        return response(json.dumps(answer).encode(), headers=fields)


def whole(body: bytes) -> object:
    def named(ids: list[int]) -> dict[str, Any]:
        return {name: value.tolist() for name, value in outputs(MODEL, ids).items()}

    if body.startswith(b"\x93NUMPY"):
        return named(np.load(io.BytesIO(body)).tolist())
    value = json.loads(body)
    if isinstance(value, list):
        return named(value)
    if "instances" in value:
        return {"predictions": [named(ids) for ids in value["instances"]]}
    return {
        "outputs": [
            {"name": name, "shape": list(np.shape(data)), "data": np.ravel(data).tolist()}
            for name, data in named(value["inputs"][0]["data"]).items()
        ]
    }


def refusal(status: int, kind: str) -> bytes:
    return response(json.dumps({"code": status, "type": kind, "message": "no"}).encode(), status)


def sent(*servers: Server, tally: Tally | None = None, requests: int = 12, clients: int = 1, **settings: Any) -> Tally:
    """The tally of clients that send until so many requests were sent, then the rest of their sessions."""
    tally = tally or Tally()

    async def run() -> None:
        async with answering(servers[0].answer) as first, answering(servers[-1].answer) as second:
            ports = [first, second][: len(servers)]
            load = Traffic(MODEL, [SCRIPT], **{"patience": 20.0, **settings})
            await send(load, ports, clients, tally, lambda: tally.sent < requests)

    asyncio.run(run())
    return tally


def calm(server: Server, kinds: tuple[str, ...] = (KIND,)) -> Tally:
    """The tally of a client without patience, every tenth of whose requests is bad."""
    return sent(server, requests=100, sentences=SENTENCES, kinds=cycle(kinds), patience=0.0)


def broken(tally: Tally, kinds: tuple[str, ...] = ()) -> list[str]:
    return [law.what for law in answer_laws(tally, kinds, {}) if not law.holds]


def test_a_right_server_holds() -> None:
    server = Server()
    tally = sent(server)
    assert server.steps == [0, *SCRIPT.ends[:-1]] * 2
    assert (tally.sessions_finished, tally.good_right, tally.again) == (2, 12, Counter())

    tally = calm(Server(), (KIND, *HANG_UPS))
    assert broken(tally, (KIND, *HANG_UPS)) == []
    assert tally.lines == []


@pytest.mark.few(2)
@pytest.mark.parametrize("failure", [refusal(500, "x"), refusal(507, "x"), refusal(409, "SessionBusy"), b"HTTP/1.1 2"])
def test_a_chunk_without_an_answer_is_sent_again_if_there_is_patience(failure: bytes) -> None:
    spoil: Callable[[int, bytes], bytes] = lambda number, answer: failure if number in (2, 3) else answer  # noqa: E731
    server = Server(spoil)
    tally = sent(server, requests=6, answer_seconds=0.5)

    assert server.steps == [0, *[SCRIPT.ends[0]] * 3, *SCRIPT.ends[1:-1]]
    assert (tally.sessions_finished, tally.again.total(), broken(tally)) == (1, 2, [])
    assert "sessions lost" in broken(sent(Server(spoil), requests=6, answer_seconds=0.5, patience=0.0))


@pytest.mark.ci
def test_a_client_that_hangs_up_and_one_of_two_dead_servers_lose_nothing() -> None:
    tally = sent(Server(), requests=6, hang_ups=1.0)
    assert (broken(tally), tally.again) == ([], Counter({"the client hung up": 6}))

    both = Server()
    tally = sent(Server(lambda *_: refusal(503, "x")), both, requests=6)
    assert (broken(tally), sorted(set(both.steps))) == ([], [0, *SCRIPT.ends[:-1]])
    assert "sessions lost" in broken(sent(Server(lambda *_: refusal(503, "x")), requests=1, patience=0.5))


def test_a_session_whose_state_was_taken_away_begins_again() -> None:
    """The server must have said so; where nothing was taken away, the same answer is a loss."""
    tally = Tally()

    def spoil(number: int, answer: bytes) -> bytes:
        tally.states_gone += number == 3
        return refusal(410, "SessionUnknown") if number == 3 else answer

    sent(Server(spoil), tally=tally, requests=6)
    assert (broken(tally), tally.begun_again, tally.sessions_begun) == ([], 1, 2)
    for lost in (refusal(410, "SessionUnknown"), refusal(409, "StepGap")):
        server = Server(lambda number, answer, lost=lost: lost if number == 3 else answer)  # type: ignore[misc]
        assert "sessions lost" in broken(sent(server, requests=3))


def test_each_wrong_answer_and_each_wrong_refusal_is_counted() -> None:
    tally = calm(Server(lambda number, answer: answer.replace(b"0.", b"1.", 1) if number == 50 else answer))
    assert tally.good_sent - tally.good_right == 1

    for other in (refusal(503, "SessionUnknown"), refusal(410, "SessionEnded"), response(b"SessionUnknown", 410)):
        spoil = lambda _, answer, other=other: other if b"SessionUnknown" in answer else answer  # noqa: E731
        tally = calm(Server(spoil))
        assert (tally.bad_sent.total() > 5, tally.bad_refused.total()) == (True, 0)
        assert (tally.good_right, broken(tally)) == (tally.good_sent, [])


def test_an_answer_to_a_chunk_is_right_wrong_or_of_a_chunk_that_was_applied_twice() -> None:
    session = Session(SCRIPT, 0)
    session.sent = 3
    right = {"tags": SCRIPT.tags[session.begin : session.end].tolist(), "topic": SCRIPT.topics[3].tolist()}
    again = outputs(MODEL, [*SCRIPT.ids[: session.end], *SCRIPT.ids[session.begin : session.end]])
    doubled = {"tags": again["tags"][session.end :].tolist(), "topic": again["topic"].tolist()}
    size = session.end - session.begin

    def verdict(change: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Verdict:
        body = {**right, ID: session.id, STEP: session.end, **change}
        told = {ID: str(body[ID]), STEP: str(body[STEP])} if headers is None else headers
        return session.judge(Reply(200, told, json.dumps(body).encode()), MODEL)

    assert verdict({}) is verdict({"topic": [value + 5e-6 for value in right["topic"]]}) is Verdict.RIGHT
    wrong: list[dict[str, Any]] = [{"topic": "none"}, {"tags": right["tags"][:-1]}, {ID: "x"}, {ID: None}, {STEP: 0}]
    wrong += [{"topic": [value + 1e-3 for value in right["topic"]]}]
    assert {verdict(change) for change in wrong} == {Verdict.WRONG}
    headers = [{}, {ID: session.id}, {ID: session.id, STEP: "0"}, {ID: "x", STEP: str(session.end)}]
    assert {verdict({}, told) for told in headers} == {Verdict.WRONG}
    assert session.judge(Reply(200, {}, b"oops"), MODEL) is Verdict.WRONG
    assert verdict({**doubled, STEP: session.end + size}) is verdict(doubled) is Verdict.TWICE


@pytest.mark.parametrize("seed", range(20))
def test_whole_sequences_are_right_in_every_format_and_not_if_they_are_mixed_up(seed: int) -> None:
    good = draw_request(SENTENCES, random.Random(seed))
    answer: Any = whole(good.request.body)

    assert good.is_answered_by(json.dumps(answer).encode())
    assert not any(good.is_answered_by(body) for body in (b"", b"{}", b"[]", b"null", b"\xff"))
    if "predictions" in answer:
        assert not good.is_answered_by(json.dumps({"predictions": answer["predictions"][:-1]}).encode())
        if len(good.sentences) > 1:
            assert not good.is_answered_by(json.dumps({"predictions": answer["predictions"][::-1]}).encode())
    elif "tags" in answer:
        assert not good.is_answered_by(json.dumps({**answer, "tags": answer["tags"][:-1]}).encode())
        assert not good.is_answered_by(json.dumps({**answer, "topic": [0.0, 0.0, 0.0]}).encode())


def test_every_documented_refusal_is_a_status_of_the_handler() -> None:
    bad = [make(Session(SCRIPT, 0)) for make in BAD.values()]
    assert all(STATUSES[one.type] == one.status for one in bad)
    assert {one.status for one in bad} == {400, 406, 409, 410, 413, 504}
    assert len(KINDS) == len(BAD) + len(HANG_UPS) == 49
    refused = BadRequest(json_request(STREAM, []), 400, "MalformedBody")
    incomplete: list[Any] = [{}, {"code": 400}, {"code": 400, "type": "MalformedBody"}, [], 1]
    for value in incomplete:
        assert not refused.is_answered_by(Reply(400, {}, json.dumps(value).encode()))


GOOD = Tally(180, 180, 0, Counter({"a": 10, "b": 10}), Counter({"a": 10, "b": 10}), 5, 5, faults=Counter({"kills": 3}))


@pytest.mark.parametrize(
    ("tally", "line"),
    [
        (GOOD, ""),
        (replace(GOOD, good_right=179), "good requests without the right answer: 1, at most 0"),
        (replace(GOOD, twice=1), "chunks applied twice: 1, at most 0"),
        (replace(GOOD, sessions_finished=4), "sessions lost: 1, at most 0"),
        (replace(GOOD, sessions_begun=0, sessions_finished=0), "sessions finished: 0, at least 1"),
        (replace(GOOD, bad_refused=Counter({"a": 12, "b": 8})), "bad requests without their documented refusal: 2,"),
        (replace(GOOD, good_sent=220, good_right=220), "bad requests, percent of all: 8.333, at least 9"),
        (replace(GOOD, bad_sent=Counter({"a": 20}), bad_refused=Counter({"a": 20})), "kinds of bad requests that"),
        (replace(GOOD, faults=Counter({"kills": 2})), "kills: 2, at least 3"),
    ],
)
def test_each_thing_that_is_missing_breaks_one_law(tally: Tally, line: str) -> None:
    lines = [str(law) for law in answer_laws(tally, ("a", "b"), {"kills": 3}) if not law.holds]

    assert len(lines) == bool(line)
    assert all(told.startswith(line) for told in lines)
    assert len(broken(Tally(), ("a",))) == 3


FULL = 1800.0


def leaks(memory: Callable[[float], float] = lambda _: 2e8, threads: Callable[[float], int] = lambda _: 6) -> list[str]:
    readings = [Reading(float(at), memory(at), 20 + 30 * (at % 5 == 0), threads(at)) for at in range(1800)]
    return [law.what for law in process_laws("worker", readings, FULL) if not law.holds]


@given(seed=st.integers(0, 2**32), leak=st.floats(0.1, 10), at=st.floats(451, 1600))
def test_a_leak_or_a_step_is_noticed_and_noise_is_none(seed: int, leak: float, at: float) -> None:
    chance = random.Random(seed)
    noise = [1 + chance.uniform(-0.003, 0.003) for _ in range(1800)]
    spikes = [1 + (chance.random() < 0.2) / 2 for _ in range(1800)]

    growth = ["worker: growth of memory, percent"]
    assert leaks(lambda now: 2e8 * (1 + leak / 100 * now / 60) * noise[int(now)]) == growth
    assert leaks(lambda now: 2e8 * (1.026 if now >= at else 1) * noise[int(now)]) == growth
    assert leaks(lambda now: 2e8 * noise[int(now)] * spikes[int(now)]) == []
    assert leaks(lambda now: 2e8 * (1 + min(now, 299) / 299)) == []  # the warm-up is not judged
    assert leaks(lambda now: 3e8 - now * 5e4) == []


@pytest.mark.parametrize(("change", "lines"), [(1, 0), (2, 1), (-1, 0), (-2, 1)])
def test_threads_stay_within_one_and_a_process_that_ended_does_not_hold(change: int, lines: int) -> None:
    assert len(leaks(threads=lambda at: 6 + (change if at > 900 else 0))) == lines
    ended = [Reading(float(at), 2e8, 20, 6) for at in range(1500)]
    assert [math.isnan(law.value) for law in process_laws("worker", ended, FULL)] == [True] * 3


PROGRAM = """
import pathlib, sys, time
def tried(act):
    try:
        act()
        return "done"
    except OSError as error:
        return error.strerror
print(round((time.time() - float(sys.argv[2])) / 3600), tried(lambda: (pathlib.Path(sys.argv[1]) / "x").write_text("")))
"""


def test_a_process_has_a_fault_in_the_folder_of_sessions_only(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    environment = HostFaults(tmp_path, tmp_path / "sessions").environment()
    for disk, clock, seen in (("0", "3600", "1 done"), ("4", "-3600", "-1 No space left"), ("5", "0", "0 Read-only")):
        Path(environment["FAILING_FILES_CONTROL"]).write_text(disk)
        Path(environment["STRESS_CLOCK"]).write_text(clock)
        for folder, expected in ((str(tmp_path / "sessions"), seen), (str(tmp_path), f"{seen.partition(' ')[0]} done")):
            command = [sys.executable, "-c", PROGRAM, folder, str(time.time())]
            assert subprocess.check_output(command, env={**os.environ, **environment}, text=True).startswith(expected)


def test_each_disturbance_is_made_and_a_file_truncated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_SECONDS", 0.001)
    made: list[str] = []

    def disturbance(name: str) -> faults.Disturbance:
        async def make() -> None:
            made.append(name)

        return make

    tally = Tally()

    async def load() -> None:
        beside = disturb({name: disturbance(name) for name in ("disk full", TRUNCATED)}, tally)
        async with answering(Server().answer) as port:
            await send(Traffic(MODEL, [SCRIPT]), [port], 1, tally, lambda: tally.faults["disk full"] < 3, beside)

    asyncio.run(load())
    assert made[:3] == ["disk full", TRUNCATED, "disk full"]
    assert (made.count(TRUNCATED), tally.states_gone) == (1, 2)

    async def fail() -> None:
        raise TimeoutError("no replica was ready")

    async def failing() -> None:
        async with answering(Server().answer) as port:
            await send(Traffic(MODEL, [SCRIPT]), [port], 2, Tally(), lambda: True, fail())

    with pytest.raises(TimeoutError, match="no replica was ready"):
        asyncio.run(failing())


def test_a_worker_is_killed_once_there_was_an_answer_since_the_last_kill() -> None:
    """Otherwise no session could end on a machine where a worker starts slowly."""

    class Victim:
        server = True

        def kill_worker(self, chance: random.Random) -> bool:
            return True

    tally, victims = Tally(), [cast("Host", Victim())]

    async def kill() -> list[int]:
        task = asyncio.create_task(kill_workers(victims, tally, 0.001, random.Random(0)))
        kills = []
        for _ in range(2):
            await asyncio.sleep(0.3)
            kills.append(tally.faults[WORKERS])
            tally.good_right += 1
        task.cancel()
        return kills

    assert asyncio.run(kill()) == [1, 2]
