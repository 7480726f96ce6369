"""Asking operations about targets: on workers that have them, or in this process where none has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusee.batches.handlers import look_at_targets
from fusee.batches.model.batch import BatchTask, PlanAction, Planned
from fusee.batches.model.spec import BatchSpec, TargetSpec, looker_of
from fusee.batches.operation import OperationRegistry
from fusee.batches.store.store import BatchStore
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Lane, RunSpec
from fusee.engine.model.states import RunStatus, SessionState
from fusee.errors import Conflict
from fusee.placement.placing import serves
from fusee.values.chunks import chunks

__all__ = ["BatchAsking", "Progress"]

LOOK_AT_ONCE = 20
"""Targets of one run that looks; several runs look in parallel."""
CHECK_AT_ONCE = 500
CHECK_WITHIN = 5.0
"""Seconds that a request waits for workers to check parameters; later they are checked as targets start."""
URGENT = 100
"""Priority of these runs at least: someone waits for them."""
ONCE_MORE = RetryPolicy(max_attempts=2, base=0.1, on=("lost",))

Progress = Callable[[int], None]
"""Told how many targets were looked at so far."""


class BatchAsking:
    def __init__(self, store: BatchStore, operations: OperationRegistry) -> None:
        self.store = store
        self.operations = operations

    async def served(self, spec: BatchSpec) -> bool:
        """Whether a live worker can be asked."""
        handler = looker_of(spec.target_type, spec.batch_type)
        lane = Lane(self.store.engine.namespace, spec.queue, "python", handler, spec.region)
        return any(
            serves(session.info, lane) and session.state is SessionState.ALIVE
            for session in await self.store.engine.sessions.sessions()
        )

    async def mistakes(self, spec: BatchSpec, targets: Sequence[TargetSpec]) -> list[str | None] | None:
        """For each target what is wrong with its parameters; None when no worker says, or none needs to."""
        parts = chunks([{"after": t.after, "before": t.before} for t in targets], CHECK_AT_ONCE)
        answers = await self._ask(spec, [{"targets": part, "check": True} for part in parts], CHECK_WITHIN)
        if any(answer is None or not answer["checks"] for answer in answers):
            return None
        return [mistake for answer in answers if answer for mistake in answer["wrong"]]

    async def look(
        self,
        spec: BatchSpec,
        tasks: Sequence[BatchTask],
        *,
        timeout: float,
        progress: Progress | None = None,
    ) -> list[Planned]:
        """What would be done to each of them, as the operation says; within `timeout` seconds."""
        targets = [
            {
                "batch_id": task.batch_id,
                "position": task.position,
                "target_id": task.target_id,
                "target_name": task.target_name,
                "target_env": task.target_env,
                "before": task.before,
                "after": task.after,
            }
            for task in tasks
        ]
        registered = self.operations.get(spec.target_type, spec.batch_type)
        # So that a run has its answer before its own time is up, also when some of its targets hang.
        seconds = 0.8 * min(timeout, registered.timeout if registered else timeout)
        found: list[Mapping[str, Any] | None] = []
        if await self.served(spec):
            parts = list(chunks(targets, LOOK_AT_ONCE))
            payloads = [{"targets": part, "seconds": seconds} for part in parts]
            answers = await self._ask(spec, payloads, timeout, progress)
            for part, answer in zip(parts, answers, strict=True):
                found += answer["found"] if answer else [None] * len(part)
        elif registered is not None:  # no worker is there, and this process has the operation
            for part in chunks(targets, 10 * LOOK_AT_ONCE):
                found += await look_at_targets(registered, part, seconds)
                if progress is not None:
                    progress(len(found))
        else:
            region = f" in region {spec.region!r}" if spec.region else ""
            raise Conflict(
                f"no worker that has operation {spec.batch_type!r} of target type {spec.target_type!r} and"
                f" serves queue {spec.queue!r} is alive{region}: start one, or read the recorded plan"
                " (`fusee batch plan --recorded`, GET …/plan)"
            )
        late = {
            "action": PlanAction.UNREACHABLE,
            "changes": {},
            "info": f"no worker looked at it within {timeout:g} s",
        }
        return [_planned(task, one or late) for task, one in zip(tasks, found, strict=True)]

    async def _ask(
        self,
        spec: BatchSpec,
        payloads: Sequence[Mapping[str, Any]],
        timeout: float,
        progress: Progress | None = None,
    ) -> list[Mapping[str, Any] | None]:
        """What workers return for each; None for what did not succeed in time, which is canceled."""
        template = RunSpec(
            handler=looker_of(spec.target_type, spec.batch_type),
            queue=spec.queue,
            region=spec.region,
            priority=max(spec.priority, URGENT),
            timeout=timeout,
            retry=ONCE_MORE,
        )
        ids = [run.id for run in await self.store.engine.run_writer.enqueue_each(template, payloads)]
        sizes = {run_id: len(payload["targets"]) for run_id, payload in zip(ids, payloads, strict=True)}
        try:
            ended = await self._ended(ids, sizes, time.monotonic() + timeout, progress)
        except BaseException:
            await self._give_up(ids)
            raise
        await self._give_up([run_id for run_id in ids if run_id not in ended])
        good = [run_id for run_id in ids if ended.get(run_id) is RunStatus.SUCCEEDED]
        results = {run_id: (await self.store.engine.runs.run(run_id)).result for run_id in good}
        return [results.get(run_id) for run_id in ids]

    async def _ended(
        self, ids: Sequence[int], sizes: Mapping[int, int], deadline: float, progress: Progress | None
    ) -> dict[int, RunStatus]:
        ended: dict[int, RunStatus] = {}
        pause = 0.01
        while True:
            open_ones = [run_id for run_id in ids if run_id not in ended]
            for part in chunks(open_ones, 500):
                ended |= await self.store.engine.runs.ended(part)
            if progress is not None:
                progress(sum(sizes[run_id] for run_id in ended))
            if len(ended) == len(ids) or time.monotonic() >= deadline:
                return ended
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.25)

    async def _give_up(self, ids: Sequence[int]) -> None:
        for run_id in ids:
            await self.store.engine.runs.cancel(run_id, "nobody waits for this answer any more")


def _planned(task: BatchTask, found: Mapping[str, Any]) -> Planned:
    return Planned(
        task=task,
        action=PlanAction(found["action"]),
        changes={name: (before, after) for name, (before, after) in found["changes"].items()},
        info=found["info"],
    )
