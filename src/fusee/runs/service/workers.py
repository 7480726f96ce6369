"""The registry of workers: who is there, what each can do, and how one is asked to leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusee.engine.model.session import Session
from fusee.engine.model.states import SessionState
from fusee.engine.store.engine_store import EngineStore
from fusee.errors import Invalid, NotFound
from fusee.values.names import check_name

__all__ = ["WORKER_STATES", "WorkerFilter", "WorkerOperations"]

DOWN = "down"
WORKER_STATES = (*(str(state) for state in SessionState), DOWN)
"""Those of a session; `down` is ended or lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFilter:
    """Which workers to list; the live ones unless a state is named."""

    state: str | None = None
    name: str | None = None
    queue: str | None = None
    handler: str | None = None
    region: str | None = None
    """Empty: those that have none."""
    version: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in WORKER_STATES:
            raise Invalid(
                f"state must be one of {', '.join(WORKER_STATES)}, not {self.state!r:.40}", field="state"
            )

    def fits(self, session: Session) -> bool:
        info = session.info
        return (
            self._state_fits(session)
            and self.name in (None, info.name)
            and (self.queue is None or "*" in info.queues or self.queue in info.queues)
            and (self.handler is None or self.handler in info.handlers)
            and self.region in (None, info.region)
            and self.version in (None, info.version)
            and all(info.labels.get(name) == value for name, value in self.labels.items())
        )

    def _state_fits(self, session: Session) -> bool:
        if self.state == DOWN:
            return session.down
        return self.state in (None, str(session.state))


class WorkerOperations:
    def __init__(self, store: EngineStore) -> None:
        self.store = store

    async def list(
        self, wanted: WorkerFilter | None = None, *, all_states: bool = False
    ) -> Sequence[Session]:
        """Newest first; also those that are down, where `all_states` or the filter's state asks for them."""
        wanted = wanted or WorkerFilter()
        live = wanted.state in (None, SessionState.ALIVE, SessionState.DRAINING)
        found = await self.store.sessions.sessions(all_states=all_states or not live)
        return [session for session in found if wanted.fits(session)]

    async def get(self, name: str) -> Session:
        """The newest life of that worker."""
        _checked(name)
        found = await self.list(WorkerFilter(name=name)) or await self.list(
            WorkerFilter(name=name), all_states=True
        )
        if not found:
            raise NotFound(f"no worker {name!r} in namespace {self.store.namespace!r}")
        return found[0]

    async def drain(self, name: str) -> Sequence[Session]:
        """Ask it to leave: it claims nothing from now on, finishes or hands back what it has, and ends.

        Returns its live sessions: more than one where several processes share the name.
        """
        return await self.store.sessions.ask_to_drain(_checked(name))

    async def wait_until_down(self, sessions: Sequence[Session], timeout: float) -> Sequence[Session]:
        """Those of them that are still there when all have left, or time is up: none, one hopes."""
        deadline = time.monotonic() + timeout
        ids = {session.id for session in sessions}
        while True:
            left = [session for session in await self.store.sessions.sessions() if session.id in ids]
            if not left or time.monotonic() >= deadline:
                return left
            await asyncio.sleep(0.1)


def _checked(name: str) -> str:
    try:
        return check_name(name, "worker")
    except ValueError as error:
        raise Invalid(str(error), field="name") from None
