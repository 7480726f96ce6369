"""Returning the runs of dead sessions, and of sessions that were given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, delete, select, tuple_, update

from fusee.engine.model.outcome import Effect, End, Ended, decide
from fusee.engine.model.states import RunStatus, SessionState
from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import Settlement
from fusee.engine.store.own_lanes import OwnLanes
from fusee.engine.store.retry_policies import RetryPolicies
from fusee.engine.store.sessions import LIVE
from fusee.engine.store.set_aside import is_about_a_row
from fusee.engine.store.settle import RULED_BY, Outcomes
from fusee.engine.store.tables import receipts, runs, sessions
from fusee.engine.store.totals import RUNS_LOST, SESSIONS_LOST, add_to_totals
from fusee.engine.store.wakes import PENDING

__all__ = ["Recovered", "Recovery"]


PLACE = "recover"
_OUTCOME = {RunStatus.FAILED: "failed", RunStatus.CANCELED: "canceled"}
"""What the totals call what became of a lost run; else it is requeued."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Sessions found dead and what became of their runs."""

    sessions: tuple[tuple[int, str], ...] = ()
    requeued: int = 0
    failed: int = 0
    canceled: int = 0
    by_session: Mapping[int, Mapping[RunStatus, int]] = field(default_factory=dict, compare=False)
    """Session → what became of its runs in this pass, also when it was taken in an earlier one."""
    more: bool = field(default=False, compare=False)
    """There were as many receipts as one pass takes: look again at once."""

    def __bool__(self) -> bool:
        return bool(self.sessions or self.requeued or self.failed or self.canceled or self.more)


