"""An operation as a handler of the engine: one target, one attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec.structs import replace

from fusee.batches.operation import Captures, Target, TellsUndone
from fusee.batches.registry import Registered
from fusee.engine.model.outcome import Abandon, Done, Effect, Retry, Skip
from fusee.engine.worker.context import current_run

__all__ = ["Images", "handler_for"]


class Images(Protocol):
    """Where it is kept what targets were."""

    async def keep_image(self, run_id: int, attempt: int, image: Any) -> Any:
        """Store it, unless the attempt is over; answers the first that was stored."""

    async def image_of(self, run_id: int) -> Any:
        """What an earlier attempt stored."""


def handler_for(registered: Registered, images: Callable[[], Images]) -> Callable[..., Awaitable[Any]]:
    """The function that a worker calls for each target."""
    operation = registered.operation
    # Asked once: to look whether an object follows a protocol takes longer than a target that is done.
    captures = operation if isinstance(operation, Captures) else None
    tells = operation if isinstance(operation, TellsUndone) else None

    # Asks for the run instead of taking it as an argument: the worker then awaits it right away.
    async def serve(
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
        captured: bool = True,
    ) -> Any:
        run = current_run()
        if run.kind != "batch":  # submitted or copied by hand: its batch would not know what it did
            raise Abandon(
                f"operation {registered.batch_type} of {registered.target_type} runs as part of a batch only:"
                " create a batch with this target",
                effect=Effect.NONE,
            )
        if not rollback and (mistake := registered.mistake(after or {}, before or {})) is not None:
            # Accepted while no worker could say so: the target is refused by name, and not touched.
            raise Abandon(f"the parameters do not fit the operation: {mistake}", effect=Effect.NONE)
        if captures is not None and run.attempt > 1 and not rollback and image is None:
            image = await images().image_of(run.run_id)
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
        if rollback:
            return await undo(target, force, captured)
        try:
            if await operation.finished(target):
                return Done({"already": True}, effect=Effect.NONE)
            if captures is not None:
                # Before anything is touched, and only while this attempt still owns its run.
                seen = await captures.capture(target)
                image = await images().keep_image(target.run_id, target.attempt, seen)
                target = replace(target, image=image)
        except Skip:
            raise
        except (Retry, Abandon) as answer:
            answer.effect = Effect.NONE  # it only looked: a rollback has nothing to do here
            raise
        except Exception as error:
            raise Retry(f"could not look at the target: {error}", effect=Effect.NONE) from error
        return await operation.apply(target)

    async def undo(target: Target, force: bool, captured: bool) -> Any:
        if target.effect is Effect.UNKNOWN and captures is not None and not (captured or force):
            # No attempt came as far as to keep an image, so none went on to touch the target.
            return Done({"untouched": True}, effect=Effect.NONE)
        # Also when it was applied for sure: an earlier rollback may have got there and not come back.
        if tells is not None and await tells.undone(target):
            return Done({"already": True})
        if (
            target.effect is Effect.APPLIED
            # What an earlier attempt left half undone looks like drift to an operation that cannot tell.
            and (target.attempt == 1 or tells is not None)
            and not force
            and not await operation.finished(target)
        ):
            raise Abandon(
                "drift: the target is no longer as this batch left it, and was left alone;"
                " roll it back with force to overwrite it",
                effect=Effect.NONE,
            )
        return await operation.undo(target)

    return serve
