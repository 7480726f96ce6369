"""graphile-worker: jobs are deleted when done."""

from __future__ import annotations

from .contract import Sizes
from .installing import pinned
from .node_peer import NodePeer

__all__ = ["GRAPHILE_WORKER"]

GRAPHILE_WORKER = NodePeer(
    name="graphile-worker",
    version=pinned("graphile-worker"),
    sizes=Sizes(enqueue=120_000, drain=100_000),
    settings={
        "localQueueSize": 5_000,  # 18-21k/s where 500 gave 12-14k/s, alternating on a busy 2-core machine
        "concurrentJobs": 100,
        "maxPoolSize": 10,
        "completeJobBatchDelay": 0,
        "failJobBatchDelay": 0,
        "chunk": 10_000,
        "lanes": 2,
    },
    tables=("graphile_worker._private_jobs",),
    unfinished="SELECT EXISTS (SELECT 1 FROM graphile_worker._private_jobs)",
    script="graphile_worker.mjs",
)
