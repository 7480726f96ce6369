"""Assigning runs to workers by a strategy: entries move from their home lane to workers' lanes, in batches.

One dispatcher at a time does this, so that a worker's free capacity is counted once. Where nothing asks for a
strategy, a pass is three reads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from sqlalchemy import Connection, and_, or_, select

from fusee.engine.model.queue import Need, Strategy
from fusee.engine.model.run import Lane
from fusee.engine.model.states import RunStatus, SessionState
from fusee.engine.store.context import StoreContext
from fusee.engine.store.edit_lock import EditLock
from fusee.engine.store.lanes import Lanes, lane_from
from fusee.engine.store.own_lanes import Assignment, OwnLanes, entries_in, homes, own_lane, own_lanes
from fusee.engine.store.ready_queue import ReadyQueue
from fusee.engine.store.rows import decode
from fusee.engine.store.sessions import SESSION, session_from, sessions_with_load
from fusee.engine.store.tables import assigned, lanes, queues, ready, runs, sessions
from fusee.engine.store.wakes import PENDING
from fusee.events import Bus, RunsAssigned
from fusee.placement.broadcasts import Broadcasts
from fusee.placement.placing import Candidate, Chooser
from fusee.service import Service
from fusee.values.chunks import chunks

__all__ = ["Assign", "Assigned", "Assignments"]

WINDOW = 1000
"""Entries of a lane looked at in one pass; none beyond them is passed over for long."""
RECALL_AFTER = 10_000_000
"""Microseconds after which what a worker has not taken is taken back, and chosen for anew."""
LIFTED_AFTER = 200_000
"""The same when no strategy is asked for any more."""
_TURN = "assign"


@dataclass(frozen=True, slots=True)
class Assigned:
    """What one pass did."""

    placed: int = 0
    returned: int = 0
    in_use: bool = False
    """Some lane asks for a strategy."""
    busy: bool = False
    """Another dispatcher is at it."""

    def __bool__(self) -> bool:
        return bool(self.placed or self.returned)


@dataclass(frozen=True, slots=True)
class PlacedLane:
    id: int
    lane: Lane
    strategy: Strategy
    turn: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run says about the worker it wants."""

    need: Need
    key: str
    target: str | None
    apart: frozenset[int] = frozenset()
    """Sessions that should not get it while others have room."""

    @classmethod
    def of(cls, row: Any) -> Asked:
        options = decode(row.options) or {}
        task = options.get("task")
        own = f"{task}#{options.get('shard_index', 0)}" if task else row.payload or ""
        need = Need(options.get("cpu", 0.0), options.get("memory", 0))
        apart = frozenset(options.get("apart", ()))
        return cls(need, options.get("hash_key") or own, options.get("worker"), apart)


