"""Runs that started something of many runs (a workflow, a batch, a bulk job) and wait for its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Table, delete, select, update

from fusee.engine.model.outcome import Effect, End, Ended, Verdict
from fusee.engine.model.states import TERMINAL, RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import Settlement
from fusee.engine.store.rows import AnyRow
from fusee.engine.store.settle import RULED_BY, Outcomes
from fusee.engine.store.tables import runs, tickets
from fusee.errors import LeaseLost
from fusee.values.chunks import chunks

__all__ = ["Outcome", "ParentRun", "Parents", "StartedKind", "must_own"]


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


class Outcome(NamedTuple):
    """How what was started ended: `said` in a few words, `why` in more."""

    end: End
    said: str
    why: str | None
    result: dict[str, Any]


@dataclass(frozen=True)
class StartedKind:
    """A kind of thing that a run can start; its rows name that run as their `parent_run`."""

    what: str
    table: Table
    over: Callable[[Any], bool]
    outcome: Callable[[Any], Outcome]
    columns: Sequence[Any] = ()

    def end(self, run: AnyRow, row: AnyRow) -> Settlement:
        """Not retried: it would find the same one again."""
        end, said, why, result = self.outcome(row)
        text, kept = f"{self.what} {row.id} {said}", msgspec.json.encode(result).decode()
        error = None if end is End.SUCCEEDED else text if why is None else f"{text}: {why}"
        effect = Effect.APPLIED if end is End.SUCCEEDED else Effect.UNKNOWN
        verb, status = _VERBS[end]
        verdict = Verdict(verb, status, text, counted=end is not End.SUCCEEDED)
        return Settlement(
            run.id, run.attempt, Ended(end, result=kept, error=error, effect=effect), verdict, ticket=True
        )


_VERBS = {
    End.SUCCEEDED: ("succeed", RunStatus.SUCCEEDED),
    End.CANCELED: ("cancel", RunStatus.CANCELED),
    End.FAILED: ("fail", RunStatus.FAILED),
}


class Parents:
    def __init__(self, context: StoreContext, outcomes: Outcomes) -> None:
        self.context = context
        self.outcomes = outcomes

    def settle_parents(
        self,
        connection: Connection,
        run_ids: Sequence[int],
        kind: StartedKind,
        abandon: Callable[[Connection, Any, str, int], None],
        now: int,
    ) -> list[int]:
        """Each of these runs started one, perhaps: end it with that, or `abandon` that with it.

        Returns those whose attempt still runs: it is not known yet whether it will wait.
        """
        again: list[int] = []
        table, ordered = kind.table, sorted(set(run_ids))
        for chunk in chunks(ordered):
            part = table.c.parent_run.in_(chunk)
            mine = select(*(kind.columns or table.c)).where(part).order_by(table.c.id)
            started = {row.parent_run: row for row in connection.execute(mine.with_for_update())}
            known = select(*RULED_BY).where(runs.c.id.in_(started)).order_by(runs.c.id).with_for_update()
            for run in connection.execute(known).all() if started else ():
                row, status = started[run.id], RunStatus(run.status)
                if status is RunStatus.RUNNING:
                    again.append(run.id)
                elif status is RunStatus.WAITING and kind.over(row):
                    self.outcomes.apply_verdicts(connection, [(kind.end(run, row), run)], now)
                elif status is RunStatus.WAITING:
                    waits = {"reason": f"waits for {kind.what} {row.id}"}
                    connection.execute(update(runs).where(runs.c.id == run.id).values(waits))
                    # What it started may need the place that it takes in a queue with limits.
                    connection.execute(delete(tickets).where(tickets.c.run_id == run.id))
                elif status in TERMINAL and not kind.over(row):
                    abandon(connection, row, f"run {run.id}, which started it, ended {status}", now)
                # else: it is tried again, asks for the same one, and is looked at then.
        return again
