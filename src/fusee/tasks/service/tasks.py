"""Everything a person can do with tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any

from fusee.engine.model.run import RunSpec
from fusee.engine.store.request_keys import KeyedRequest
from fusee.errors import Invalid, NotFound
from fusee.executors.http.request import Reach
from fusee.tasks.cron import Cron
from fusee.tasks.fields import task_from
from fusee.tasks.model.fire import Fire
from fusee.tasks.model.task import Task, TaskSpec, TaskStatus
from fusee.tasks.service.explain import Explanation, explain
from fusee.tasks.service.simulation import Simulation, simulation
from fusee.tasks.service.templates import TemplateOperations
from fusee.tasks.store.backfills import Backfilled
from fusee.tasks.store.history import FireFilter
from fusee.tasks.store.store import TaskStore
from fusee.tasks.store.tasks import TaskFilter
from fusee.tasks.store.triggers import Triggered
from fusee.values.names import check_optional_key, check_submittable, check_within

__all__ = ["TaskOperations"]

LONGEST_LIST = 1000
MOST_NEXT = 1000
VERBS = ("pause", "resume", "enable", "disable")
LONGEST_SIMULATION = 20_000


class TaskOperations:
    """Make, change, steer, fire, explain."""

    def __init__(
        self,
        store: TaskStore,
        check: Callable[[RunSpec], Awaitable[None]],
        reach: Reach,
        *,
        now_us: Callable[[], int],
    ) -> None:
        self.store = store
        self.check = check
        """Refuses a spec that could never run (unknown handler, bad payload, an address that is refused)."""
        self.reach = reach
        self.templates = TemplateOperations(store)
        self.now_us = now_us

    # -- definitions

    async def create(
        self, fields: Mapping[str, Any] | TaskSpec, *, enabled: bool = True, allow_unknown: bool = False
    ) -> Task:
        return (await self.create_once(None, fields, enabled=enabled, allow_unknown=allow_unknown))[0]

    async def create_once(
        self,
        idempotency_key: str | None,
        fields: Mapping[str, Any] | TaskSpec,
        *,
        enabled: bool = True,
        allow_unknown: bool = False,
    ) -> tuple[Task, bool]:
        """(the task, whether it is new): the same request under the same key gets the same task."""
        check_optional_key(idempotency_key)
        spec = await self.checked(fields, allow_unknown=allow_unknown)
        request = KeyedRequest.of(idempotency_key, "task", {"task": spec.to_dict(), "enabled": enabled})
        status = TaskStatus.ENABLED if enabled else TaskStatus.DISABLED
        task = await self.store.definitions.create_task(spec, status=status, request=request)
        return task, request is None or not request.repeated

    async def checked(
        self, fields: Mapping[str, Any] | TaskSpec, *, allow_unknown: bool = False, resolve: bool = True
    ) -> TaskSpec:
        """Refuses what `create` would refuse; whether the name is free is seen when it is made. Without
        `resolve`, no name of a host is looked up."""
        spec = await self._spec(fields)
        await self.check_runnable(spec, allow_unknown, resolve=resolve)
        if spec.at is not None and spec.at <= self.now_us():
            raise Invalid("at has passed already: give a time to come", field="at")
        return spec

    async def get(self, ref: str | int, *, deleted: bool = False) -> Task:
        """With `deleted`, also a deleted task: its fire history is kept."""
        return await self.store.definitions.task(ref, deleted=deleted)

    async def list(self, wanted: TaskFilter) -> Sequence[Task]:
        check_within("limit", wanted.limit, LONGEST_LIST)
        return await self.store.definitions.tasks(wanted)

    async def replace(
        self,
        ref: str | int,
        fields: Mapping[str, Any] | TaskSpec,
        *,
        version: int | None = None,
        allow_unknown: bool = False,
    ) -> Task:
        """Replace its definition as a whole; refused when it is not at `version`."""
        spec = await self._spec(fields)
        await self.check_runnable(spec, allow_unknown)
        return await self.store.steering.update_task(ref, spec, version)

    async def change(
        self,
        ref: str | int,
        fields: Mapping[str, Any],
        *,
        version: int | None = None,
        allow_unknown: bool = False,
    ) -> Task:
        """Change the given fields; null resets a field to its default."""
        task = await self.store.definitions.task(ref)
        if "template" in fields or "with" in fields:
            raise Invalid(
                "template goes with making a task; a task that exists is changed by its fields",
                field="template",
            )
        spec = task_from(await self._named(fields), task.spec)
        if _action(spec) != _action(task.spec):
            known = (spec.executor, spec.handler) == (task.spec.executor, task.spec.handler)
            await self.check_runnable(spec, allow_unknown or known)
        # Without a version of the caller's: that which the change was worked out on.
        return await self.store.steering.update_task(
            ref, spec, version if version is not None else task.version
        )

    async def steer(
        self, ref: str | int, verb: str, *, reason: str | None = None, version: int | None = None
    ) -> Task:
        """Pause, resume, enable or disable it; repeating that changes nothing."""
        if verb not in VERBS:
            raise Invalid(f"a task can {', '.join(VERBS)}, not {verb!r:.40}")
        return await self.store.steering.steer_task(ref, verb, reason, version)

    async def clear_queue(self, ref: str | int, *, reason: str = "cleared by hand") -> int:
        """Skip every queued fire; returns how many. Running fires continue."""
        return await self.store.steering.clear_queue(ref, reason[:200])

    async def delete(self, ref: str | int, *, version: int | None = None) -> Task:
        """Delete it softly: its runs and fires are kept, its name is free again, held fires are skipped."""
        return await self.store.steering.steer_task(ref, "delete", None, version)

    async def _spec(self, fields: Mapping[str, Any] | TaskSpec) -> TaskSpec:
        return fields if isinstance(fields, TaskSpec) else task_from(await self.plain(fields))

    async def plain(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a new task without what only the store can tell: its template, numbers of tasks."""
        return await self._named(await self.templates.expanded(fields))

    async def _named(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """`dependencies` may name tasks by number, as older designs do: replaced by their names."""
        given = fields.get("dependencies") if isinstance(fields, Mapping) else None
        if not isinstance(given, list | tuple) or not any(type(one) is int for one in given):
            return fields
        names = []
        for one in given:
            try:
                names.append((await self.store.definitions.task(one)).name if type(one) is int else one)
            except NotFound:
                raise Invalid(f"dependencies: there is no task {one}", field="dependencies") from None
        return {**fields, "dependencies": names}

    async def check_runnable(self, spec: TaskSpec, allow_unknown: bool, *, resolve: bool = True) -> None:
        """Refuses a task whose runs could never run, or whose calls could never go out."""
        if spec.workflow is None and spec.batch is None:
            if spec.executor == "python":
                check_submittable(spec.handler)
            if not (allow_unknown and spec.executor == "python"):
                await self.check(spec.run_spec())
        try:
            field = "payload"
            if resolve and spec.executor == "http":
                await self.reach.check_payload_name(spec.payload)
            field = "alerts"
            if spec.alerts is not None:
                self.reach.check_address(spec.alerts.webhook)
                if resolve:
                    await self.reach.check_name(spec.alerts.webhook)
        except ValueError as error:
            raise Invalid(str(error), field=field) from None

    # -- firing

    async def trigger(
        self,
        ref: str | int,
        *,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        reason: str = "triggered by hand",
    ) -> Triggered:
        """Fire now, under the policies. `payload` goes over the task's own, member by member."""
        if payload is not None and not isinstance(payload, Mapping):
            raise Invalid("payload must be an object: its members go over the task's own", field="payload")
        check_optional_key(idempotency_key)
        if payload:
            spec = (await self.store.definitions.task(ref)).spec
            await self.check_runnable(replace(spec, payload=spec.run_payload(payload)), allow_unknown=True)
        return await self.store.triggers.trigger(
            ref, payload=payload, idempotency_key=idempotency_key, reason=reason[:200]
        )

    async def restart(self, ref: str | int, *, idempotency_key: str | None = None) -> Triggered:
        """Repeat its last fire under the policies: the same payload, logical time and shards."""
        check_optional_key(idempotency_key)
        return await self.store.triggers.restart_task(ref, idempotency_key=idempotency_key)

    async def backfill(
        self,
        ref: str | int,
        begin: int,
        end: int,
        *,
        concurrency: int = 1,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Backfilled:
        """Run the fires of a past range that did not run."""
        if end < begin:
            raise Invalid("to lies before from", field="to")
        if type(concurrency) is not int or not 1 <= concurrency <= 1000:
            raise Invalid("concurrency must be a whole number from 1 to 1000", field="concurrency")
        check_optional_key(idempotency_key)
        return await self.store.backfills.start(
            ref, begin, end, concurrency=concurrency, dry_run=dry_run, idempotency_key=idempotency_key
        )

    # -- looking

    async def next(self, ref: str | int, count: int = 5, after: int | None = None) -> Sequence[int]:
        """When it fires next; nothing for a task that is not enabled, or has no schedule."""
        check_within("count", count, MOST_NEXT)
        return self.upcoming(await self.store.definitions.task(ref), count, after)

    def upcoming(self, task: Task, count: int = 5, after: int | None = None) -> Sequence[int]:
        return task.upcoming(count, after)

    def preview(self, fields: Mapping[str, Any] | TaskSpec, count: int = 5) -> Sequence[int]:
        """When a task like this would fire, were it made now."""
        now = self.now_us()
        spec = fields if isinstance(fields, TaskSpec) else task_from(fields)
        schedule = spec.schedule(now)
        return [] if schedule is None else list(islice(schedule.fires(now), count))

    def describe(self, spec: TaskSpec, language: str = "en") -> str | None:
        """A cron expression in words."""
        return None if spec.cron is None else Cron.parse(spec.cron).describe(language)

    async def fires(self, ref: str | int, wanted: FireFilter) -> Sequence[Fire]:
        check_within("limit", wanted.limit, LONGEST_LIST)
        return await self.store.history.fires(ref, wanted)

    async def explain(self, ref: str | int, at: int) -> Explanation:
        """What was decided about that time, and by which rule."""
        task = await self.store.definitions.task(ref, deleted=True)
        return explain(task, at, await self.store.history.fires_at(task.id, at), self.now_us())

    async def simulate(
        self,
        ref: str | int,
        begin: int,
        end: int,
        *,
        policy: Mapping[str, Any] | None = None,
        duration: float | None = None,
    ) -> Simulation:
        """Simulate another policy from `begin` to `end`, beside what was done."""
        if end < begin:
            raise Invalid("to lies before from", field="to")
        task = await self.store.definitions.task(ref)
        past = await self.store.history.past(task.id, begin, end, LONGEST_SIMULATION + 1)

        def work() -> Simulation:
            schedule = task.schedule()
            times = [one.at for one in past]
            if schedule is not None:
                # Before it was made, enabled or given this schedule, only what is on record was due; and a
                # task that is not enabled is due no more.
                enabled = task.status is TaskStatus.ENABLED
                last = end if enabled else min(end, task.last_fire_at or task.anchor)
                due = takewhile(lambda at: at <= last, schedule.fires(max(begin - 1, task.anchor)))
                times = sorted({*times, *islice(due, LONGEST_SIMULATION + 1)})
            if len(times) > LONGEST_SIMULATION:
                raise Invalid(f"more than {LONGEST_SIMULATION} fires: choose a shorter range", field="to")
            return simulation(task, times, past, policy or {}, duration)

        return await asyncio.to_thread(work)  # a range of centuries takes seconds to compute


def _action(spec: TaskSpec) -> tuple[Any, ...]:
    """The fields that `check_runnable` reads: a change of other fields needs no new check."""
    return spec.executor, spec.handler, spec.payload, spec.workflow, spec.batch, spec.alerts
