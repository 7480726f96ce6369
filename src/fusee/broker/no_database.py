"""What code in a worker that has no database meets where the store would be.

Such a worker is fed by a message broker. A few calls of the SDK travel over the broker
(`fusee.broker.remote`); all others are refused at once, by name. Before this, they opened the default SQLite
file.
"""

from __future__ import annotations

import os
from typing import NoReturn

from fusee.errors import NoDatabase

__all__ = ["ENVIRONMENT", "NoStoreHere", "in_child_of_such_a_worker"]

ENVIRONMENT = "_FUSEE_WORKER_WITHOUT_DATABASE"
"""Set for the processes in which such a worker runs handlers with isolation="process"."""


def in_child_of_such_a_worker() -> bool:
    return os.environ.get(ENVIRONMENT) == "1"


class NoStoreHere:
    """Stands in for the store; whatever is asked of it is refused."""

    def __init__(self, travels: bool) -> None:
        self._travels = travels

    def __getattr__(self, name: str) -> NoReturn:
        what = name.replace("_", " ")
        if self._travels:
            raise NoDatabase(
                f"this worker has no database, so {what!r} is not possible here. Over the broker travel:"
                " enqueue, enqueue_many, enqueue_each, bulk_jobs.create and .log, batches.create,"
                " workflows.start, tasks.trigger. Call the REST API for the rest"
            )
        raise NoDatabase(
            'a handler with isolation="process" on a worker without a database cannot reach the platform:'
            f" {what!r} is not possible here. Make it an async handler, or call the REST API"
        )
