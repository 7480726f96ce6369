"""Runs that an outside service will end: when the waiting begins, and what leaves it.

The row of the run is locked first, then that of its callback: whoever comes second sees what the first wrote.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, delete, select, update

from fusee.engine.model.outcome import Effect, End, Ended, decide
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.contract import Settlement
from fusee.engine.store.retry_policies import RetryPolicies
from fusee.engine.store.tables import callbacks, runs, tickets

__all__ = ["CallbackWaits", "leave_waiting", "outcome_text"]

Owned = tuple[Settlement, Any]
"""A verdict, and the row of its run, which is locked."""

_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder(Ended).decode


def outcome_text(ended: Ended) -> str:
    """What a service said, to be kept until the worker has said that its call was accepted."""
    return _encoder.encode(ended).decode()


class CallbackWaits:
    def __init__(self, context: StoreContext, retry_policies: RetryPolicies) -> None:
        self.context = context
        self.retry_policies = retry_policies

    def heed_answers(self, connection: Connection, owned: Sequence[Owned]) -> list[Owned]:
        """A service may be faster than the worker that called it, or its answer to the call got lost.

        Then what it said of the attempt counts, whatever became of the call: it was told that we took it.
        """
        asked = [settlement.run_id for settlement, row in owned if _may_be_answered(settlement, row)]
        if not asked:
            return list(owned)
        query = select(callbacks.c.run_id, callbacks.c.attempt, callbacks.c.outcome).where(
            callbacks.c.run_id.in_(asked), callbacks.c.outcome.is_not(None)
        )
        said = {(row.run_id, row.attempt): row.outcome for row in connection.execute(query)}
        if not said:
            return list(owned)
        ids = [run_id for run_id, _ in said]
        known = select(runs.c.id, runs.c.lane_id, runs.c.session_id, runs.c.spent, runs.c.options)
        rows = {row.id: row for row in connection.execute(known.where(runs.c.id.in_(ids)))}
        policies = self.retry_policies.policies(connection, list(rows.values()))
        heeded: list[Owned] = []
        for settlement, row in owned:
            outcome = said.get((settlement.run_id, settlement.attempt))
            if outcome is not None:
                ended = replace(_decode(outcome), output=settlement.ended.output)
                verdict = decide(ended, policies[row.id], rows[row.id].spent, random.random())
                settlement = replace(settlement, ended=ended, verdict=verdict)
            heeded.append((settlement, row))
        connection.execute(update(callbacks).where(callbacks.c.run_id.in_(ids)).values(outcome=None))
        return heeded

    def begin(self, connection: Connection, attempts: Mapping[int, int], now: int) -> None:
        """These runs wait from now on, at this attempt; one without a callback has no deadline either."""
        if attempts:
            mine = (callbacks.c.run_id == bindparam("b_run"), callbacks.c.attempt == bindparam("b_attempt"))
            connection.execute(
                update(callbacks).where(*mine).values(deadline=callbacks.c.timeout + now),
                [{"b_run": run_id, "b_attempt": attempt} for run_id, attempt in attempts.items()],
            )


def _may_be_answered(settlement: Settlement, row: Any) -> bool:
    """Whether a callback may have come before the worker's word: not for what never left it, or succeeded."""
    ended = settlement.ended
    untouched = ended.end is End.RETURNED and ended.effect is Effect.NONE
    return row.status == RunStatus.RUNNING and ended.end is not End.SUCCEEDED and not untouched


def leave_waiting(connection: Connection, run_ids: Sequence[int]) -> None:
    """These wait no more: no deadline is theirs, and their place in a queue with limits is free."""
    if run_ids:
        due = (callbacks.c.run_id.in_(run_ids), callbacks.c.deadline.is_not(None))
        connection.execute(update(callbacks).where(*due).values(deadline=None))
        connection.execute(delete(tickets).where(tickets.c.run_id.in_(run_ids)))
