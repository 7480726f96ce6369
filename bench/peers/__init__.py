"""Peers on PostgreSQL, measured by one contract so that Fusee and they can share a run and a server.

`prepare` wants an empty database; `enqueue` and `drain` return seconds, `latency` a list of them.
"""

from __future__ import annotations

from .contract import Peer, Sizes, Unavailable
from .graphile_worker import GRAPHILE_WORKER
from .pg_boss import PG_BOSS
from .pgqueuer import PGQUEUER
from .procrastinate import PROCRASTINATE

__all__ = ["PEERS", "Peer", "Sizes", "Unavailable", "available_peers"]

PEERS: tuple[Peer, ...] = (GRAPHILE_WORKER, PG_BOSS, PGQUEUER, PROCRASTINATE)


def available_peers(only: list[str] | None = None, missing: dict[str, str] | None = None) -> list[Peer]:
    """Installs the peers and returns those that can run; `missing` collects why the others cannot."""
    able = []
    for peer in PEERS:
        if only and peer.name not in only:
            continue
        try:
            peer.install()
        except Unavailable as reason:
            if missing is not None:
                missing[peer.name] = str(reason)
        else:
            able.append(peer)
    return able
