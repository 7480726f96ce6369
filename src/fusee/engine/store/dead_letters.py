"""Dead letters: messages that the broker gave up. Their runs are published again, or held."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from fusee.engine.store.broker_tables import dead_letters, dispatched
from fusee.engine.store.cancels import Cancels
from fusee.engine.store.context import StoreContext
from fusee.engine.store.wakes import ENDED
from fusee.errors import NotFound

__all__ = ["DeadLetter", "DeadLetters"]

MAX_DEATHS = 3
"""A run whose messages became dead letters this often is held: it may be what kills its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that the broker gave up."""

    id: int
    queue: str
    reason: str
    died_at: int
    run_ids: tuple[int, ...]
    """The runs that it carried; none if it could not be read."""
    body: str
    binary: bool
    """Whether the body is not text. It is base64 then."""


class DeadLetters:
    def __init__(self, context: StoreContext, cancels: Cancels) -> None:
        self.context = context
        self.cancels = cancels

    async def keep(
        self, queue: str, reason: str, body: bytes, attempts: Sequence[tuple[int, int]], token: str
    ) -> bool:
        """Store a message, once for each `token`; returns whether it is new. Its runs are published again,
        each alone, until the third time (`MAX_DEATHS`). Runs of a message that was rejected as unreadable
        are held at once."""
        try:
            text, binary = body.decode(), False
        except UnicodeDecodeError:
            text, binary = b64encode(body).decode(), True
        values = {
            "digest": hashlib.sha256(token.encode() + body).hexdigest(),
            "queue": queue[:255],
            "reason": reason[:100],
            "run_ids": ",".join(str(run_id) for run_id, _ in attempts),
            "body": text,
            "binary": binary,
        }

        def work(connection: Connection) -> bool:
            known = select(dead_letters.c.id).where(dead_letters.c.digest == values["digest"])
            if connection.execute(known).first() is not None:
                return False
            now = self.context.now(connection)
            connection.execute(insert(dead_letters).values(**values, died_at=now))
            for run_id, attempt in sorted(attempts):
                mine = (dispatched.c.run_id == run_id, dispatched.c.attempt == attempt)
                deaths = connection.execute(
                    select(dispatched.c.deaths).where(*mine).with_for_update()
                ).scalar_one_or_none()
                if deaths is not None:
                    held = reason == "rejected" or deaths + 1 >= MAX_DEATHS
                    change = {"deaths": deaths + 1, "held": held, "published_at": 0}
                    connection.execute(update(dispatched).where(*mine).values(change))
            return True

        try:
            return await self.context.database.write(work)
        except IntegrityError:  # another process stores it at the same time
            return False

    async def list(self, *, after: int = 0, limit: int = 100) -> Sequence[DeadLetter]:
        """The oldest first."""
        query = select(dead_letters).where(dead_letters.c.id > after).order_by(dead_letters.c.id).limit(limit)
        rows = await self.context.database.read(lambda connection: connection.execute(query).all())
        return [_letter(row) for row in rows]

    async def count(self) -> int:
        query = select(func.count()).select_from(dead_letters)
        return int(
            await self.context.database.read(lambda connection: connection.execute(query).scalar_one())
        )

    async def get(self, letter_id: int) -> DeadLetter:
        query = select(dead_letters).where(dead_letters.c.id == letter_id)
        row = await self.context.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise NotFound(f"no dead letter {letter_id}: `fusee broker dead list` shows what there is")
        return _letter(row)

    async def requeue(self, letter_id: int) -> int:
        """Delete it and let its runs be published again; returns how many of them still can be."""

        def work(connection: Connection) -> int:
            run_ids = self._delete(connection, letter_id)
            waiting = dispatched.c.run_id.in_(run_ids)
            change = update(dispatched).where(waiting).values(held=False, deaths=0, published_at=0)
            return connection.execute(change).rowcount if run_ids else 0

        return await self.context.database.write(work)

    async def drop(self, letter_id: int, reason: str) -> int:
        """Delete it and cancel those of its runs that were held; returns how many."""

        def work(connection: Connection) -> int:
            run_ids = self._delete(connection, letter_id)
            held = select(dispatched.c.run_id).where(dispatched.c.run_id.in_(run_ids), dispatched.c.held)
            ids = list(connection.execute(held).scalars()) if run_ids else []
            self.cancels.cancel_many(connection, ids, reason, self.context.now(connection))
            return len(ids)

        canceled = await self.context.database.write(work)
        if canceled:
            self.context.wakes.fire(ENDED)
        return canceled

    def _delete(self, connection: Connection, letter_id: int) -> Sequence[int]:
        mine = dead_letters.c.id == letter_id
        row = connection.execute(select(dead_letters).where(mine).with_for_update()).one_or_none()
        if row is None:
            raise NotFound(f"no dead letter {letter_id}: `fusee broker dead list` shows what there is")
        connection.execute(delete(dead_letters).where(mine))
        return list(_letter(row).run_ids)


def _letter(row: Any) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        queue=row.queue,
        reason=row.reason,
        died_at=row.died_at,
        run_ids=tuple(int(run_id) for run_id in row.run_ids.split(",") if run_id),
        body=row.body,
        binary=bool(row.binary),
    )
