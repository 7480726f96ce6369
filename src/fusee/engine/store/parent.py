"""A run that starts something larger and waits for its end."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select

from fusee.engine.model.states import RunStatus
from fusee.engine.store.tables import runs
from fusee.errors import LeaseLost

__all__ = ["Waiter", "must_own"]


class Waiter(NamedTuple):
    """The attempt of a run that starts a workflow or a batch and waits for its end."""

    run_id: int
    attempt: int


def must_own(connection: Connection, waiter: Waiter) -> None:
    """A worker that lost its lease starts nothing; the run's row is locked."""
    mine = (
        runs.c.id == waiter.run_id,
        runs.c.attempt == waiter.attempt,
        runs.c.status == RunStatus.RUNNING,
        runs.c.cancel_requested_at.is_(None),
    )
    if connection.execute(select(runs.c.id).where(*mine).with_for_update()).one_or_none() is None:
        raise LeaseLost(
            f"attempt {waiter.attempt} of run {waiter.run_id} is over, or was told to stop: it starts nothing"
        )
