"""Callbacks: an outside service ends an attempt, once, with a token of which only the digest is here.

A token is good as long as its attempt is the run's current one and has not ended: nothing needs to close it.
All namespaces are looked at: a token is its own proof, and a deadline belongs to the platform.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, and_, insert, literal, select, update

from fusee.engine.model.outcome import Effect, End, Ended, decide
from fusee.engine.model.run import RunKind, log_fields_of
from fusee.engine.model.states import TERMINAL, RunStatus
from fusee.engine.store.callback_waits import outcome_text
from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import Settlement
from fusee.engine.store.retry_policies import RetryPolicies
from fusee.engine.store.rows import decode
from fusee.engine.store.set_aside import is_about_a_row
from fusee.engine.store.settle import RULED_BY, Outcomes
from fusee.engine.store.tables import attempts, callbacks, runs
from fusee.engine.store.wakes import DELAYED, ENDED
from fusee.errors import LeaseLost

__all__ = ["Answered", "Callbacks", "Concluded", "Fate", "KnownCallback", "token_digest"]

PLACE = "expire"
_JUDGED_BY = (*RULED_BY, runs.c.spent, runs.c.options, runs.c.output)


def token_digest(token: str) -> str:
    """What is kept of a token: long and random as it is, a plain hash cannot be turned back."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class KnownCallback:
    """The attempt that a token is for."""

    run_id: int
    attempt: int
    signed: bool
    """The body must be signed with the token."""


@dataclass(frozen=True, slots=True)
class Concluded:
    """An attempt whose end was not reported by its worker."""

    run_id: int
    attempt: int
    handler: str
    end: End
    status: RunStatus
    """What this made of the run."""
    seconds: float
    error: str | None
    belongs: Mapping[str, Any] = field(default_factory=dict)
    """Whose run it is."""


class Fate(StrEnum):
    """What became of an answer."""

    APPLIED = "applied"
    """It ended the attempt."""
    KEPT = "kept"
    """The call itself is still under way; it ends the attempt when the worker has written that down."""
    REPEATED = "repeated"
    """Refused: there was one before."""
    LATE = "late"
    """Refused: the attempt had ended otherwise."""


@dataclass(frozen=True, slots=True)
class Answered:
    fate: Fate
    status: RunStatus | None = None
    """The status of the run; none when it was deleted."""
    concluded: Concluded | None = None
    """For an answer that was taken."""


