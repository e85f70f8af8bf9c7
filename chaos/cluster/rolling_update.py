"""New weights of a model while clients ask: no refusal, and only answers of the two models."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum

import torch

from ..connection import Connection, NoAnswer
from ..model import Tagger
from ..verdict import equal

_CLIENTS = 16
_BEFORE = 200
"""Answers before the update begins."""
_SETTLED = 300
"""Answers of the new model, one after the other, after which no replica has the old one."""
_MOST_SECONDS = 300.0
_ANSWER_SECONDS = 60.0
_LOOK_SECONDS = 0.1

Values = Mapping[str, torch.Tensor]


class Version(Enum):
    """The model whose answer was given."""

    OLD = "old"
    NEW = "new"
    NEITHER = "neither"


@dataclass(frozen=True)
class Question:
    """A text, and what each of the two models answers."""

    tokens: tuple[int, ...]
    old: Values
    new: Values

    def version(self, body: bytes) -> Version:
        """The model whose answer this is."""
        try:
            answer = json.loads(body)
            values = {name: torch.tensor(answer[name]) for name in self.old}
        except (ValueError, KeyError, TypeError):
            return Version.NEITHER
        if equal(values, self.old):
            return Version.OLD
        return Version.NEW if equal(values, self.new) else Version.NEITHER


@dataclass
class Update:
    """Answers while the weights changed."""

    old: int = 0
    new: int = 0
    refused: list[str] = field(default_factory=list)
    """A line for each request without an answer, or with another status than 200."""
    wrong: list[str] = field(default_factory=list)
    """A line for each answer of neither model."""
    new_in_a_row: int = 0

    @property
    def given(self) -> int:
        """The number of requests."""
        return self.old + self.new + len(self.refused) + len(self.wrong)

    def add(self, version: Version, body: bytes) -> None:
        """Count an answer."""
        self.new_in_a_row = self.new_in_a_row + 1 if version is Version.NEW else 0
        self.old += version is Version.OLD
        self.new += version is Version.NEW
        if version is Version.NEITHER:
            self.wrong.append(body[:200].decode(errors="replace"))


@torch.inference_mode()
def questions(old: Tagger, new: Tagger, texts: Sequence[tuple[int, ...]]) -> list[Question]:
    """The texts with the answers of both models in eager mode."""
    return [Question(tokens, _values(old, tokens), _values(new, tokens)) for tokens in texts]


def _values(model: Tagger, tokens: tuple[int, ...]) -> Values:
    tags, topic = model(torch.tensor([tokens]), torch.tensor([len(tokens)]))
    return {"tags": tags[0], "topic": topic[0]}


async def update_under_load(
    port: int, path: str, asked: Sequence[Question], deploy: Callable[[], None], progress: Callable[[int], object]
) -> Update:
    """Ask from many clients, deploy the new weights, and go on until every replica has them.

    Raises:
        TimeoutError: the old model still answered long after.
    """
    update = Update()
    over = asyncio.Event()
    clients = [asyncio.create_task(_ask(port, path, asked, number, update, over)) for number in range(_CLIENTS)]
    try:
        await _until(lambda: update.given >= _BEFORE, update, progress)
        await asyncio.to_thread(deploy)
        await _until(lambda: update.new_in_a_row >= _SETTLED, update, progress)
    finally:
        over.set()
        await asyncio.gather(*clients)
    return update


async def _until(holds: Callable[[], bool], update: Update, progress: Callable[[int], object]) -> None:
    deadline = time.monotonic() + _MOST_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the update did not end within {_MOST_SECONDS:.0f} s: {update}")
        progress(update.given)
        await asyncio.sleep(_LOOK_SECONDS)


async def _ask(
    port: int, path: str, asked: Sequence[Question], first: int, update: Update, over: asyncio.Event
) -> None:
    number = first
    with closing(Connection(port, _ANSWER_SECONDS)) as connection:
        while not over.is_set():
            question = asked[number % len(asked)]
            number += 1
            try:
                reply = await connection.post(
                    path, json.dumps(question.tokens).encode(), {"Content-Type": "application/json"}
                )
            except NoAnswer as error:
                update.refused.append(str(error))
                continue
            if reply.status == 200:
                update.add(question.version(reply.body), reply.body)
            else:
                update.refused.append(f"{reply.status} {reply.body[:200].decode(errors='replace')}")
