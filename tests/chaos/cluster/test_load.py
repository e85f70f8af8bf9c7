"""Sessions that go on for as long as there is trouble."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from answering_server import answering, response
from chaos.archive import make_model
from chaos.cluster.load import run_load
from chaos.expected import expect
from chaos.script import draw_scripts
from chaos.tally import Tally
from chaos.verdict import ID, STEP

MODEL = make_model()
SCRIPTS = draw_scripts(sessions=3, chunks=4, tokens=50, seed=0)
SESSIONS = [(script, expect(MODEL, script)) for script in SCRIPTS]


def right_answer(body: bytes, headers: Mapping[str, str]) -> bytes:
    """The answer that the model gives to the session, whose id ends in the number of its repetition."""
    name, _, _ = headers[ID].rpartition("-")
    script, expected = next(one for one in SESSIONS if one[0].id == name)
    chunk = next(chunk for chunk in script.chunks() if chunk.begin == int(headers[STEP]))
    told = {ID: headers[ID], STEP: chunk.end}
    values = {name: value.tolist() for name, value in expected.of(chunk).items()}
    return response(json.dumps({**values, **told}).encode(), headers=told)


@dataclass
class Counted:
    """Trouble that is enough after some answers, or that fails then."""

    answers: int
    fails: bool = False
    enough: bool = False

    async def make(self, tally: Tally) -> None:
        """Count the answers."""
        while tally.given < self.answers:  # noqa: ASYNC110 - counting need not know who waits for a number
            await asyncio.sleep(0.001)
        if self.fails:
            raise TimeoutError("no replica was ready")
        self.enough = True
        await asyncio.Event().wait()


def loaded(trouble: Counted) -> tuple[Tally, int]:
    """The tally of all sessions, and how many there were."""

    async def run() -> tuple[Tally, int]:
        async with answering(right_answer) as port:
            return await run_load(MODEL, SESSIONS, port, 0.0, trouble, lambda tally: None)

    return asyncio.run(run())


@pytest.mark.parametrize(("answers", "least"), [(0, 3), (5, 3), (25, 7)])
def test_sessions_are_sent_again_until_there_was_enough_trouble(answers: int, least: int) -> None:
    """Each of them to its end, and at least once."""
    tally, begun = loaded(Counted(answers))

    assert begun >= least
    assert (tally.finished, tally.given) == (begun, begun * 4)
    assert (tally.lost, tally.strange) == ([], [])


def test_an_error_of_the_trouble_ends_the_load() -> None:
    """It is the error of the run."""
    with pytest.raises(TimeoutError, match="no replica was ready"):
        loaded(Counted(5, fails=True))
