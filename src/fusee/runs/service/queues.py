"""Queues and keys, as people see them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusee.access.store import ApiKey
from fusee.engine.model.queue import QueueLimits, QueueStats
from fusee.engine.model.run import Lane
from fusee.engine.model.session import Session
from fusee.engine.model.strategy import Strategy, check_strategy
from fusee.engine.store.request_keys import KeyedRequest
from fusee.errors import Conflict, Denied, Invalid
from fusee.placement.placing import serves
from fusee.stores import Store
from fusee.values.names import check_name

__all__ = ["ROLES", "Caller", "KeyOperations", "QueueOperations", "digest"]

ROLES = ("viewer", "operator", "admin")
"""Each may do what those before it may."""


LIMITS = ("paused", "concurrency", "rate", "burst")


class QueueOperations:
    def __init__(self, store: Store) -> None:
        self.store = store

    async def list(self) -> Sequence[QueueStats]:
        """Every queue that has work or limits, by name."""
        counts = await self.store.queues.counts()
        limits = await self.store.queues.read_limits()
        sessions = await self.store.sessions.sessions()
        names = sorted({lane.queue for lane in counts} | set(limits))
        return [self._stats(name, counts, limits.get(name, QueueLimits()), sessions) for name in names]

    async def get(self, name: str) -> QueueStats:
        _checked(name)
        found = {stats.name: stats for stats in await self.list()}
        return found.get(name) or self._stats(name, {}, QueueLimits(), [])

    async def limit(self, name: str, limits: QueueLimits) -> QueueStats:
        """Replace a queue's limits; they hold across all workers within a second."""
        await self.store.queues.set_limits(_checked(name), limits)
        return await self.get(name)

    async def place(self, name: str, strategy: str) -> QueueStats:
        """Choose how the queue's runs find their worker, where they do not say so themselves."""
        _checked(name)
        try:
            strategy = check_strategy(strategy)
        except ValueError as error:
            raise Invalid(str(error), field="strategy") from None
        await self.store.queues.set_strategy(name, None if strategy == Strategy.SHARED else strategy)
        return await self.get(name)

    async def change(self, name: str, changes: Mapping[str, Any]) -> QueueStats:
        """Other values for some of its limits; null lifts one, and a burst is lifted with its rate."""
        unknown = [field for field in changes if field not in LIMITS]
        if unknown:
            raise Invalid(f"a queue has no {unknown[0]!r:.60}; it has {', '.join(LIMITS)}", field=unknown[0])

        def changed(before: QueueLimits) -> QueueLimits:
            after = {**{field: getattr(before, field) for field in LIMITS}, **changes}
            if after["rate"] is None and changes.get("burst") is None:
                after["burst"] = None
            return QueueLimits(**{**after, "paused": bool(after["paused"])})

        try:
            await self.store.queues.change_limits(_checked(name), changed)
        except ValueError as error:
            raise Invalid(str(error), field=str(error).split(" ", 1)[0]) from None
        return await self.get(name)

    async def pause(self, name: str, paused: bool) -> QueueStats:
        return await self.change(name, {"paused": paused})

    @staticmethod
    def _stats(
        name: str,
        counts: dict[Lane, dict[str, tuple[int, int | None]]],
        limits: QueueLimits,
        sessions: Sequence[Session],
    ) -> QueueStats:
        mine = {lane: by_status for lane, by_status in counts.items() if lane.queue == name}

        def total(status: str) -> int:
            return sum(by_status.get(status, (0, None))[0] for by_status in mine.values())

        oldest = [by_status["pending"][1] for by_status in mine.values() if "pending" in by_status]
        unserved = {
            lane.handler
            for lane, by_status in mine.items()
            if "pending" in by_status and not any(serves(session.info, lane) for session in sessions)
        }
        return QueueStats(
            name=name,
            limits=limits,
            blocked=total("blocked"),
            delayed=total("delayed"),
            pending=total("pending"),
            running=total("running") + total("dispatched"),
            waiting=total("waiting"),
            oldest_pending_at=min((at for at in oldest if at is not None), default=None),
            unserved=tuple(sorted(unserved)),
        )


def _checked(name: str) -> str:
    try:
        return check_name(name, "queue")
    except ValueError as error:
        raise Invalid(str(error), field="queue") from None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and what they may."""

    name: str
    role: str
    namespace: str

    def needs(self, role: str) -> None:
        if ROLES.index(self.role) < ROLES.index(role):
            raise Denied(f"this needs the role {role}; key {self.name!r} has {self.role}", known=True)


def digest(key: str) -> str:
    """Keys are long and random, so a plain hash cannot be turned back; no slow hash is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


class KeyOperations:
    """API keys: made here, shown once, stored as a digest."""

    def __init__(self, store: Store, configured: Sequence[str] = ()) -> None:
        self.store = store
        self.configured = frozenset(configured)
        """Digests from the configuration; each is an admin of the store's namespace."""

    async def create(
        self,
        name: str,
        role: str = "operator",
        *,
        idempotency_key: str | None = None,
        first_is_admin: bool = False,
    ) -> tuple[int, str]:
        """(id, the key). The key cannot be had again: a repeat under the same idempotency key is refused.

        `first_is_admin`: refuse to make the first key of all with a lesser role, for callers who could manage
        keys no more after that."""
        try:
            check_name(name, "name")
        except ValueError as error:
            raise Invalid(str(error), field="name") from None
        if role not in ROLES:
            raise Invalid(f"role must be one of {', '.join(ROLES)}, not {role!r:.40}", field="role")
        if first_is_admin and role != "admin" and not await self.any():
            raise Conflict(
                "there is no API key yet, and from the first one on every request needs a key: create one"
                ' with the role admin first ({"name": …, "role": "admin"}), then this one with it'
            )
        key = "fusee_" + secrets.token_urlsafe(32)
        request = KeyedRequest.of(idempotency_key, "api key", {"name": name, "role": role})
        return await self.store.api_keys.add_key(name, role, digest(key), request), key

    async def list(self) -> Sequence[ApiKey]:
        return await self.store.api_keys.keys()

    async def revoke(self, key_id: int) -> None:
        await self.store.api_keys.revoke_key(key_id)

    async def any(self) -> bool:
        return bool(self.configured) or await self.store.api_keys.count_keys() > 0

    async def caller(self, key: str) -> Caller | None:
        """Who holds that key; found by digest, so comparing leaks nothing of the key."""
        hashed = digest(key)
        if hashed in self.configured:
            return Caller("configured", "admin", self.store.namespace)
        found = await self.store.api_keys.key_by_digest(hashed)
        return None if found is None else Caller(found.name, found.role, found.namespace)
