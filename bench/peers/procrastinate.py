"""procrastinate: jobs are fetched and finished one statement each."""

from __future__ import annotations

from .contract import Sizes
from .installing import pinned
from .python_peer import PythonPeer

__all__ = ["PROCRASTINATE"]

PROCRASTINATE = PythonPeer(
    name="procrastinate",
    version=pinned("procrastinate"),
    sizes=Sizes(enqueue=40_000, drain=1_500),
    settings={
        "concurrency": 10,
        "pool": 10,
        "delete_jobs": "never",
        "autocommit": True,
        "chunk": 5_000,
        "lanes": 2,
    },
    tables=("procrastinate_jobs", "procrastinate_events"),
    unfinished="SELECT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
    script="procrastinate_runner.py",
)
