"""Worker sessions: one row each, renewed as a whole; the database's clock decides when one is dead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, select, update

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.session import Session, WorkerInfo
from fusee.engine.model.states import SessionState, sessions_that_can
from fusee.engine.store.context import StoreContext
from fusee.engine.store.own_lanes import OwnLanes
from fusee.engine.store.rows import decode, encode
from fusee.engine.store.tables import assigned, sessions
from fusee.engine.store.wakes import DRAIN, PENDING
from fusee.errors import LeaseLost, NotFound

__all__ = ["Sessions", "session_from", "sessions_with_load"]

SESSION = "worker session"
"""What a row of this table is called when it cannot be read."""
LIVE = sessions_that_can("lose")
"""Those that hold a lease."""


LONGEST_ANSWER = 10.0


def answered_within(ttl: float) -> float:
    """Seconds for a statement that holds the lease: when one is not answered, there is time for another, on
    another connection, before the lease is over. A long lease is no reason to wait longer for it."""
    return min(max(1.0, ttl / 6), LONGEST_ANSWER)


class Sessions:
    def __init__(self, context: StoreContext, own_lanes: OwnLanes) -> None:
        self.context = context
        self.own_lanes = own_lanes

    async def open_session(self, info: WorkerInfo, ttl: float) -> int:
        """Begin a session; its lease runs from now, by the database's clock."""

        return await self.context.database.write(
            lambda connection: self.insert_session(connection, info, ttl), within=answered_within(ttl)
        )

    def insert_session(self, connection: Connection, info: WorkerInfo, ttl: float) -> int:
        now = self.context.now(connection)
        added = connection.execute(
            insert(sessions).values(
                namespace=self.context.namespace,
                worker=info.name,
                host=info.host,
                pid=info.pid,
                version=info.version,
                state=SessionState.ALIVE,
                capacity=info.capacity,
                address=info.address or None,
                cpu=info.cpu,
                memory=info.memory,
                abilities=encode(
                    {
                        "executors": info.executors,
                        "handlers": info.handlers,
                        "queues": info.queues,
                        "region": info.region,
                        "labels": info.labels,
                        "given": info.takes_assigned,
                        "policies": {name: policy.to_dict() for name, policy in info.policies.items()},
                        "defaults": info.defaults,
                        "checks": list(info.checks),
                        "broker": info.broker,
                    },
                    "abilities",
                ),
                started_at=now,
                seen_at=now,
                expires_at=now + round(ttl * 1_000_000),
            )
        )
        key = added.inserted_primary_key
        assert key is not None
        return int(key[0])

    async def renew(self, session: int, ttl: float, running: int) -> None:
        """Prolong the lease; `LeaseLost` when a dispatcher has taken the session."""
        await self._change(session, LIVE, ttl=ttl, running=running)

    async def drain_session(self, session: int) -> None:
        """Stop claiming; the lease continues."""
        await self._change(session, LIVE, state=SessionState.DRAINING)  # asked twice, it drains all the same

    async def ask_to_drain(self, name: str) -> list[Session]:
        """Have every live worker of that name leave; claims of theirs find nothing from now on.

        The worker sees it at its next look and goes as with SIGTERM. What it had asked for stays asked for:
        should it lose its lease meanwhile, its next session heeds it too.
        """
        mine = (sessions.c.namespace == self.context.namespace, sessions.c.worker == name)

        def work(connection: Connection) -> None:
            now = self.context.now(connection)
            asked = update(sessions).where(*mine, sessions.c.state.in_(LIVE))
            connection.execute(
                asked.values(
                    state=SessionState.DRAINING, drain_asked_at=func.coalesce(sessions.c.drain_asked_at, now)
                )
            )
            self.context.notify(connection, DRAIN)

        await self.context.database.write(work)
        self.context.wakes.fire(DRAIN)
        live = [session for session in await self.sessions() if session.info.name == name]
        if not live:
            raise NotFound(
                f"no worker {name!r} is alive in namespace {self.context.namespace!r}:"
                " `fusee workers` lists them"
            )
        return live

    async def drain_asked(self, session_ids: Sequence[int]) -> bool:
        """Whether someone asked one of these sessions, all of one process, to leave."""
        query = select(sessions.c.id).where(
            sessions.c.id.in_(session_ids), sessions.c.drain_asked_at.is_not(None)
        )
        found = await self.context.database.read(
            lambda connection: connection.execute(query.limit(1)).one_or_none()
        )
        return found is not None

    async def end_session(self, session: int) -> None:
        """Say goodbye; whatever it still owned is returned by the next recovery."""
        await self._change(session, sessions_that_can("end"), state=SessionState.ENDED)

    async def _change(
        self,
        session: int,
        allowed: Sequence[SessionState],
        *,
        ttl: float | None = None,
        running: int | None = None,
        state: SessionState | None = None,
    ) -> None:
        now = self.context.database.now
        values: dict[str, Any] = {"seen_at": now}
        if ttl is not None:
            values["expires_at"] = now + round(ttl * 1_000_000)
        if running is not None:
            values["running"] = running
        if state is not None:
            values["state"] = state
        if state is SessionState.ENDED:
            values |= {"ended_at": now, "running": 0}
        change = (
            update(sessions).where(sessions.c.id == session, sessions.c.state.in_(allowed)).values(values)
        )

        def work(connection: Connection) -> tuple[int, int]:
            changed = connection.execute(change).rowcount
            # A session that claims nothing more returns its assigned runs at once.
            return changed, self.own_lanes.return_all(connection, session) if state is not None else 0

        within = None if ttl is None else answered_within(ttl)
        changed, returned = await self.context.database.write(work, within=within)
        if returned:
            self.context.wakes.fire(PENDING)
        if changed == 0:
            raise LeaseLost(f"session {session} is over: its lease expired, or it had ended")

    async def known_handlers(self) -> frozenset[str]:
        """Every handler that a worker of this namespace has had, as far as its sessions are kept."""
        query = (
            select(func.max(sessions.c.id).label("id"), sessions.c.abilities)
            .where(sessions.c.namespace == self.context.namespace)
            .group_by(sessions.c.abilities)
            .limit(1000)
        )
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        read = self.context.set_aside.readable("sessions", SESSION, rows, _abilities)
        return frozenset(handler for abilities in read for handler in abilities["handlers"])

    async def newest_with(self, handler: str) -> Mapping[str, Any]:
        """What the newest worker that has this handler, live or not, said about its abilities."""
        query = (
            select(sessions.c.id, sessions.c.abilities)
            .where(sessions.c.namespace == self.context.namespace)
            .order_by(sessions.c.id.desc())
            .limit(1000)
        )
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        for abilities in self.context.set_aside.readable("sessions", SESSION, rows, _abilities):
            if handler in abilities["handlers"]:
                return abilities
        return {}

    async def sessions(self, *, all_states: bool = False) -> list[Session]:
        """The workers of this namespace, live ones unless all are asked for; newest first."""
        mine = sessions.c.namespace == self.context.namespace
        query = sessions_with_load().where(mine).order_by(sessions.c.id.desc())
        query = query.limit(1000) if all_states else query.where(sessions.c.state.in_(LIVE))
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return self.context.set_aside.readable("sessions", SESSION, rows, session_from)

    async def fed_sessions(self, broker: str) -> list[Session]:
        """The live workers of all namespaces that this broker brings runs to."""
        query = sessions_with_load().where(sessions.c.state == SessionState.ALIVE)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        read = self.context.set_aside.readable("sessions", SESSION, rows, session_from)
        return [session for session in read if session.info.broker == broker]


