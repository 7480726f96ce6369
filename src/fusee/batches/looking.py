"""What an operation would do to targets: asked of the operation itself, on a worker that has it.

A look changes nothing: it calls `finished` and `capture` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fusee.batches.model.batch import PlanAction
from fusee.batches.operation import Captures, Target, TellsWanted
from fusee.batches.registry import Registered
from fusee.engine.model.outcome import Abandon
from fusee.engine.worker.context import current_run

__all__ = ["check_targets", "look_at_targets", "looker_for"]

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
