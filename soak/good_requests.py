"""Requests of whole sequences in every format, each with the model's own answer."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from chaos.model import TOKENS, Tagger
from chaos.verdict import equal

from .archives import LONGEST, TAGGER
from .request import Request, json_request, predictions

_MOST_OF_ONE = 4
"""The most sequences of one request."""


class Sentence(NamedTuple):
    """A sequence and the answer of the model in eager mode."""

    ids: list[int]
    expected: dict[str, torch.Tensor]
    """`tags` [timesteps, 4] and `topic` [3]."""


class GoodRequest(NamedTuple):
    """A request, and how its answer is read."""

    request: Request
    sentences: Sequence[Sentence]
    read: Callable[[Any], list[dict[str, Any]]]
    """The outputs of each sequence by name, from the JSON value of an answer."""

    def is_answered_by(self, body: bytes) -> bool:
        """Whether a body has the right outputs of every sequence, in order."""
        try:
            answers = [
                {name: torch.tensor(one[name], dtype=torch.float32) for name in sentence.expected}
                for one, sentence in zip(self.read(json.loads(body)), self.sentences, strict=True)
            ]
        except (ValueError, KeyError, TypeError, RuntimeError):
            return False
        return all(map(equal, answers, (sentence.expected for sentence in self.sentences)))


@torch.inference_mode()
def draw_sentences(model: Tagger, count: int, chance: random.Random) -> list[Sentence]:
    """Draw sequences of 1 to 32 tokens, and run the model on each alone."""
    sentences = []
    for _ in range(count):
        ids = chance.choices(range(TOKENS), k=chance.randint(1, LONGEST))
        tags, topic = model(torch.tensor([ids]), torch.tensor([len(ids)]))
        sentences.append(Sentence(ids, {"tags": tags[0].clone(), "topic": topic[0].clone()}))
    return sentences


def draw_request(sentences: Sequence[Sentence], chance: random.Random) -> GoodRequest:
    """Draw sequences and a format."""
    return chance.choice(_FORMATS)(chance.sample(sentences, chance.randint(1, _MOST_OF_ONE)))


def _list(chosen: Sequence[Sentence]) -> GoodRequest:
    return GoodRequest(json_request(TAGGER, chosen[0].ids), chosen[:1], lambda answer: [answer])


def _v1(chosen: Sequence[Sentence]) -> GoodRequest:
    value = {"instances": [sentence.ids for sentence in chosen]}
    return GoodRequest(json_request(TAGGER, value), chosen, lambda answer: answer["predictions"])


def _v2(chosen: Sequence[Sentence]) -> GoodRequest:
    ids = chosen[0].ids
    entry = {"name": "ids", "shape": [len(ids)], "datatype": "INT64", "data": ids}
    return GoodRequest(json_request(TAGGER, {"inputs": [entry]}), chosen[:1], _v2_outputs)


def _v2_outputs(answer: Any) -> list[dict[str, Any]]:
    return [{one["name"]: torch.tensor(one["data"]).reshape(one["shape"]).tolist() for one in answer["outputs"]}]


def _npy(chosen: Sequence[Sentence]) -> GoodRequest:
    file = io.BytesIO()
    np.save(file, np.array(chosen[0].ids))
    request = Request(predictions(TAGGER), file.getvalue(), {"Content-Type": "application/x-npy"})
    return GoodRequest(request, chosen[:1], lambda answer: [answer])


_FORMATS = (_list, _v1, _v2, _npy)
