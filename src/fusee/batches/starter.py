"""The built-in handler that starts a batch; its run waits for the batch's end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fusee.engine.model.outcome import Abandon, Wait
from fusee.engine.store.parents import ParentRun
from fusee.engine.worker.context import RunContext
from fusee.errors import Conflict, Invalid, NotFound

__all__ = ["BatchStarter", "Creates"]


class Creates(Protocol):
    async def create(
        self, fields: Mapping[str, Any], targets: Sequence[Any], *, apply: bool, parent: ParentRun
    ) -> object: ...


class BatchStarter:
    def __init__(self, batches: Callable[[], Creates]) -> None:
        self.batches = batches
        """Asked at each call: the app may be closed and opened again."""

    async def start(self, run: RunContext, batch: dict[str, Any]) -> Wait:
        """`batch` is what `POST /batches` takes: fields and `targets`. Its name is the task's unless it has
        one. An attempt that is repeated finds the batch that the earlier one started."""
        fields = dict(batch)
        targets = fields.pop("targets", ())
        if not fields.keys() & {"batch_name", "name"}:
            fields["batch_name"] = run.task or f"run {run.run_id}"
        try:
            if not isinstance(targets, list | tuple):
                raise Invalid("targets must be a list of targets", field="targets")
            parent = ParentRun(run.run_id, run.attempt)
            await self.batches().create(fields, targets, apply=True, parent=parent)
        except (NotFound, Invalid, Conflict) as error:  # trying again would not change that
            raise Abandon(str(error)) from None
        return Wait()