class Assignments:
    def __init__(
        self,
        context: StoreContext,
        ready_queue: ReadyQueue,
        lanes: Lanes,
        own_lanes: OwnLanes,
        edit_lock: EditLock,
        broadcasts: Broadcasts,
    ) -> None:
        self.context = context
        self.ready_queue = ready_queue
        self.lanes = lanes
        self.edit_lock = edit_lock
        self.own_lanes = own_lanes
        self.broadcasts = broadcasts

    async def assign(self, region: str = "") -> Assigned:
        """Return runs that lost their worker, and assign pending runs to workers, in all namespaces; with a
        region, only runs that may run there."""
        if not await self.context.database.read(self._anything_placed):
            return Assigned()
        did = await self.context.database.write(lambda connection: self._assign(connection, region))
        if did:
            self.context.wakes.fire(PENDING)
        return did

    def _anything_placed(self, connection: Connection) -> bool:
        in_lane = select(ready.c.lane_id).where(ready.c.lane_id < 0).order_by(ready.c.lane_id).limit(1)
        given = select(assigned.c.run_id).limit(1)
        return bool(
            self._placed_lanes(connection)
            or connection.execute(in_lane).one_or_none()
            or connection.execute(given).one_or_none()
        )

    def _assign(self, connection: Connection, region: str) -> Assigned:
        # Another dispatcher may be at it: the same run must not be assigned twice.
        if not self.edit_lock.try_turn(connection, _TURN):
            return Assigned(in_use=True, busy=True)
        now = self.context.now(connection)
        returned = self.own_lanes.return_orphans(connection) + self._tidy(connection, now)
        wanted = self._placed_lanes(connection)
        if region:
            wanted = [one for one in wanted if one.lane.region in ("", region)]
        placed = 0
        if wanted:
            by_namespace = self._candidates(connection)
            for one in wanted:
                placed += self._place(connection, one, by_namespace.get(one.lane.namespace, []), now)
        if placed or returned:
            self.context.notify(connection, PENDING)
        return Assigned(placed, returned, in_use=bool(wanted))

    def _placed_lanes(self, connection: Connection) -> list[PlacedLane]:
        """The lanes whose runs are assigned to workers, by their own strategy or by their queue's."""
        asks = or_(queues.c.strategy.is_not(None), lanes.c.region.like("%!%"))
        found = []
        for row in connection.execute(_LANES.where(asks).order_by(lanes.c.id)):
            lane, strategy = _strategy(row)
            # One that a newer version knows, or of a queue that is paused, stays where it is.
            if strategy in tuple(Strategy) and strategy != Strategy.SHARED and not row.paused:
                found.append(PlacedLane(row.id, lane, Strategy(strategy), row.turn))
        return found

    def _asking_for_none(self, connection: Connection, lane_ids: Collection[int]) -> set[int]:
        """Those of these lanes that ask for no strategy."""
        rows = connection.execute(_LANES.where(lanes.c.id.in_(lane_ids))) if lane_ids else ()
        return {row.id for row in rows if _strategy(row)[1] == Strategy.SHARED}

    def _tidy(self, connection: Connection, now: int) -> int:
        """Forget runs that have ended or moved on. Return runs that a worker has not claimed for long, or for
        a while when nobody asks for a strategy any more: a worker of an older version never looks."""
        given = connection.execute(select(assigned)).all()
        if not given:
            return 0
        # Each by its key, and no join: with stale statistics PostgreSQL would read all runs there ever were.
        lane_ids = sorted({own_lane(row.session_id) for row in given})
        waits = {(row.lane_id, row.run_id) for row in entries_in(connection, lane_ids)}
        holder: dict[int, int] = {}
        on_its_way: set[int] = set()
        for part in chunks([row.run_id for row in given]):
            held = (runs.c.id.in_(part), runs.c.status.in_((RunStatus.RUNNING, RunStatus.DISPATCHED)))
            for row in connection.execute(select(runs.c.id, runs.c.status, runs.c.session_id).where(*held)):
                if row.status == RunStatus.RUNNING:
                    holder[row.id] = row.session_id
                else:
                    on_its_way.add(row.id)  # to that worker, by message
        over: list[int] = []
        late: dict[int, list[int]] = {}
        lying = [row.run_id for row in given if row.assigned_at < now - LIFTED_AFTER]
        at_home = homes(connection, lying)
        shared = self._asking_for_none(connection, set(at_home.values()))
        for row in given:
            if (own_lane(row.session_id), row.run_id) in waits:
                lifted = at_home.get(row.run_id) in shared
                if lifted or row.assigned_at < now - RECALL_AFTER:
                    late.setdefault(row.session_id, []).append(row.run_id)
            elif row.run_id not in on_its_way and holder.get(row.run_id) != row.session_id:
                over.append(row.run_id)
        back = 0
        for session, ids in late.items():
            for part in chunks(ids):
                back += self.own_lanes.return_some(
                    connection, ready.c.lane_id == own_lane(session), ready.c.run_id.in_(part)
                )
            over += ids
        self.own_lanes.forget(connection, over)
        return back

    def _candidates(self, connection: Connection) -> Mapping[str, list[Candidate]]:
        """The workers that are alive, by namespace."""
        waiting = Counter(row.lane_id for row in entries_in(connection, own_lanes(connection)))
        found: dict[str, list[Candidate]] = {}
        query = sessions_with_load().where(sessions.c.state == SessionState.ALIVE).order_by(sessions.c.id)
        for session in self.context.set_aside.readable(
            "sessions", SESSION, connection.execute(query), session_from
        ):
            if not session.info.takes_assigned:
                continue  # it would never look
            candidate = Candidate.of(session, waiting[own_lane(session.id)])
            found.setdefault(session.namespace, []).append(candidate)
        return found

    def _place(
        self, connection: Connection, one: PlacedLane, candidates: Sequence[Candidate], now: int
    ) -> int:
        chooser = Chooser(one.strategy, one.lane, candidates, one.turn)
        if not chooser and one.strategy is not Strategy.BROADCAST:
            return 0
        entries = self.ready_queue.lock_first(connection, one.id, WINDOW)
        known = self._known(connection, [row.run_id for row in entries])
        chosen: list[Assignment] = []
        made = 0
        for entry in entries:
            run = known.get(entry.run_id)
            if run is None:
                continue
            # What a run that cannot be read asks for is unknown: it waits where it is.
            if not (read := self.context.set_aside.readable("assign", "run", [run], Asked.of)):
                continue
            (asked,) = read
            if one.strategy is Strategy.BROADCAST and self.broadcasts.spreads(run.kind):
                if asked.target is None:
                    made += self.broadcasts.spread(connection, run, chooser.everyone(asked.need), now)
                    continue
                worker = chooser.pinned(asked.target, asked.need)
                if worker is None and asked.target not in chooser.by_name:
                    made += self.broadcasts.give_up_if_left(connection, entry, run, asked.target, now)
            else:
                worker = chooser.choose(asked.need, asked.key, asked.apart)
            if worker is not None:
                chosen.append(Assignment(entry, worker.session, asked.need.cpu, asked.need.memory))
        self.own_lanes.assign(connection, chosen, now)
        if chooser.turn != one.turn:
            self.lanes.set_turn(connection, one.id, chooser.turn)
        return len(chosen) + made

    def _known(self, connection: Connection, run_ids: Sequence[int]) -> dict[int, Any]:
        """The runs that are pending. One that is not, and still has its entry, is left to what ends it."""
        found: dict[int, Any] = {}
        for part in chunks(run_ids):
            query = select(runs).where(runs.c.id.in_(part), runs.c.status == RunStatus.PENDING)
            found |= {row.id: row for row in connection.execute(query)}
        return found


