"""How tasks and their fires are shown; `fusee task list`, `show`, `next` and `runs`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists
from fusee.surfaces.cli.moments import TIMES, away, local_text, moment, now_us, time_text, times_table
from fusee.surfaces.cli.options import limited, option
from fusee.surfaces.cli.output import facts, human, status_text
from fusee.values.fields import shown

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from rich.table import Table

    from fusee.tasks.model.fire import Fire
    from fusee.tasks.model.task import Task, TaskSpec
    from fusee.tasks.service.tasks import TaskOperations

__all__ = [
    "TASKS", "fires_table", "list_tasks", "next_fires", "next_lines", "runs", "short_trigger", "show",
    "value_text", "zone_of",
]  # fmt: skip

LATEST = 5
SHOWN_ELSEWHERE = (
    "name", "description", "cron", "every", "at", "timezone", "after", "workflow", "handler", "executor",
)  # fmt: skip
NAME = click.argument("name", metavar="NAME")
COUNT = option("-n count N", "How many.", default=5, show_default=True, type=click.IntRange(1, 1000))


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


def next_lines(task: Task, count: int = 5) -> tuple[list[Any], list[str]]:
    """(when it fires next, or a remark that says why it does not)."""
    if times := task.upcoming(count):
        return ["", times_table(times, zone_of(task), now_us())], []
    if task.status != "enabled":
        verb = "resume" if task.status == "paused" else "enable"
        return [], [f"does not fire while it is {task.status}: fusee task {verb} {task.name}"]
    if task.schedule() is None:
        return [], [f"has no schedule: fusee task trigger {task.name}"]
    return [], ["will not fire any more by its schedule"]


def _facts(task: Task) -> Table:
    """Everything that is not the default."""
    from rich.text import Text

    from fusee.tasks.cron import Cron
    from fusee.tasks.service.apply import document_of

    spec, zone, now = task.spec, zone_of(task), now_us()
    others = [(name, value_text(value)) for name, value in document_of(task).items()]
    last = task.last_fire_at and f"{local_text(task.last_fire_at, zone)} ({away(task.last_fire_at, now)})"
    end = task.last_status and f"{task.last_status}" + (
        f", run {task.last_run_id}" if task.last_run_id else ""
    )
    return facts(
        [
            ("task", f"{spec.name}  (version {task.version})"),
            ("", spec.description),
            ("status", status_text(str(task.status))),
            ("why", task.reason),
            ("fires", short_trigger(spec)),
            ("", None if spec.cron is None else Cron.parse(spec.cron).describe("en")),
            ("waits for", ", ".join(spec.after) if spec.trigger != "after" else None),
            ("runs", _what(spec)),
            *((name, text) for name, text in others if name not in SHOWN_ELSEWHERE),
            ("last fire", last),
            ("last end", end),
            ("failures", Text(f"{task.failures} in a row", "red") if task.failures else None),
        ]
    )


def _what(spec: TaskSpec) -> str:
    if spec.workflow is not None:
        return f"workflow {spec.workflow}"
    if spec.batch is not None:
        return "a batch"
    return f"handler {spec.handler}" if spec.executor == "python" else spec.executor


def _next(task: Task) -> str:
    """One that is due and has not fired waits for a dispatcher."""
    at, now = task.next_fire_at, now_us()
    if at is None:
        return ""
    return away(at, now) if at > now else f"due {away(at, now)}"


def _failures(task: Task) -> Any:
    from rich.text import Text

    return Text(str(task.failures), "red") if task.failures else ""


def _shape(task: Task) -> dict[str, Any]:
    from fusee.tasks.fields import task_shown

    return task_shown(task, task.upcoming())


TASKS: Noun[Task] = Noun(
    shape=_shape,
    line=lambda task: f"{task.name} is {task.status}" + (f": {task.reason}" if task.reason else ""),
    whole=lambda task: [_facts(task), *next_lines(task)[0]],
    none="no tasks yet: fusee task create",
    no_match="no task matches",
    cursor=("after", lambda task: task.name),
    columns={
        "name": lambda task: task.name,
        "fires": lambda task: short_trigger(task.spec),
        "status": lambda task: task.status,
        "next": _next,
        "last": lambda task: task.last_status and status_text(str(task.last_status)),
        ">failures": _failures,
        "why": lambda task: task.reason,
    },
)


def _fires(zone: ZoneInfo, sharded: bool, none: str = "") -> Noun[Fire]:
    def when(fire: Fire) -> str:
        through = "" if fire.through is None else f" to {local_text(fire.through, zone)}"
        return local_text(fire.fire_time, zone) + through

    return Noun(
        shape=shown,
        none=none,
        cursor=("before", lambda fire: f"{fire.fire_time}.{fire.shard}"),
        columns={
            f"fire time ({zone.key})": when,
            **({">shard": lambda fire: fire.shard} if sharded else {}),
            "cause": lambda fire: str(fire.cause),
            "decision": lambda fire: fire.decision,
            ">run": lambda fire: fire.run_id,
            "status": lambda fire: fire.run_status or "pruned",
            ">late": lambda fire: human(fire.lateness),
            "rule": lambda fire: fire.rule + (f" (held: {fire.held})" if fire.held is not None else ""),
        },
    )


def fires_table(fires: Sequence[Fire], zone: ZoneInfo) -> Table:
    return _fires(zone, any(fire.shard for fire in fires)).table(fires)


@lists(TASKS)
@option(
    "--status -s",
    "Only these; repeatable.",
    multiple=True,
    choices=("enabled", "paused", "disabled"),
)
@option("--prefix TEXT", "Only names that begin with this.", default="")
@option("--after NAME", "Only names after this one, for the next page.")
async def list_tasks(tasks: TaskOperations, /, status: tuple[str, ...], **wanted: Any) -> Sequence[Task]:
    """List tasks by name: what fires them, when they fire next, and how the last fire ended.

    Example:
      fusee task list
      fusee task list --status paused
      fusee task list --prefix billing/ --json | jq -r '.items[].name'
    """
    from fusee.tasks.model.task import TaskStatus
    from fusee.tasks.store.tasks import TaskFilter

    return await tasks.list(TaskFilter(status=[TaskStatus(one) for one in status], **wanted))


@command()
@NAME
async def show(tasks: TaskOperations, /, name: str) -> Answer:
    """Show one task: what it is, when it fires, and what was decided about its last fires.

    Fields that have their default are left out; --json has every field.

    Example:
      fusee task show nightly
      fusee task show nightly --json | jq .next_fires
    """
    from fusee.tasks.store.history import FireFilter

    task = await tasks.get(name)
    latest = await tasks.fires(name, FireFilter(limit=LATEST))

    def drawn() -> Iterator[Any]:
        yield from TASKS.whole(task)
        if latest:
            yield ""
            yield fires_table(latest, zone_of(task))

    return Answer(lambda: TASKS.shape(task), lambda: list(drawn()), say=next_lines(task)[1])


@command("next")
@NAME
@COUNT
async def next_fires(tasks: TaskOperations, /, name: str, count: int) -> Answer:
    """Show when a task fires next, in its time zone and in UTC.

    Example:
      fusee task next nightly
      fusee task next nightly -n 20 --json
    """
    task = await tasks.get(name)
    times = task.upcoming(count)
    lines, say = next_lines(task, count)
    return Answer({"task": task.name, "next_fires": [time_text(at) for at in times]}, *lines, say=say)


@command()
@NAME
@option(
    "--decision -d",
    "Only these; repeatable.",
    multiple=True,
    choices=("run", "queue", "skip", "miss"),
)
@option("--since TIME", f"Not before: {TIMES}.")
@option("--until TIME", "Not after.")
@option("--before PLACE", "Only older ones, for the next page.")
@limited(25)
async def runs(tasks: TaskOperations, /, name: str, limit: int, **given: Any) -> Answer:
    """List the fires of a task, newest first: what was decided about each, by which rule, and its run.

    Every due fire has a row here, also one that was skipped or missed. The record of a deleted task is
    found by its name or its number.

    Example:
      fusee task runs nightly
      fusee task runs nightly --decision skip --decision miss --since -24h
    """
    from fusee.tasks.model.policy import Decision
    from fusee.tasks.store.history import FireFilter

    task = await tasks.get(int(name) if name.isdecimal() else name, deleted=True)
    zone, now = zone_of(task), now_us()
    since, until = (
        None if given[which] is None else moment(given[which], zone, now, f"--{which}")
        for which in ("since", "until")
    )
    decisions = [Decision(one) for one in given["decision"]]
    before = None if given["before"] is None else _place(given["before"])
    wanted = FireFilter(since=since, until=until, decision=decisions, before=before, limit=limit)
    found = await tasks.fires(task.id, wanted)
    none = "no fire matches" if any(given.values()) else f"{name} has not fired yet"
    return _fires(zone, any(fire.shard for fire in found), none).many(found, limit=limit)


def _place(text: str) -> tuple[int, int]:
    """(fire time, shard) of the last one seen."""
    found = re.fullmatch(r"(\d{1,18})\.(\d{1,5})", text)
    if found is None:
        raise click.BadParameter("give the next_before of the page before", param_hint="--before")
    return int(found[1]), int(found[2])