def sessions_with_load() -> Select[Any]:
    """Sessions, each with what strategies gave to it."""
    given = (
        select(
            assigned.c.session_id,
            func.count().label("many"),
            func.sum(assigned.c.cpu).label("cpu_taken"),
            func.sum(assigned.c.memory).label("memory_taken"),
        )
        .group_by(assigned.c.session_id)
        .subquery()
    )
    return select(sessions, given.c.many, given.c.cpu_taken, given.c.memory_taken).outerjoin(
        given, given.c.session_id == sessions.c.id
    )


def _abilities(row: Any) -> dict[str, Any]:
    abilities: dict[str, Any] = decode(row.abilities)
    if not {"executors", "handlers", "queues", "region", "labels", "policies"} <= abilities.keys():
        raise ValueError("abilities are incomplete")
    return abilities


def session_from(row: Row[Any]) -> Session:
    abilities = _abilities(row)
    return Session(
        id=row.id,
        namespace=row.namespace,
        info=WorkerInfo(
            name=row.worker,
            host=row.host,
            pid=row.pid,
            version=row.version,
            capacity=row.capacity,
            executors=tuple(abilities["executors"]),
            handlers=tuple(abilities["handlers"]),
            queues=tuple(abilities["queues"]),
            region=abilities["region"],
            labels=abilities["labels"],
            takes_assigned=abilities.get("given", False),
            address=row.address or "",
            cpu=row.cpu,
            memory=row.memory,
            policies={name: RetryPolicy.as_stored(policy) for name, policy in abilities["policies"].items()},
            defaults=abilities.get("defaults", {}),
            checks=tuple(abilities.get("checks", ())),
            broker=abilities.get("broker", "database"),
        ),
        state=SessionState(row.state),
        running=row.running,
        started_at=row.started_at,
        seen_at=row.seen_at,
        expires_at=row.expires_at,
        ended_at=row.ended_at,
        drain_asked_at=row.drain_asked_at,
        assigned=row.many or 0,
        cpu_taken=float(row.cpu_taken or 0),
        memory_taken=int(row.memory_taken or 0),
    )
