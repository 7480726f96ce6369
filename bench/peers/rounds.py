"""Measures peers in interleaved rounds, so that a slow minute of the machine hits all of them alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from .contract import Peer

__all__ = ["Results", "measure_rounds", "one_round"]

Figures = dict[str, float]
FIGURES = ("enqueue_per_s", "drain_1_per_s", "drain_2_per_s", "latency_p50_ms", "latency_p99_ms")


@dataclass
class Results:
    """Every round's figures per peer, and why a peer has none."""

    rounds: dict[str, list[Figures]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, str] = field(default_factory=dict)

    def medians(self) -> dict[str, Figures]:
        return {
            name: {figure: median(one[figure] for one in rounds) for figure in FIGURES}
            for name, rounds in self.rounds.items()
        }


async def one_round(peer: Peer, url: str, *, jobs: int | None = None, samples: int = 200) -> Figures:
    """One peer's five figures; `jobs` overrides the peer's own sizes."""
    to_enqueue, to_drain = jobs or peer.sizes.enqueue, jobs or peer.sizes.drain
    enqueue = to_enqueue / await peer.enqueue(url, to_enqueue)
    drain_1 = to_drain / await peer.drain(url, to_drain, 1)
    drain_2 = to_drain / await peer.drain(url, to_drain, 2)
    latencies = await peer.latency(url, samples)
    cuts = quantiles(latencies, n=100, method="inclusive")
    values = (enqueue, drain_1, drain_2, cuts[49] * 1e3, cuts[98] * 1e3)
    return dict(zip(FIGURES, values, strict=True))


async def measure_rounds(
    peers: list[Peer],
    server: Any,
    *,
    rounds: int = 3,
    jobs: int | None = None,
    samples: int = 200,
    tell: Callable[[str], None] = lambda text: None,
) -> Results:
    """Each round measures every peer once, each in a database of its own; a peer that fails drops out."""
    results = Results()
    urls: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for peer in peers:
            if peer.name in results.failed:
                continue
            tell(f"round {number} of {rounds}: {peer.name}")
            try:
                if peer.name not in urls:
                    urls[peer.name] = server.create_database()
                    await peer.prepare(urls[peer.name])
                figures = await one_round(peer, urls[peer.name], jobs=jobs, samples=samples)
            except Exception as reason:
                results.failed[peer.name] = f"{type(reason).__name__}: {reason}"
            else:
                results.rounds[peer.name].append(figures)
    return results
