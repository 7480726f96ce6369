"""A run that starts something larger and waits for its end."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select

from fusee.engine.model.states import RunStatus
from fusee.engine.store.tables import runs
from fusee.errors import LeaseLost

__all__ = ["ParentRun", "must_own"]


class ParentRun(NamedTuple):
    """The attempt of a run that starts a workflow or a batch and waits for its end."""

    run_id: int
    attempt: int


def must_own(connection: Connection, parent: ParentRun) -> None:
    """A worker that lost its lease starts nothing; the run's row is locked."""
    mine = (
        runs.c.id == parent.run_id,
        runs.c.attempt == parent.attempt,
        runs.c.status == RunStatus.RUNNING,
        runs.c.cancel_requested_at.is_(None),
    )
    if connection.execute(select(runs.c.id).where(*mine).with_for_update()).one_or_none() is None:
        raise LeaseLost(
            f"attempt {parent.attempt} of run {parent.run_id} is over, or was told to stop: it starts nothing"
        )