class Recovery:
    def __init__(
        self, context: StoreContext, retry_policies: RetryPolicies, outcomes: Outcomes, own_lanes: OwnLanes
    ) -> None:
        self.context = context
        self.retry_policies = retry_policies
        self.outcomes = outcomes
        self.own_lanes = own_lanes

    async def recover(self, limit: int = 20) -> Recovered:
        """Take sessions whose lease has expired, then return the runs on up to `limit` orphaned receipts."""
        taken = await self.context.database.write(self._take_expired)
        settled, by_session = await self._return_lost(limit)
        tally = sum(by_session.values(), Counter[RunStatus]())
        if await self.context.database.write(self.own_lanes.return_orphans):
            self.context.wakes.fire(PENDING)
        if tally[RunStatus.PENDING]:
            self.context.wakes.fire(PENDING)
        return Recovered(
            tuple(taken),
            tally[RunStatus.PENDING],
            tally[RunStatus.FAILED],
            tally[RunStatus.CANCELED],
            by_session=by_session,
            more=settled == limit,
        )

    async def give_up_session(self, session: int, limit: int = 20) -> None:
        """End a session whose process lives on without it and has stopped all its runs: they are returned at
        once, not when its lease is over. Other sessions are left to `recover`, whose caller tells of them."""
        over = (sessions.c.id == session, sessions.c.state.in_(LIVE))
        change = update(sessions).where(*over)
        values = {"state": SessionState.ENDED, "ended_at": self.context.database.now, "running": 0}
        if not await self.context.database.write(
            lambda connection: connection.execute(change.values(values)).rowcount
        ):
            return
        returned = await self.context.database.write(
            lambda connection: self.own_lanes.return_all(connection, session)
        )
        settled = limit
        while settled == limit:
            settled, by_session = await self._return_lost(limit, session)
            returned += sum(tally[RunStatus.PENDING] for tally in by_session.values())
        if returned:
            self.context.wakes.fire(PENDING)

    def _take_expired(self, connection: Connection) -> list[tuple[int, str]]:
        """Passes over what is locked: a dispatcher takes it just now, its worker renews it, or its worker was
        stopped in the middle of that, and must not hold up the recovery of others."""
        now = self.context.database.now
        expired = (sessions.c.state.in_(LIVE), sessions.c.expires_at < now)
        query = select(sessions.c.id, sessions.c.worker, sessions.c.namespace).where(*expired)
        found = connection.execute(
            query.with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
        ).all()
        taken: list[tuple[int, str]] = []
        lost: Counter[tuple[str, str]] = Counter()
        for row in found:
            change = (
                update(sessions)
                .where(sessions.c.id == row.id, *expired)
                .values(state=SessionState.LOST, ended_at=now, running=0)
            )
            if connection.execute(change).rowcount == 1:
                taken.append((row.id, row.worker))
                lost[row.namespace, ""] += 1
        add_to_totals(connection, SESSIONS_LOST, lost)
        return taken

    async def _return_lost(
        self, limit: int, session: int | None = None
    ) -> tuple[int, dict[int, Counter[RunStatus]]]:
        """How many receipts, of that session or of any, were settled, and by session what became of the runs
        on them."""
        try:
            done = [
                await self.context.database.write(
                    lambda connection: self._return(connection, limit, session=session)
                )
            ]
            again = [key for key in self.context.set_aside.due(PLACE) if session in (None, key[0])]
        except Exception as error:
            if not is_about_a_row(error):
                raise
            done = []
            again = await self.context.database.read(
                lambda connection: self._orphaned_keys(connection, limit, session)
            )
        if again:
            done += await self.context.set_aside.one_by_one(
                self.context.write_aloud,
                PLACE,
                again,
                "receipt of session",
                lambda connection, key: self._return(connection, 1, only=key),
                id_of=lambda key: int(key[0]),
            )
        by_session: dict[int, Counter[RunStatus]] = {}
        for _, tallies in done:
            for session, tally in tallies.items():
                by_session[session] = by_session.get(session, Counter()) + tally
        return sum(settled for settled, _ in done), by_session

    def _orphaned(self, limit: int, session: int | None) -> Select[Any]:
        # A subquery, not a join: MariaDB has no FOR UPDATE OF, so SKIP LOCKED would pass over the row of a
        # session that is renewed just now, and an outer join would take that one for missing.
        live = select(sessions.c.id).where(sessions.c.state.in_(LIVE))
        query = select(receipts).where(receipts.c.session_id.not_in(live)).limit(limit)
        if session is not None:
            query = query.where(receipts.c.session_id == session)
        if aside := self.context.set_aside.keys(PLACE):
            query = query.where(tuple_(receipts.c.session_id, receipts.c.number).not_in(aside))
        return query

    def _orphaned_keys(
        self, connection: Connection, limit: int, session: int | None
    ) -> list[tuple[int, int]]:
        return [(row.session_id, row.number) for row in connection.execute(self._orphaned(limit, session))]

    def _return(
        self,
        connection: Connection,
        limit: int,
        *,
        session: int | None = None,
        only: tuple[int, int] | None = None,
    ) -> tuple[int, dict[int, Counter[RunStatus]]]:
        """A receipt may be written by a claim that was under way while its session was taken: so not only the
        sessions taken just now are looked at, but every receipt whose session is not live."""
        live = select(sessions.c.id).where(sessions.c.state.in_(LIVE))
        query = self._orphaned(limit, session)
        if only is not None:
            query = select(receipts).where(receipts.c.session_id == only[0], receipts.c.number == only[1])
        skip_locked = self.context.database.capabilities.skip_locked
        by_session: dict[int, Counter[RunStatus]] = {}
        lost: Counter[tuple[str, str]] = Counter()
        found = connection.execute(query.with_for_update(skip_locked=skip_locked)).all()
        # Asked again in a statement of its own: on MySQL a locking read sees rows that are newer than what
        # its subquery sees, so a session that began just now would look like none.
        born = live.where(sessions.c.id.in_({receipt.session_id for receipt in found}))
        alive = set(connection.execute(born).scalars()) if found else set()
        settled = 0
        for receipt in found:
            if receipt.session_id in alive:
                continue
            ids = [int(run_id) for run_id in receipt.run_ids.split(",")]
            returned = self._return_runs(connection, receipt.session_id, ids)
            tally = by_session.setdefault(receipt.session_id, Counter())
            for namespace, status in returned:
                tally[status] += 1
                lost[namespace, _OUTCOME.get(status, "requeued")] += 1
            if not self._still_running(connection, receipt.session_id, ids):
                mine = (receipts.c.session_id == receipt.session_id, receipts.c.number == receipt.number)
                connection.execute(delete(receipts).where(*mine))
                settled += 1
        if lost:
            self.context.notify(connection, PENDING)
        add_to_totals(connection, RUNS_LOST, lost)
        return settled, by_session

    def _return_runs(
        self, connection: Connection, session: int, ids: list[int]
    ) -> list[tuple[str, RunStatus]]:
        """Returns (namespace, what it is now) of each run that was lost with its session."""
        query = (
            select(*RULED_BY, runs.c.spent, runs.c.options)
            .where(runs.c.id.in_(ids), runs.c.session_id == session, runs.c.status == RunStatus.RUNNING)
            .order_by(runs.c.id)
            .with_for_update(skip_locked=self.context.database.capabilities.skip_locked)
        )
        rows = connection.execute(query).all()
        policies = self.retry_policies.policies(connection, rows)
        owned: list[tuple[Settlement, Any]] = []
        for row in rows:
            ended = Ended(End.LOST, error="its worker's lease expired", effect=Effect.UNKNOWN)
            verdict = decide(ended, policies[row.id], row.spent)
            owned.append((Settlement(row.id, row.attempt, ended, verdict, ticket=True), row))
        statuses = self.outcomes.apply_verdicts(connection, owned, self.context.now(connection))
        return [(row.namespace, status) for (_, row), status in zip(owned, statuses, strict=True)]

    def _still_running(self, connection: Connection, session: int, ids: list[int]) -> bool:
        """Whether some were passed over because they are locked: their receipt is looked at again."""
        query = select(runs.c.id).where(
            runs.c.id.in_(ids), runs.c.session_id == session, runs.c.status == RunStatus.RUNNING
        )
        return connection.execute(query.limit(1)).one_or_none() is not None
