"""`fusee task edit`."""

from __future__ import annotations

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import task_object
from fusee.tasks.cli.plan import differences_lines
from fusee.tasks.cli.view import show_next
from fusee.tasks.cli.words import fields_of_words

__all__ = ["edit"]


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@click.argument("words", metavar="FIELD=VALUE...", nargs=-1, required=True)
@click.option("--version", "at_version", metavar="N", type=int, help="Only if it is at this version still.")
@click.option("--allow-unknown", is_flag=True, help="Also for a handler that no worker has had yet.")
@click.pass_context
def edit(
    context: click.Context, name: str, words: tuple[str, ...], at_version: int | None, allow_unknown: bool
) -> None:
    """Change fields of a task; what is not named stays as it is.

    FIELD= with nothing behind it takes a field back to its default. One member of payload, labels, retry or
    alerts is named with a dot; an object as JSON changes the members that it names. A new schedule goes from
    now on; fires that are under way are left alone.

    When someone else changed the task in between, the edit is refused with exit code 4: nothing is lost
    without a word. --version says which version you looked at.

    Example:
      fusee task edit nightly cron="0 4 * * *" timezone=Europe/Berlin
      fusee task edit nightly payload.days=30 retry.max_attempts=5 description=
      fusee task edit poll overlap_action=SKIP max_concurrency=2 --version 7
      fusee task edit poll target_url=https://example.com/v2/poll
    """
    drive(_edit(Shared.of(context), Out.of(context), name, words, at_version, allow_unknown))


async def _edit(
    shared: Shared, out: Out, name: str, words: tuple[str, ...], version: int | None, allow_unknown: bool
) -> None:
    from fusee.tasks.service.fields import fields_from

    async with opened(shared) as app:
        before = await app.tasks.get(name)
        fields = fields_of_words(words, "FIELD=VALUE")
        task = await app.tasks.change(
            name, fields, version=before.version if version is None else version, allow_unknown=allow_unknown
        )
        if out.json:
            out.data(task_object(task, app.tasks.upcoming(task)))
            return
        was, now = fields_from(before.spec), fields_from(task.spec)
        out.show(f"{task.name} is at version {task.version}")
        out.show(
            *differences_lines([(field, was[field], now[field]) for field in now if was[field] != now[field]])
        )
        if before.next_fire_at != task.next_fire_at:
            show_next(out, app, task)
