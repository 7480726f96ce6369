"""`fusee task export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.tasks.model.task import Task

__all__ = ["export"]

A_PAGE = 500


@click.command(cls=Command)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.pass_context
def export(context: click.Context, names: tuple[str, ...]) -> None:
    """Print tasks as YAML that `fusee task apply` takes; all of them, or those that are named.

    What is as by default is left out. Applying what was exported changes nothing; applying it to another
    database makes the same tasks there. With --json it is JSON, which apply takes too.

    Example:
      fusee task export > tasks.yaml
      fusee task export nightly report
    """
    drive(_export(Shared.of(context), Out.of(context), names))


async def _export(shared: Shared, out: Out, names: tuple[str, ...]) -> None:
    from fusee.tasks.service.documents import document_of

    async with opened(shared) as app:
        tasks = [await app.tasks.get(name) for name in names] if names else await _all(app)
    document = {"tasks": [document_of(task) for task in tasks]}
    if out.json:
        out.data(document)
        return
    from fusee.surfaces.cli.documents import write_document

    click.echo(
        "# fusee task apply FILE makes these tasks; fusee task diff FILE shows what that would change."
    )
    click.echo(write_document(document), nl=False)


async def _all(app: Fusee) -> list[Task]:
    from fusee.tasks.store.tasks import TaskFilter

    found: list[Task] = []
    while page := await app.tasks.list(TaskFilter(after=found[-1].name if found else None, limit=A_PAGE)):
        found += page
    return found
