"""Laws of a run: answers as in eager mode, sessions to their end, and processes that stay as they are."""

from __future__ import annotations

import json
import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

import psutil
import torch

from .model import TOKENS, Tagger

TOLERANCE = 1e-5
LONGEST_CHUNK = 8
ID, START, END, STEP = (f"ts_request_sequence_{word}" for word in ("id", "start", "end", "step"))
Values = Mapping[str, torch.Tensor]


@torch.inference_mode()
def outputs(model: Tagger, ids: Sequence[int]) -> Values:
    """Return the model's own answer in eager mode: `tags` [timesteps, 4] and `topic` [3]."""
    tags, topic = model(torch.tensor([ids]), torch.tensor([len(ids)]))
    return {"tags": tags[0].clone(), "topic": topic[0].clone()}


def equal(answer: Any, expected: Values) -> bool:
    """Whether the JSON value of an answer has every expected output, in its shape and within the tolerance."""
    try:
        values = {name: torch.tensor(answer[name], dtype=torch.float32) for name in expected}
    except (ValueError, KeyError, TypeError, RuntimeError):
        return False
    return all(
        values[name].shape == value.shape and torch.allclose(values[name], value, TOLERANCE, TOLERANCE)
        for name, value in expected.items()
    )


class Reply(NamedTuple):
    """An HTTP response; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.status} {self.body[:200].decode(errors='replace')}"


class Verdict(Enum):
    """The verdict on the answer to a chunk."""

    RIGHT = "right"
    WRONG = "wrong"
    TWICE = "applied twice"


@dataclass(frozen=True)
class Script:
    """The tokens of a session, the ends of its chunks, and the model's own answers: those of an uninterrupted run."""

    ids: tuple[int, ...]
    ends: tuple[int, ...]
    tags: torch.Tensor
    topics: torch.Tensor
    """[chunks, 3]: of the text up to the end of each chunk."""


@torch.inference_mode()
def draw_script(model: Tagger, chunks: int, chance: random.Random) -> Script:
    """Draw chunks of 1 to 8 tokens, and run the model once, with a row for the text up to the end of each."""
    ends = tuple(accumulate(chance.randint(1, LONGEST_CHUNK) for _ in range(chunks)))
    ids = tuple(chance.choices(range(TOKENS), k=ends[-1]))
    tags, topics = model(torch.tensor([ids]).expand(chunks, -1), torch.tensor(ends))
    return Script(ids, ends, tags[-1].clone(), topics.clone())


class Session:
    """A session between two of its requests, under an id that no other one has."""

    def __init__(self, script: Script, states_gone: int) -> None:
        self.script = script
        self.states_gone = states_gone
        """Number of times that all states had been taken away when it began."""
        self.id = f"stress-{secrets.token_hex(8)}"
        self.sent = 0
        """Chunks that were answered."""

    @property
    def is_over(self) -> bool:
        """Whether every chunk was answered."""
        return self.sent == len(self.script.ends)

    @property
    def begin(self) -> int:
        """Tokens before the next chunk."""
        return self.script.ends[self.sent - 1] if self.sent else 0

    @property
    def end(self) -> int:
        """Tokens up to the end of the next chunk."""
        return self.script.ends[self.sent]

    def fields(self) -> dict[str, str]:
        """Return the headers of the next chunk."""
        return {
            ID: self.id,
            STEP: str(self.begin),
            **({START: "true"} if self.sent == 0 else {}),
            **({END: "true"} if self.end == self.script.ends[-1] else {}),
        }

    def judge(self, reply: Reply, model: Tagger) -> Verdict:
        """Judge the answer to the next chunk; its body and its headers must say the same."""
        script, begin, end = self.script, self.begin, self.end
        try:
            answer = json.loads(reply.body)
            steps = {(answer[ID], answer[STEP]), (reply.headers[ID], int(reply.headers[STEP]))}
        except (ValueError, KeyError, TypeError):
            return Verdict.WRONG
        expected = {"tags": script.tags[begin:end], "topic": script.topics[self.sent]}
        if reply.status == 200 and steps == {(self.id, end)} and equal(answer, expected):
            return Verdict.RIGHT
        again = outputs(model, [*script.ids[:end], *script.ids[begin:end]])
        doubled = {"tags": again["tags"][end:], "topic": again["topic"]}
        beyond = any(isinstance(step, int) and step > end for _, step in steps)
        return Verdict.TWICE if beyond or equal(answer, doubled) else Verdict.WRONG


