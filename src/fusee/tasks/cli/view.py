"""A task on a terminal: its trigger in a few words, its fires, its facts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.moments import away, local_text, times_table
from fusee.surfaces.cli.output import Out, clean, human, status_text, table

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from rich.table import Table

    from fusee.app.fusee import Fusee
    from fusee.tasks.model.fire import Fire
    from fusee.tasks.model.task import Task, TaskSpec

__all__ = ["fires_table", "short_trigger", "show_next", "show_task", "value_text", "zone_of"]

SHOWN_ELSEWHERE = (
    "name", "description", "cron", "every", "at", "timezone", "after", "workflow", "handler",
    "executor",
)  # fmt: skip


def zone_of(task: Task) -> ZoneInfo:
    from fusee.tasks.model.schedule import zone_named

    return zone_named(task.spec.timezone)


def short_trigger(spec: TaskSpec) -> str:
    """`0 3 * * * Europe/Berlin`, `every 15m`, `after load`, `by hand`."""
    zone = "" if spec.timezone == "UTC" else f" {spec.timezone}"
    if spec.cron is not None:
        return spec.cron.removeprefix("0 ") + zone
    if spec.every is not None:
        from fusee.values.durations import duration_text

        return f"every {duration_text(spec.every)}"
    if spec.at is not None:
        from fusee.tasks.model.schedule import zone_named

        return f"at {local_text(spec.at, zone_named(spec.timezone))}"
    return f"after {', '.join(spec.after)}" if spec.after else "by hand"


def value_text(value: Any) -> str:
    """A field's value in one line."""
    if isinstance(value, str):
        return value
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def show_task(out: Out, app: Fusee, task: Task) -> None:
    """Everything that is not the default, and when it fires next."""
    from rich.text import Text

    from fusee.tasks.service.documents import document_of

    spec, zone, now = task.spec, zone_of(task), app.clock.now_us()
    facts = table("", "")
    facts.show_header = False

    def fact(name: str, value: Any) -> None:
        if value not in (None, ""):
            facts.add_row(Text(name, "bold"), value if isinstance(value, Text) else Text(clean(str(value))))

    fact("task", f"{spec.name}  (version {task.version})")
    fact("", spec.description)
    fact("status", status_text(str(task.status)))
    fact("why", task.reason)
    fact("fires", short_trigger(spec))
    fact("", app.tasks.describe(spec))
    if spec.after and spec.trigger != "after":
        fact("waits for", ", ".join(spec.after))
    fact("runs", _what(spec))
    for name, value in document_of(task).items():
        if name not in SHOWN_ELSEWHERE:
            fact(name, value_text(value))
    if task.last_fire_at is not None:
        last = f"{local_text(task.last_fire_at, zone)} ({away(task.last_fire_at, now)})"
        fact("last fire", last)
    if task.last_status is not None:
        fact("last end", f"{task.last_status}" + (f", run {task.last_run_id}" if task.last_run_id else ""))
    if task.failures:
        fact("failures", Text(f"{task.failures} in a row", "red"))
    out.show(facts)
    show_next(out, app, task)


def _what(spec: TaskSpec) -> str:
    if spec.workflow is not None:
        return f"workflow {spec.workflow}"
    if spec.batch is not None:
        return "a batch"
    return f"handler {spec.handler}" if spec.executor == "python" else spec.executor


def show_next(out: Out, app: Fusee, task: Task, count: int = 5) -> None:
    """When it fires next, or why it does not."""
    times = app.tasks.upcoming(task, count)
    if times:
        out.show("", times_table(times, zone_of(task), app.clock.now_us()))
    elif task.status != "enabled":
        verb = "resume" if task.status == "paused" else "enable"
        out.say(f"does not fire while it is {task.status}: fusee task {verb} {task.name}")
    elif task.schedule() is None:
        out.say(f"has no schedule: fusee task trigger {task.name}")
    else:
        out.say("will not fire any more by its schedule")


def fires_table(fires: Sequence[Fire], zone: ZoneInfo) -> Table:
    from rich.text import Text

    sharded = any(fire.shard for fire in fires)
    shards = [">shard"] if sharded else []
    drawn = table(f"fire time ({zone.key})", *shards, "cause", "decision", ">run", "status", ">late", "rule")
    for fire in fires:
        status = "pruned" if fire.run_status is None else str(fire.run_status)
        held = f" (held: {fire.held})" if fire.held is not None else ""
        when = local_text(fire.fire_time, zone)
        if fire.through is not None:
            when += f" to {local_text(fire.through, zone)}"
        drawn.add_row(
            when,
            *([str(fire.shard)] if sharded else []),
            str(fire.cause),
            status_text(str(fire.decision)),
            str(fire.run_id),
            status_text(status),
            human(fire.lateness),
            Text(clean(fire.rule + held)),
        )
    return drawn
