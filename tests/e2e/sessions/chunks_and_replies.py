"""Chunks of a sequence to send, and what a reply says of its session."""

import torch
from rest import Reply

ID, START, END, STEP, TOKEN = (f"ts_request_sequence_{word}" for word in ("id", "start", "end", "step", "token"))


def draw(length: int) -> torch.Tensor:
    return torch.randn(length, 3)


def cut(frames: torch.Tensor, *ends: int) -> list[list[list[float]]]:
    return [frames[begin:end].tolist() for begin, end in zip((0, *ends), (*ends, len(frames)), strict=True)]


def told(reply: Reply) -> tuple[str, int]:
    """The session's id and its step, which are the same in headers and body."""
    assert reply.status == 200, reply.body
    said = reply.json[ID], reply.json[STEP]
    assert said == (reply.headers[ID], int(reply.headers[STEP]))
    return said
