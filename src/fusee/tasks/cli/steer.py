"""`fusee task enable`, `disable`, `pause`, `resume`, `delete`, `clear-queue`, and `edit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command, steer
from fusee.surfaces.cli.inputs import json_or_text, member_from
from fusee.surfaces.cli.options import ALLOW_UNKNOWN, VERSION, Command, reasoned
from fusee.tasks.cli.apply import differences_lines
from fusee.tasks.cli.look import TASKS, next_lines

if TYPE_CHECKING:
    from fusee.tasks.model.task import Task
    from fusee.tasks.service.tasks import TaskOperations

__all__ = [
    "clear_queue",
    "delete",
    "disable",
    "edit",
    "enable",
    "fields_of_words",
    "pause",
    "policy_of_words",
    "resume",
]

REASON = reasoned(kept="the task")


def _answer(task: Task) -> Answer:
    lines, say = next_lines(task) if task.status == "enabled" else ([], [])
    return Answer(lambda: TASKS.shape(task), TASKS.in_line(task), *lines, say=say)


def _steer(verb: str, text: str, *options: Callable[..., Any]) -> Command:
    async def body(tasks: TaskOperations, /, name: str, **how: Any) -> Answer:
        return _answer(await tasks.steer(name, verb, **how))

    body.__doc__ = text
    for option in (VERSION, *options):
        body = option(body)
    return steer(TASKS, "name", "NAME", name=verb)(body)


enable = _steer(
    "enable",
    """Let a task fire, from now on.

    What was due while it was disabled or paused does not fire; `fusee task backfill` makes up for it.

    Example: fusee task enable nightly
    """,
)
disable = _steer(
    "disable",
    """Let a task not fire at all, not even by hand.

    Running fires continue; fires that are queued or wait for other tasks are recorded as skipped. To stop the
    schedule and still fire the task by hand, pause it.

    Example: fusee task disable nightly --reason "moved to the other cluster"
    """,
    REASON,
)
pause = _steer(
    "pause",
    """Stop a task's schedule; it can still be triggered by hand.

    Running fires continue; queued fires are held until the task is resumed. `fusee task clear-queue` skips
    them. Pausing a paused task changes nothing.

    Example: fusee task pause nightly --reason "the warehouse is down"
    """,
    REASON,
)
resume = _steer(
    "resume",
    """Let a paused task fire again, from now on.

    Fires that were queued when it was paused start first, oldest first; `fusee task clear-queue` skips them.
    What was due while it was paused does not fire; `fusee task backfill` makes up for it.

    Example: fusee task resume nightly
    """,
)


@steer(TASKS, "name", "NAME")
@VERSION
async def delete(tasks: TaskOperations, /, name: str, version: int | None) -> Answer:
    """Delete a task; its runs and its record stay until they are pruned.

    Its name is free again. Running fires continue; fires that wait are recorded as skipped. Refused while
    other tasks wait for it.

    Example: fusee task delete nightly
    """
    return _answer(await tasks.delete(name, version=version))


@steer(TASKS, "name", "NAME")
@reasoned("cleared by hand", kept="each fire")
async def clear_queue(tasks: TaskOperations, /, name: str, reason: str) -> Answer:
    """Skip every queued fire of a task.

    Each is recorded as skipped, with the reason. Running fires and the schedule continue.

    Example: fusee task clear-queue nightly --reason "stale by now"
    """
    cleared = await tasks.clear_queue(name, reason=reason)
    return Answer({"cleared": cleared}, f"{cleared} fire{'s' * (cleared != 1)} of {name} left out")


@command()
@click.argument("name", metavar="NAME")
@click.argument("words", metavar="FIELD=VALUE...", nargs=-1, required=True)
@VERSION
@ALLOW_UNKNOWN
async def edit(
    tasks: TaskOperations, /, name: str, words: tuple[str, ...], version: int | None, allow_unknown: bool
) -> Answer:
    """Change fields of a task; what is not named stays as it is.

    FIELD= with nothing behind it takes a field back to its default. One member of payload, labels, retry or
    alerts is named with a dot; an object as JSON changes the members that it names. A new schedule holds from
    now on; running fires are left alone.

    When someone else changed the task in between, the edit is refused with exit code 4: no change is lost
    silently. --version says which version you looked at.

    Example:
      fusee task edit nightly cron="0 4 * * *" timezone=Europe/Berlin
      fusee task edit nightly payload.days=30 retry.max_attempts=5 description=
      fusee task edit poll overlap_action=SKIP max_concurrency=2 --version 7
      fusee task edit poll target_url=https://example.com/v2/poll
    """
    from fusee.tasks.fields import fields_from
    from fusee.tasks.service.apply import differences

    before = await tasks.get(name)
    task = await tasks.change(
        name,
        fields_of_words(words, "FIELD=VALUE"),
        version=before.version if version is None else version,
        allow_unknown=allow_unknown,
    )
    changes = differences(fields_from(before.spec), fields_from(task.spec))
    lines, say = next_lines(task) if before.next_fire_at != task.next_fire_at else ([], [])
    return Answer(
        lambda: TASKS.shape(task),
        f"{task.name} is at version {task.version}",
        lambda: differences_lines(changes),
        *lines,
        say=say,
    )


OBJECTS = ("payload", "labels", "retry", "alerts", "requires")
"""One member of these can be named: `payload.year=2030`."""

NUMBERS = (
    "callback_timeout_sec",
    "priority",
    "shards",
    "max_concurrency",
    "queue_depth",
    "catch_up_cap",
    "burst",
    "rate",
)


def fields_of_words(
    words: Sequence[str], option: str, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields that are named; `field=` alone takes one back to its default.

    Members go over those of `before`. Without it the fields are a change to something that exists: a member
    that is taken away is null."""
    fields: dict[str, Any] = {}
    for word in words:
        name, value = member_from(word, option)
        field, dot, member = name.partition(".")
        if not dot:
            fields[field] = _value(field, value)
            continue
        if field not in OBJECTS or not member:
            raise click.BadParameter(
                f"{name}: only {', '.join(OBJECTS)} have members, as in payload.year=2030", param_hint=option
            )
        members = dict(fields.get(field, (before or {}).get(field)) or {})
        if value == "" and before is None:
            members[member] = None
        elif value == "":
            members.pop(member, None)
        else:
            members[member] = value if field in ("labels", "requires") else json_or_text(value)
        fields[field] = members
    return fields


def policy_of_words(words: Sequence[str], option: str) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in (member_from(word, option) for word in words)}


def _value(field: str, text: str) -> Any:
    """JSON where the field takes it; a name that looks like a number stays a name."""
    if text == "":
        return None
    if field in OBJECTS or field in NUMBERS:
        return json_or_text(text)
    if field == "after":
        parsed = json_or_text(text)
        return parsed if isinstance(parsed, list) else [name.strip() for name in text.split(",")]
    return text