_LANES = select(lanes, queues.c.strategy, queues.c.paused).outerjoin(
    queues, and_(queues.c.namespace == lanes.c.namespace, queues.c.name == lanes.c.queue)
)


def _strategy(row: Any) -> tuple[Lane, str]:
    """A lane, and what it asks for, by its own wish or by its queue's."""
    lane = lane_from(row)
    return lane, lane.strategy or row.strategy or Strategy.SHARED


GATHER = 0.02
"""Seconds between two passes at least: in a stream of runs each takes many."""
LOOK_AGAIN = 0.05
"""While strategies are in use: workers take what they were given without telling us."""


class Assign(Service):
    """Hints wake it only while something asks for a strategy; else it looks once an interval."""

    def __init__(self, store: Assignments, bus: Bus, interval: float = 1.0, *, region: str = "") -> None:
        super().__init__("assign", interval, bus)
        self.store = store
        self.region = region
        self.in_use = False
        self._last = 0.0

    def hint(self) -> None:
        """A run became ready."""
        if self.in_use:
            self.wake()

    async def run_once(self) -> Assigned:
        await asyncio.sleep(max(0.0, self._last + GATHER - monotonic()))
        did = await self.store.assign(self.region)
        self._last = monotonic()
        self.in_use = did.in_use
        self.pause = LOOK_AGAIN if did.in_use else None
        if did:
            self.bus.emit(RunsAssigned(placed=did.placed, returned=did.returned))
        return did
