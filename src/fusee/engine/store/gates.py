"""Runs that wait for others: counted down as those end, let go or skipped when their gate is decided.

One row a run and one count for each upstream that ended: whatever the shape of the graph, the cost is the
number of its edges. Many ends at once are counted in one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from fusee.engine.model.gate import GateState, TriggerRule, judge
from fusee.engine.model.outcome import Effect
from fusee.engine.model.states import RunStatus
from fusee.engine.owners import Owners
from fusee.engine.store.context import StoreContext
from fusee.engine.store.outbox import Outbox
from fusee.engine.store.ready_queue import QueueEntry, ReadyQueue
from fusee.engine.store.tables import LONGEST_REASON, gates, runs
from fusee.values.chunks import chunks

__all__ = ["Counted", "Gates"]


@dataclass(slots=True)
class Counted:
    """How many of a run's upstreams ended just now."""

    succeeded: int = 0
    ended: int = 0
    culprit: str = "an upstream"
    """One that did not succeed, to name it in the reason."""

    def add(self, name: str, success: bool) -> None:
        self.ended += 1
        self.succeeded += success
        if not success:
            self.culprit = name


class Gates:
    def __init__(
        self, context: StoreContext, owners: Owners, ready_queue: ReadyQueue, outbox: Outbox
    ) -> None:
        self.context = context
        self.owners = owners
        self.ready_queue = ready_queue
        self.outbox = outbox

    def build_gates(self, connection: Connection, rule: TriggerRule, needs: Mapping[int, int]) -> None:
        """A gate for each of these blocked runs: so many upstreams have to end first."""
        rows = [
            {"run_id": run_id, "rule": rule, "needs": count, "succeeded": 0, "ended": 0}
            for run_id, count in needs.items()
        ]
        for part in chunks(rows):
            connection.execute(insert(gates), part)

    def count_down(
        self,
        connection: Connection,
        counted: Mapping[int, Counted],
        now: int,
        *,
        tell: bool = True,
        may_start: Callable[[Connection, Sequence[int]], Sequence[int]] = lambda _, ids: ids,
    ) -> list[int]:
        """Upstreams of these runs ended: let go of those whose gate opens, skip those whose never will.

        Returns the skipped ones; without `tell` the caller informs their owners. Of those whose
        gate opens, `may_start` returns the runs that start; the caller keeps the others.
        """
        open_ids: list[int] = []
        shut: dict[int, str] = {}
        ids = sorted(counted)
        for part in chunks(ids):
            # In order, so that two aggregators that meet at a gate never wait for each other in a cycle.
            query = select(gates).where(gates.c.run_id.in_(part)).order_by(gates.c.run_id).with_for_update()
            standing: dict[tuple[int, int], list[int]] = {}
            for row in connection.execute(query).all():
                count = counted[row.run_id]
                succeeded, ended = row.succeeded + count.succeeded, row.ended + count.ended
                rule = TriggerRule.as_stored(row.rule)
                match judge(rule, row.needs, succeeded, ended):
                    case GateState.OPEN:
                        open_ids.append(row.run_id)
                    case GateState.SHUT:
                        shut[row.run_id] = f"trigger_rule {rule}: {count.culprit} did not succeed"
                    case GateState.WAIT:
                        standing.setdefault((succeeded, ended), []).append(row.run_id)
            for (succeeded, ended), same in standing.items():
                stay = update(gates).where(gates.c.run_id.in_(same))
                connection.execute(stay.values(succeeded=succeeded, ended=ended))
        self.release(connection, may_start(connection, open_ids) if open_ids else (), now)
        shut_out = self.skip(connection, shut, now, tell=tell)
        self.forget_gates(connection, [*open_ids, *shut])
        return shut_out

    def release(
        self, connection: Connection, run_ids: Sequence[int], now: int, start: int | None = None
    ) -> list[int]:
        """Blocked runs become pending, or delayed until `start` or else their own time; returns those that
        did (someone may have canceled one)."""
        let_go: list[int] = []
        hints: set[str] = set()
        for part in chunks(run_ids):
            blocked = (runs.c.id.in_(part), runs.c.status == RunStatus.BLOCKED)
            known = select(runs.c.id, runs.c.lane_id, runs.c.priority, runs.c.due_at).where(*blocked)
            by_due: dict[int, list[Any]] = {}
            for row in connection.execute(known.order_by(runs.c.id).with_for_update()).all():
                by_due.setdefault(max(now, row.due_at if start is None else start), []).append(row)
            for due, rows in by_due.items():
                hints |= self._release_until(connection, rows, now, due)
                freed = [row.id for row in rows]
                for owner in self.owners:
                    owner.runs_released(connection, freed, now)
                let_go += freed
        for hint in sorted(hints):
            self.context.notify(connection, hint)
        return let_go

    def _release_until(self, connection: Connection, rows: Sequence[Any], now: int, due: int) -> set[str]:
        """These runs become pending, or delayed when they are due later; returns the wake-ups to send."""
        ids = [row.id for row in rows]
        status = RunStatus.PENDING if due <= now else RunStatus.DELAYED
        freed = {"status": status, "rare": None, "due_at": due, "reason": None}
        connection.execute(update(runs).where(runs.c.id.in_(ids)).values(freed))
        entries = [QueueEntry(row.id, row.lane_id, row.priority, due, status) for row in rows]
        return self.ready_queue.add(connection, entries)

    def skip(
        self,
        connection: Connection,
        reasons: Mapping[int, str],
        now: int,
        *,
        tell: bool = True,
        code: str = "upstream",
    ) -> list[int]:
        """Blocked runs that will never run: skipped, with the reason; their owners are informed.

        Returns those that were skipped (someone may have canceled one).
        """
        ids = sorted(reasons)
        shut_out: list[int] = []
        for part in chunks(ids):
            blocked = (runs.c.id.in_(part), runs.c.status == RunStatus.BLOCKED)
            query = select(runs.c.id, runs.c.kind).where(*blocked).order_by(runs.c.id).with_for_update()
            rows = connection.execute(query).all()
            by_reason: dict[str, list[int]] = {}
            for row in rows:
                by_reason.setdefault(reasons[row.id][:LONGEST_REASON], []).append(row.id)
            for reason, same in by_reason.items():
                skipped = {"status": RunStatus.SKIPPED, "rare": RunStatus.SKIPPED, "effect": Effect.NONE}
                change = update(runs).where(runs.c.id.in_(same))
                connection.execute(change.values(finished_at=now, reason=reason, **skipped))
                for owner in self.owners:
                    owner.runs_skipped(connection, same, code, reason)
            if tell:
                self.outbox.add_ends(connection, [(row.kind, row.id) for row in rows if row.kind is not None])
            shut_out += [row.id for row in rows]
        return shut_out

    def set_due(self, connection: Connection, run_ids: Sequence[int], due_at: int) -> None:
        """Blocked runs are due at that time when their gate opens."""
        blocked = (runs.c.id.in_(run_ids), runs.c.status == RunStatus.BLOCKED)
        connection.execute(update(runs).where(*blocked).values(due_at=due_at))

    def set_attempt(self, connection: Connection, run_ids: Sequence[int], attempt: int) -> None:
        """Set the number of attempts that are counted before the first one of these blocked runs."""
        blocked = (runs.c.id.in_(run_ids), runs.c.status == RunStatus.BLOCKED)
        connection.execute(update(runs).where(*blocked).values(attempt=attempt))

    def forget_gates(self, connection: Connection, run_ids: Iterable[int]) -> None:
        ids = list(run_ids)
        for part in chunks(ids):
            for owner in self.owners:
                owner.gates_forgotten(connection, part)
            connection.execute(delete(gates).where(gates.c.run_id.in_(part)))
