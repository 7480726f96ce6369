"""The table a person reads and the JSON a program does."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from .contract import Peer
from .rounds import Results

__all__ = ["as_json", "as_table"]


def as_table(peers: list[Peer], results: Results) -> Table:
    table = Table(title="Peers on PostgreSQL, medians")
    table.add_column("peer")
    for heading in ("enqueue/s", "drain/s, 1 process", "drain/s, 2 processes", "idle p50 ms", "idle p99 ms"):
        table.add_column(heading, justify="right")
    medians = results.medians()
    for peer in peers:
        if figures := medians.get(peer.name):
            rates, times = list(figures.values())[:3], list(figures.values())[3:]
            cells = [*(f"{rate:,.0f}" for rate in rates), *(f"{time:.2f}" for time in times)]
            table.add_row(f"{peer.name} {peer.version}", *cells)
    return table


def as_json(peers: list[Peer], results: Results, missing: dict[str, str]) -> dict[str, Any]:
    medians = results.medians()
    return {
        "peers": {
            peer.name: {
                "version": peer.version,
                "settings": peer.settings,
                "medians": medians[peer.name],
                "rounds": results.rounds[peer.name],
            }
            for peer in peers
            if peer.name in medians
        },
        "failed": results.failed,
        "missing": missing,
    }
