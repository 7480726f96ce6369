"""The handlers by which workers serve batches.

`handler_for` makes an operation a handler of the engine: one target, one attempt. `looker_for` asks the
operation, on a worker that has it, what it would do to targets; a look changes nothing: it calls `finished`
and `capture` only. `BatchStarter` starts a batch, and its run waits for the batch's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from fusee.batches.model.batch import PlanAction
from fusee.batches.operation import Captures, Registered, Target, TellsUndone, TellsWanted
from fusee.engine.model.outcome import Abandon, Done, Effect, Retry, Skip, Wait
from fusee.engine.store.parents import ParentRun
from fusee.engine.worker.context import RunContext, current_run
from fusee.errors import Conflict, Invalid, NotFound

__all__ = [
    "BatchStarter",
    "Creates",
    "Images",
    "check_targets",
    "handler_for",
    "look_at_targets",
    "looker_for",
]


class Images(Protocol):
    """Where it is kept what targets were."""

    async def keep_image(self, run_id: int, attempt: int, image: Any) -> Any:
        """Store it, unless the attempt is over; returns the first that was stored."""

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


AT_ONCE = 32
"""Targets that one call looks at in parallel."""
LONGEST_INFO = 500

Found = dict[str, Any]
"""`action`, `changes` (name → [before, after]), and `info`: why, in words."""


def looker_for(registered: Registered) -> Callable[..., Awaitable[Any]]:
    """The handler that workers serve beside the operation: it checks parameters, or looks at targets."""

    async def look(
        targets: Sequence[Mapping[str, Any]], seconds: float = 20.0, check: bool = False
    ) -> dict[str, Any]:
        if current_run().kind is not None:  # of a task or a workflow: nobody waits for what it would tell
            raise Abandon("a look is part of a batch's plan only: ask for the plan of a batch")
        if check:
            return {"checks": registered.params is not None, "wrong": check_targets(registered, targets)}
        return {"found": await look_at_targets(registered, targets, min(seconds, registered.timeout))}

    return look


def check_targets(registered: Registered, targets: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """For each target what is wrong with its parameters, or nothing."""
    return [registered.mistake(target["after"], target["before"]) for target in targets]


async def look_at_targets(
    registered: Registered, targets: Sequence[Mapping[str, Any]], seconds: float
) -> list[Found]:
    """What would be done to each of them; each has that many seconds."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(given: Mapping[str, Any]) -> Found:
        async with places:
            return await _look(registered, given, seconds)

    return await asyncio.gather(*(one(target) for target in targets))


async def _look(registered: Registered, given: Mapping[str, Any], seconds: float) -> Found:
    if (mistake := registered.mistake(given["after"], given["before"])) is not None:
        return _found(PlanAction.INVALID, info=mistake)
    # Without a run: a control plane that fences by run must not take a look for a newer attempt.
    target = Target(
        batch_id=given["batch_id"],
        position=given["position"],
        id=given["target_id"],
        name=given["target_name"],
        env=given["target_env"],
        before=given["before"],
        after=given["after"],
    )
    operation = registered.operation
    try:
        async with asyncio.timeout(seconds):
            if await operation.finished(target):
                return _found(PlanAction.NONE)
            seen = await operation.capture(target) if isinstance(operation, Captures) else target.before
            wanted = operation.wanted(target) if isinstance(operation, TellsWanted) else target.after
    except TimeoutError:
        return _found(PlanAction.UNREACHABLE, info=f"no answer within {seconds:g} s")
    except Exception as error:
        return _found(PlanAction.UNREACHABLE, info=f"{error}" or type(error).__name__)
    before = seen if isinstance(seen, Mapping) else {}
    changes = {
        name: [before.get(name), value]
        for name, value in wanted.items()
        if name not in before or before[name] != value
    }
    all_new = bool(changes) and all(was is None for was, _ in changes.values())
    # Without a capture nobody has looked at what there is.
    creates = isinstance(operation, Captures) and (not before or all_new)
    return _found(PlanAction.CREATE if creates else PlanAction.CHANGE, changes)


def _found(action: PlanAction, changes: Mapping[str, Any] | None = None, info: str | None = None) -> Found:
    return {"action": str(action), "changes": dict(changes or {}), "info": info and info[:LONGEST_INFO]}


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
