"""pgqueuer: a finished job moves to the log table."""

from __future__ import annotations

from .contract import Sizes
from .installing import pinned
from .python_peer import PythonPeer

__all__ = ["PGQUEUER"]

PGQUEUER = PythonPeer(
    name="pgqueuer",
    version=pinned("pgqueuer"),
    sizes=Sizes(enqueue=120_000, drain=40_000),
    settings={"batch_size": 2_000, "pool": 4, "chunk": 5_000, "lanes": 2},
    tables=("pgqueuer", "pgqueuer_log"),
    unfinished="SELECT EXISTS (SELECT 1 FROM pgqueuer)",
    script="pgqueuer_runner.py",
)
