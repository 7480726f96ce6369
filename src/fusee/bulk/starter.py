"""The built-in handler that starts a bulk job; its run waits for the job's end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fusee.engine.model.outcome import Abandon, Wait
from fusee.engine.worker.context import RunContext
from fusee.errors import Conflict, Invalid, NotFound

__all__ = ["BULK_HANDLER", "BulkStarter"]

BULK_HANDLER = "fusee.bulk"


class BulkStarter:
    def __init__(self, create: Callable[..., Awaitable[Any]]) -> None:
        self.create = create
        """Must not trust what it is given: whoever may create a run chose what the job reads."""

    async def start(self, run: RunContext, job: dict[str, Any], data: Any = None) -> Wait:
        """An attempt that is repeated finds the job that the earlier one started."""
        try:
            await self.create(job, data=data, start=True, parent_run=run.run_id, who=f"run {run.run_id}")
        except (NotFound, Invalid, Conflict) as error:  # trying again would not change that
            raise Abandon(str(error)) from None
        return Wait()
