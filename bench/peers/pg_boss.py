"""pg-boss: jobs stay in the table as completed."""

from __future__ import annotations

from .contract import Sizes
from .installing import pinned
from .node_peer import NodePeer

__all__ = ["PG_BOSS"]

PG_BOSS = NodePeer(
    name="pg-boss",
    version=pinned("pg-boss"),
    sizes=Sizes(enqueue=100_000, drain=100_000),
    settings={
        "batchSize": 5_000,
        "localConcurrency": 2,
        "poolSize": 10,
        "partition": False,
        "chunk": 5_000,
        "lanes": 2,
    },
    tables=("pgboss.job",),
    unfinished="SELECT EXISTS (SELECT 1 FROM pgboss.job WHERE state < 'completed')",
    script="pg_boss.mjs",
)
