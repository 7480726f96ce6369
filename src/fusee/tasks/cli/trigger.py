"""`fusee task trigger`, `restart` and `backfill`: fires outside the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fusee.runs.cli.steer import ended
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.inputs import object_from
from fusee.surfaces.cli.moments import TIMES, moment, now_us, time_text, times_table
from fusee.surfaces.cli.options import KEY, WaitOption, option, reasoned, waits
from fusee.surfaces.cli.output import Out
from fusee.tasks.cli.look import zone_of
from fusee.values.fields import shown

if TYPE_CHECKING:
    from fusee.runs.service.runs import RunOperations
    from fusee.tasks.service.tasks import TaskOperations
    from fusee.tasks.store.backfills import Backfilled
    from fusee.tasks.store.triggers import Triggered

__all__ = ["backfill", "restart", "trigger"]

DECIDED = {"run": "runs", "queue": "is queued", "skip": "was skipped", "miss": "was missed"}
NAME = click.argument("name", metavar="NAME")
SHOWN = 20
A_PAGE = 1000


@command()
@NAME
@option("--payload JSON", "Goes over the task's own: JSON, @FILE, or - for stdin.")
@option("-p members KEY=VALUE", "One argument, as JSON or text.", multiple=True)
@KEY
@reasoned("triggered by hand", kept="the fire")
@waits
async def trigger(
    tasks: TaskOperations, runs: RunOperations, out: Out, /, name: str, payload: str | None,
    members: tuple[str, ...], key: str | None, reason: str, wait: WaitOption | None,
) -> Answer:  # fmt: skip
    """Fire a task now, under its policies.

    It may be skipped or queued, as any other fire; the answer has the rule that decided. It does not wait for
    the tasks that a scheduled fire waits for. A paused task can be triggered, a disabled one cannot.

    Example:
      fusee task trigger nightly --wait
      fusee task trigger report -p year=2030 --key report-2030
    """
    given = object_from(payload, members)
    fired = await tasks.trigger(name, payload=given, idempotency_key=key, reason=reason)
    return await _fired(runs, out, name, fired, wait)


@command()
@NAME
@KEY
@waits
async def restart(
    tasks: TaskOperations,
    runs: RunOperations,
    out: Out,
    /,
    name: str,
    key: str | None,
    wait: WaitOption | None,
) -> Answer:
    """Run the last fire of a task again, under its policies.

    All of its shards, with the payload and the logical time of that fire, also when it succeeded. A fire that
    the policies would skip is refused; a running one is not stopped: `fusee run cancel` does that.

    Example: fusee task restart nightly --wait
    """
    return await _fired(runs, out, name, await tasks.restart(name, idempotency_key=key), wait)


async def _fired(
    runs: RunOperations, out: Out, name: str, fired: Triggered, wait: WaitOption | None
) -> Answer:
    ids = list(fired.run_ids)
    which = f"run {ids[0]}" if len(ids) == 1 else f"{len(ids)} runs from {ids[0]} on"
    line = f"{name} {DECIDED[fired.decision]}: {which}; {fired.rule}"
    if wait is not None:
        out.say(line)
        return await ended(runs, out, ids, wait)
    known = "this key was used before: that is its fire, nothing new"
    return Answer(shown(fired), line, say=[] if fired.created else [known])


@command()
@NAME
@option("--from begin TIME", f"The first: {TIMES}.", required=True)
@option("--to end TIME", "The last.", default="now", show_default=True)
@option("--concurrency N", "Fires at once.", type=int, default=1, show_default=True)
@option("--dry-run", "Only show which times would run.")
@KEY
@waits
async def backfill(
    tasks: TaskOperations, runs: RunOperations, out: Out, /, name: str, begin: str, end: str,
    key: str | None, wait: WaitOption | None, **how: Any,
) -> Answer:  # fmt: skip
    """Run the fires of a past period that did not run, oldest first.

    Fires that ran before are left alone. Backfilled fires do not count against the task's own cap, and its
    policies do not decide about them; the schedule continues beside them. Look first, with --dry-run.

    Example:
      fusee task backfill nightly --from 2027-01-01 --to 2027-01-31 --dry-run
      fusee task backfill nightly --from 2027-01-01 --to 2027-01-31 --concurrency 4 --wait
    """
    zone, now = zone_of(await tasks.get(name)), now_us()
    first, last = moment(begin, zone, now, "--from"), moment(end, zone, now, "--to")
    made = await tasks.backfill(name, first, last, idempotency_key=key, **how)
    if wait is not None and made.id is not None:
        out.say(f"backfill {made.id}: {len(made.times)} fires, {made.concurrency} at once")
        return await ended(runs, out, await _run_ids(tasks, name, made), wait)
    data = shown(made)
    left = f"; {made.left} ran before and are left alone" if made.left else ""
    if not made.times:
        return Answer(data, f"nothing to make up for{left}")
    what = "would run" if made.id is None else f"backfill {made.id}: {made.concurrency} at once,"
    lines: list[Any] = [f"{what} {len(made.times)} fires{left}", ""]
    lines.append(lambda: times_table(made.times[:SHOWN], zone, now))
    if len(made.times) > SHOWN:
        lines.append(f"… and {len(made.times) - SHOWN} more, the last at {time_text(made.times[-1])}")
    return Answer(data, *lines, say=[f"follow it: fusee task runs {name}"] if made.id is not None else [])


async def _run_ids(tasks: TaskOperations, name: str, made: Backfilled) -> list[int]:
    """The runs of a backfill, oldest first."""
    from fusee.tasks.store.history import FireFilter

    ids: list[int] = []
    before: tuple[int, int] | None = None
    while True:
        wanted = FireFilter(since=made.times[0], until=made.times[-1], before=before, limit=A_PAGE)
        page = await tasks.fires(name, wanted)
        ids += [fire.run_id for fire in page if fire.backfill_id == made.id]
        if len(page) < A_PAGE:
            return ids[::-1]
        before = page[-1].fire_time, page[-1].shard