class Callbacks:
    def __init__(self, context: StoreContext, retry_policies: RetryPolicies, outcomes: Outcomes) -> None:
        self.context = context
        self.retry_policies = retry_policies
        self.outcomes = outcomes

    async def open_callback(
        self, session: int, run_id: int, attempt: int, digest: str, *, timeout: float, signed: bool
    ) -> None:
        """A service may end this attempt; `LeaseLost` when the session no longer runs it."""
        mine = (
            runs.c.id == run_id,
            runs.c.attempt == attempt,
            runs.c.session_id == session,
            runs.c.status == RunStatus.RUNNING,
        )
        columns = ["run_id", "attempt", "namespace", "digest", "signed", "timeout"]
        values = (literal(digest), literal(signed), literal(round(timeout * 1_000_000)))
        row = select(runs.c.id, runs.c.attempt, runs.c.namespace, *values).where(*mine)
        change = insert(callbacks).from_select(columns, row)
        same = (callbacks.c.run_id == run_id, callbacks.c.attempt == attempt, callbacks.c.digest == digest)

        def work(connection: Connection) -> int:
            if connection.execute(select(callbacks.c.run_id).where(*same)).one_or_none() is not None:
                return 1  # asked for again, because the answer was lost
            return connection.execute(change).rowcount

        if await self.context.database.write(work) == 0:
            raise LeaseLost(
                f"attempt {attempt} of run {run_id} is no longer this worker's: nothing was called"
            )

    async def known_callback(self, run_id: int, digest: str) -> KnownCallback | None:
        """What the token with that digest is for."""
        query = select(callbacks).where(callbacks.c.run_id == run_id)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        # In Python and to the last row: how long it takes tells nothing about a digest.
        same = [row for row in rows if hmac.compare_digest(row.digest, digest)]
        return KnownCallback(run_id, same[0].attempt, bool(same[0].signed)) if same else None

    async def answer(self, known: KnownCallback, ended: Ended) -> Answered:
        """The service says how the attempt ended; the first answer counts, unless the attempt is over."""
        answered = await self.context.database.write(
            lambda connection: self._answer(connection, known, ended)
        )
        if answered.status is not None:
            self._wake({answered.status})
        return answered

    def _answer(self, connection: Connection, known: KnownCallback, ended: Ended) -> Answered:
        run_id, attempt = known.run_id, known.attempt
        query = select(*_JUDGED_BY).where(runs.c.id == run_id).with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            return Answered(Fate.LATE)
        now = self.context.now(connection)
        status = RunStatus(row.status)
        mine = (callbacks.c.run_id == run_id, callbacks.c.attempt == attempt)
        waits = status is RunStatus.WAITING
        if row.attempt == attempt and (waits or status is RunStatus.RUNNING):
            use = update(callbacks).where(*mine, callbacks.c.used_at.is_(None))
            text = None if waits else outcome_text(ended)
            if connection.execute(use.values(used_at=now, outcome=text)).rowcount == 0:
                return Answered(Fate.REPEATED, status)
            (concluded,) = self._conclude(connection, [(row, ended)], now, write=waits)
            if waits:
                return Answered(Fate.APPLIED, concluded.status, concluded)
            return Answered(Fate.KEPT, status, concluded)
        used = connection.execute(select(callbacks.c.used_at).where(*mine)).scalar_one_or_none()
        if used is not None:
            return Answered(Fate.REPEATED, status)
        late = (attempts.c.run_id == run_id, attempts.c.attempt == attempt, attempts.c.late_at.is_(None))
        connection.execute(update(attempts).where(*late).values(late_end=ended.end, late_at=now))
        return Answered(Fate.LATE, status)

    async def expire(self, limit: int = 100) -> list[Concluded]:
        """End the waiting of runs whose callback did not come in time, by the database's clock."""
        ids = await self.context.database.read(lambda connection: self._callbacks_due(connection, limit))
        again = self.context.set_aside.due(PLACE)
        if not ids and not again:
            return []
        try:
            expired = await self.context.database.write(lambda connection: self._expire(connection, ids))
        except Exception as error:
            if not is_about_a_row(error):
                raise
            expired, again = [], [*ids, *again]
        if again:
            each = await self.context.set_aside.one_by_one(
                self.context.write_aloud,
                PLACE,
                again,
                "run",
                lambda connection, run_id: self._expire(connection, [run_id]),
            )
            expired += [one for some in each for one in some]
        self._wake({one.status for one in expired})
        return expired

    def _callbacks_due(self, connection: Connection, limit: int) -> Sequence[int]:
        """Looked for without a lock: an answer locks the run and then its callback, and so must we."""
        this = and_(runs.c.id == callbacks.c.run_id, runs.c.attempt == callbacks.c.attempt)
        due = (callbacks.c.deadline <= self.context.now(connection), runs.c.status == RunStatus.WAITING)
        query = select(callbacks.c.run_id).join(runs, this).where(*due)
        if aside := self.context.set_aside.keys(PLACE):
            query = query.where(callbacks.c.run_id.not_in(aside))
        return connection.execute(query.order_by(callbacks.c.deadline).limit(limit)).scalars().all()

    def _expire(self, connection: Connection, ids: Sequence[int]) -> list[Concluded]:
        now = self.context.now(connection)
        waiting = select(*_JUDGED_BY).where(runs.c.id.in_(ids), runs.c.status == RunStatus.WAITING)
        waiting = waiting.order_by(runs.c.id)
        skip_locked = self.context.database.capabilities.skip_locked
        rows = connection.execute(waiting.with_for_update(skip_locked=skip_locked)).all()
        # Asked again: meanwhile one may have been answered and tried again, and wait under a new token.
        mine = (callbacks.c.run_id.in_([row.id for row in rows]), callbacks.c.deadline <= now)
        still = connection.execute(select(callbacks).where(*mine)).all()
        allowed = {(row.run_id, row.attempt): row.timeout for row in still}
        late = [row for row in rows if (row.id, row.attempt) in allowed]
        return self._conclude(connection, [(r, _unanswered(allowed[r.id, r.attempt])) for r in late], now)

    def _conclude(
        self, connection: Connection, ends: Sequence[tuple[Any, Ended]], now: int, *, write: bool = True
    ) -> list[Concluded]:
        """Judge these ends of runs that are locked, by the runs' own policies; and write that down."""
        rows = [row for row, _ in ends]
        policies = self.retry_policies.policies(connection, rows)
        handlers = self.retry_policies.handlers(connection, {row.lane_id for row in rows})
        owned = []
        for row, ended in ends:
            # What the service answered to the call itself stays with the attempt.
            ended = replace(ended, output=row.output)
            verdict = decide(ended, policies[row.id], row.spent, random.random())
            owned.append((Settlement(row.id, row.attempt, ended, verdict, ticket=True), row))
        if write:
            statuses = self.outcomes.apply_verdicts(connection, owned, now)
            if RunStatus.DELAYED in statuses:
                self.context.notify(connection, DELAYED)
        return [
            Concluded(
                row.id,
                row.attempt,
                handlers[row.lane_id],
                settlement.ended.end,
                settlement.verdict.status,
                (now - row.started_at) / 1_000_000,
                settlement.ended.error,
                _belongs(row, self.outcomes.owners.run_kind(row.kind)),
            )
            for settlement, row in owned
        ]

    def _wake(self, statuses: set[RunStatus]) -> None:
        if RunStatus.DELAYED in statuses:
            self.context.wakes.fire(DELAYED)
        if statuses & TERMINAL:
            self.context.wakes.fire(ENDED)


def _belongs(row: Any, kind: RunKind | None) -> dict[str, Any]:
    try:
        return log_fields_of(kind, row.owner_id, decode(row.options) or {}, {})
    except (ValueError, AttributeError):  # reported where the policy is read
        return {}


def _unanswered(timeout_us: int) -> Ended:
    error = f"no callback came within {timeout_us / 1_000_000:g} s of the call"
    return Ended(End.TIMED_OUT, error=error, effect=Effect.UNKNOWN)
