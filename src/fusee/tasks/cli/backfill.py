"""`fusee task backfill`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fusee.runs.cli.steer import ended
from fusee.surfaces.cli.moments import TIMES, moment, times_table
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, Wait, duration
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import time_text
from fusee.tasks.cli.view import zone_of

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.tasks.store.triggers import Backfilled

__all__ = ["backfill"]

SHOWN = 20
A_PAGE = 1000


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.option("--from", "begin", metavar="TIME", required=True, help=f"The first: {TIMES}.")
@click.option("--to", "end", metavar="TIME", default="now", show_default=True, help="The last.")
@click.option("--concurrency", metavar="N", type=int, default=1, show_default=True, help="Of them at once.")
@click.option("--dry-run", is_flag=True, help="Only tell which times would run.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key backfills once only.")
@click.option("--wait", "-w", is_flag=True, help="Wait for all; exit 5 when one is no success.")
@click.option("--wait-timeout", metavar="TIME", callback=duration(), help="With --wait: exit 124 after this.")
@click.pass_context
def backfill(context: click.Context, /, name: str, **given: Any) -> None:
    """Run the fires of a stretch of the past that did not run, oldest first.

    Those that ran before are left alone. They do not count against the task's own cap, and the schedule goes
    on beside them; the task's policies do not decide about them. Look first, with --dry-run.

    Example:
      fusee task backfill nightly --from 2027-01-01 --to 2027-01-31 --dry-run
      fusee task backfill nightly --from 2027-01-01 --to 2027-01-31 --concurrency 4 --wait
    """
    drive(_backfill(Shared.of(context), Out.of(context), name, given))


async def _backfill(shared: Shared, out: Out, name: str, given: dict[str, Any]) -> None:
    async with opened(shared) as app:
        zone, now = zone_of(await app.tasks.get(name)), app.clock.now_us()
        begin, end = moment(given["begin"], zone, now, "--from"), moment(given["end"], zone, now, "--to")
        made = await app.tasks.backfill(
            name,
            begin,
            end,
            concurrency=given["concurrency"],
            dry_run=given["dry_run"],
            idempotency_key=given["key"],
        )
        if given["wait"] and made.id is not None:
            out.say(f"backfill {made.id}: {len(made.times)} fires, {made.concurrency} at once")
            run_ids = await _run_ids(app, name, made)
            (await ended(app.runs, out, run_ids, Wait(given["wait_timeout"]))).print(out)
            return
    if out.json:
        out.data(
            {
                "id": made.id,
                "created": made.created and made.id is not None,
                "concurrency": made.concurrency,
                "count": len(made.times),
                "left": made.left,
                "fires": [time_text(at) for at in made.times],
            }
        )
        return
    left = f"; {made.left} ran before and are left alone" if made.left else ""
    if not made.times:
        out.show(f"nothing to make up for{left}")
        return
    what = "would run" if made.id is None else f"backfill {made.id}: {made.concurrency} at once,"
    out.show(f"{what} {len(made.times)} fires{left}", "", times_table(made.times[:SHOWN], zone, now))
    if len(made.times) > SHOWN:
        out.show(f"… and {len(made.times) - SHOWN} more, the last at {time_text(made.times[-1])}")
    if made.id is not None:
        out.say(f"follow it: fusee task runs {name}")


async def _run_ids(app: Fusee, name: str, made: Backfilled) -> list[int]:
    """The runs of a backfill, oldest first."""
    from fusee.tasks.store.history import FireFilter

    ids: list[int] = []
    before: tuple[int, int] | None = None
    while True:
        wanted = FireFilter(since=made.times[0], until=made.times[-1], before=before, limit=A_PAGE)
        page = await app.tasks.fires(name, wanted)
        ids += [fire.run_id for fire in page if fire.backfill_id == made.id]
        if len(page) < A_PAGE:
            return ids[::-1]
        before = page[-1].fire_time, page[-1].shard