@dataclass
class Tally:
    """Requests and answers, counted while they happen."""

    good_sent: int = 0
    good_right: int = 0
    """Good requests with status 200 and the model's own answer."""
    twice: int = 0
    bad_sent: Counter[str] = field(default_factory=Counter)
    """Bad requests and hang-ups by kind."""
    bad_refused: Counter[str] = field(default_factory=Counter)
    """Those of them with their documented refusal; hang-ups get no answer."""
    sessions_begun: int = 0
    sessions_finished: int = 0
    begun_again: int = 0
    """Sessions given up because the server said that it has their state no longer, after all states were taken away."""
    again: Counter[str] = field(default_factory=Counter)
    """Requests that were sent again, by reason."""
    faults: Counter[str] = field(default_factory=Counter)
    states_gone: int = 0
    lines: list[str] = field(default_factory=list)
    """A line for each of the first answers that were wrong or did not come."""

    def wrong(self, line: str) -> None:
        """Keep a line, if there are few."""
        self.lines += [line] if len(self.lines) < 20 else []

    @property
    def sent(self) -> int:
        """The number of all requests."""
        return self.good_sent + self.bad_sent.total()


class Law(NamedTuple):
    """A figure and its bounds; not-a-number is within none."""

    what: str
    value: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def holds(self) -> bool:
        """Whether the figure is within its bounds."""
        return self.least <= self.value <= self.most

    @property
    def bound(self) -> str:
        """The bound in words."""
        return f"at least {self.least:g}" if self.least > -math.inf else f"at most {self.most:g}"

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.4g}, {self.bound}"


def answer_laws(tally: Tally, kinds: Collection[str], faults: Mapping[str, int]) -> Iterator[Law]:
    """Yield the laws of answers; each kind of bad request must have been sent, each fault made so often."""
    unfinished = tally.sessions_begun - tally.sessions_finished - tally.begun_again
    yield Law("good requests without the right answer", tally.good_sent - tally.good_right, most=0)
    yield Law("chunks applied twice", tally.twice, most=0)
    yield Law("sessions lost", unfinished, most=0)
    yield Law("sessions finished", tally.sessions_finished, least=1)
    if kinds:
        unsent = [kind for kind in kinds if not tally.bad_sent[kind]]
        bad = tally.bad_sent.total()
        yield Law("bad requests without their documented refusal", (tally.bad_sent - tally.bad_refused).total(), most=0)
        yield Law("bad requests, percent of all", 100 * bad / tally.sent if tally.sent else math.nan, least=9)
        yield Law("kinds of bad requests that were not sent", len(unsent), most=0)
    for name, least in faults.items():
        yield Law(name, tally.faults[name], least=least)


class Reading(NamedTuple):
    """A process at one time."""

    seconds: float
    memory: float
    descriptors: int
    threads: int


def read_process(pid: int, seconds: float) -> Reading | None:
    """Read a process of this machine; None if there is none."""
    try:
        process = psutil.Process(pid)
        return Reading(seconds, process.memory_info().rss, process.num_fds(), process.num_threads())
    except psutil.NoSuchProcess:
        return None


def process_laws(name: str, readings: Sequence[Reading], total_seconds: float) -> Iterator[Law]:
    """Yield the laws of one worker: medians of the first and the last tenth after the warm-up.

    Medians, because a reading may fall into a batch or a garbage collection. A leak of 0.1 % a minute exceeds 2 % in
    half an hour; a library may open one file or start one thread at its first use, which may be late.
    """
    after = min(300.0, total_seconds / 2)  # the store starts its checkpoints, sessions left by clients expire
    width = (total_seconds - after) / 10

    def ends(figure: Callable[[Reading], float]) -> tuple[float, float]:
        first = [figure(reading) for reading in readings if after <= reading.seconds < after + width]
        last = [figure(reading) for reading in readings if total_seconds - width <= reading.seconds]
        few = len(first) < 5 or len(last) < 5
        return (math.nan, math.nan) if few else (median(first), median(last))

    memory = ends(lambda reading: reading.memory)
    yield Law(f"{name}: growth of memory, percent", 100 * (memory[1] / memory[0] - 1), most=2)
    for what in ("descriptors", "threads"):
        first, last = ends(lambda reading, what=what: getattr(reading, what))  # type: ignore[misc]
        yield Law(f"{name}: difference of {what}", abs(last - first), most=1)
