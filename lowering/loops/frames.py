"""Frames: steps of a loop whose number follows from the timesteps otherwise, as after a stride."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Graph

from .call_sites import call_site, calls_by_site


@dataclass(frozen=True)
class Frames:
    """A dimension with another number of steps than the timesteps: that of both traces."""

    name: str
    dim: int
    sizes: tuple[int, int]


def find_frames(short: Graph, long: Graph, timesteps: tuple[int, int]) -> list[Frames]:
    """Return sizes before the first loop that grow otherwise than the timesteps, as after a stride."""
    found: dict[tuple[int, int], Frames] = {}
    counts = [{key: len(nodes) for key, nodes in calls_by_site(graph).items()} for graph in (short, long)]
    for a, b in zip(short.nodes, long.nodes, strict=False):
        if a.op == "call_function" and counts[0].get(call_site(a)) != counts[1].get(call_site(b)):
            break
        shapes = [getattr(node.meta.get("val"), "shape", ()) for node in (a, b)]
        for dim, (few, many) in enumerate(zip(*shapes, strict=False)):
            if few < many and (few, many) != timesteps:
                found.setdefault((few, many), Frames(a.name, dim, (few, many)))
    return list(found.values())
