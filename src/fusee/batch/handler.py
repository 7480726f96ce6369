"""An operation as a handler of the engine: one target, one attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fusee.batch.operation import Captures, Target, TellsUndone
from fusee.batch.registry import Registered
from fusee.model import Abandon, Done, Effect
from fusee.worker.context import RunContext

__all__ = ["KeepImage", "handler_for"]

KeepImage = Callable[[int, int, Any], Awaitable[None]]
"""(run, attempt, image): stores what a target was, unless the attempt is over."""


def handler_for(registered: Registered, keep: KeepImage) -> Callable[..., Awaitable[Any]]:
    """The function that a worker calls for each target."""
    operation = registered.operation

    async def serve(
        run: RunContext,
        batch_id: int,
        position: int,
        target_id: str,
        target_name: str = "",
        target_env: str = "",
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
        rollback: bool = False,
        force: bool = False,
        effect: str | None = None,
        image: Any = None,
    ) -> Any:
        target = Target(
            batch_id=batch_id,
            position=position,
            id=target_id,
            name=target_name,
            env=target_env,
            before=before or {},
            after=after or {},
            image=image,
            effect=Effect(effect) if effect else None,
            run_id=run.run_id,
            attempt=run.attempt,
        )
        return await (undo(target, force) if rollback else apply(target))

    async def apply(target: Target) -> Any:
        if await operation.finished(target):
            return Done({"already": True}, effect=Effect.NONE)
        if isinstance(operation, Captures):
            # Before anything is touched, and only while this attempt still owns its run.
            await keep(target.run_id, target.attempt, await operation.capture(target))
        return await operation.apply(target)

    async def undo(target: Target, force: bool) -> Any:
        if (
            target.effect is Effect.UNKNOWN
            and isinstance(operation, TellsUndone)
            and await operation.undone(target)
        ):
            return Done({"already": True})
        if (
            target.effect is Effect.APPLIED
            and target.attempt == 1
            and not force
            and not await operation.finished(target)
        ):
            raise Abandon(
                "drift: the target is no longer as this batch left it, and was left alone;"
                " roll it back with force to overwrite it"
            )
        return await operation.undo(target)

    return serve
