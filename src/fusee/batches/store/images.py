"""What targets were before they were touched."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, and_, select, update

from fusee.batches.store.tables import batch_tasks
from fusee.engine.model.states import RunStatus
from fusee.engine.store.context import StoreContext
from fusee.engine.store.rows import decode, encode
from fusee.engine.store.tables import runs
from fusee.errors import LeaseLost

__all__ = ["BatchImages", "place_of"]


def place_of(payload: str) -> int:
    """Which target of its batch a run is about: it says so itself, and no index has to lead there."""
    return int(decode(payload)["position"])


class BatchImages:
    def __init__(self, context: StoreContext) -> None:
        self.context = context

    async def keep_image(self, run_id: int, attempt: int, image: Any) -> Any:
        """What the target was before it is touched; fenced: an attempt that lost its run keeps nothing.

        Returns the image that is kept: the first, since a later attempt may look at what an earlier one left
        half done.
        """
        text = encode(image, "the image")

        def work(connection: Connection) -> Any:
            mine = select(runs.c.owner_id, runs.c.payload).where(
                runs.c.id == run_id, runs.c.attempt == attempt, runs.c.status == RunStatus.RUNNING
            )
            run = connection.execute(mine.with_for_update()).one_or_none()
            if run is None:
                raise LeaseLost(f"attempt {attempt} of run {run_id} is over: it must touch nothing")
            first = update(batch_tasks).where(_is_target_of(run), batch_tasks.c.image.is_(None))
            if connection.execute(first.values(image=text)).rowcount:
                return image
            kept = select(batch_tasks.c.image).where(_is_target_of(run))
            return decode(connection.execute(kept).scalar_one())

        return await self.context.database.write(work)

    async def image_of(self, run_id: int) -> Any:
        """What an earlier attempt kept."""

        def work(connection: Connection) -> Any:
            mine = select(runs.c.owner_id, runs.c.payload).where(runs.c.id == run_id)
            run = connection.execute(mine).one()
            return connection.execute(
                select(batch_tasks.c.image).where(_is_target_of(run))
            ).scalar_one_or_none()

        return decode(await self.context.database.read(work))


def _is_target_of(run: Any) -> Any:
    return and_(batch_tasks.c.batch_id == run.owner_id, batch_tasks.c.position == place_of(run.payload))
