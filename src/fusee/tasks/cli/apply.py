"""`fusee task apply` and `fusee task diff`: tasks as code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fusee.surfaces.cli.documents import Document, read_documents
from fusee.surfaces.cli.exits import Failure, failure_of
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out
from fusee.tasks.cli.plan import changed, lines_of, plan_object, summary

if TYPE_CHECKING:
    from fusee.tasks.service.apply import Change

__all__ = ["apply", "diff"]

CHANGES = 2
"""The exit code for "there are changes", as of `diff` and `terraform plan`."""

FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True)
PRUNE = click.option("--prune", is_flag=True, help="Also delete the group's tasks that no file has.")
GROUP = click.option(
    "--group",
    metavar="NAME",
    default="default",
    show_default=True,
    help="Whose tasks these are, for --prune.",
)
UNKNOWN = click.option("--allow-unknown", is_flag=True, help="Also for handlers that no worker has had yet.")
EXIT_CODE = click.option("--exit-code", is_flag=True, help="Exit 2 when there are changes, for CI.")


@click.command(cls=Command)
@FILES
@PRUNE
@GROUP
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@EXIT_CODE
@UNKNOWN
@click.pass_context
def apply(
    context: click.Context,
    files: tuple[str, ...],
    prune: bool,
    group: str,
    dry_run: bool,
    exit_code: bool,
    allow_unknown: bool,
) -> None:
    """Make the tasks what files say: create, update and, with --prune, delete.

    A file is YAML (a list under `tasks:`, a list, or one task; also several documents), JSON or TOML; - is
    standard input. A field that a file leaves out has its default. All files are checked before anything is
    written; applying them again changes nothing. A task that someone paused stays paused.

    --prune looks only at tasks that were applied under the same --group before; tasks made in other ways are
    never deleted. With --prune a task that others made is taken over into the group.

    Example:
      fusee task apply tasks.yaml --dry-run
      fusee task apply tasks/*.yaml --prune --group billing
      fusee task export | ssh other fusee task apply -
    """
    if exit_code and not dry_run:
        raise click.UsageError("--exit-code goes with --dry-run")
    drive(_apply(Shared.of(context), Out.of(context), files, prune, group, dry_run, exit_code, allow_unknown))


@click.command(cls=Command)
@FILES
@PRUNE
@GROUP
@EXIT_CODE
@UNKNOWN
@click.pass_context
def diff(
    context: click.Context,
    files: tuple[str, ...],
    prune: bool,
    group: str,
    exit_code: bool,
    allow_unknown: bool,
) -> None:
    """Show what `fusee task apply` would change, field by field.

    The same as `fusee task apply --dry-run`: nothing is written.

    Example:
      fusee task diff tasks.yaml
      fusee task diff tasks.yaml --prune --exit-code || echo "there is something to apply"
    """
    drive(_apply(Shared.of(context), Out.of(context), files, prune, group, True, exit_code, allow_unknown))


async def _apply(
    shared: Shared,
    out: Out,
    files: tuple[str, ...],
    prune: bool,
    group: str,
    dry_run: bool,
    exit_code: bool,
    allow_unknown: bool,
) -> None:
    from fusee.tasks.service import apply as service

    documents = _read(files)
    fields = [document.fields for document in documents]
    written = {str(one.get("name")): one for one in fields}
    done: list[Change] = []

    def tell(change: Change) -> None:
        done.append(change)
        if not out.json and change.action != "unchanged":
            out.show(*lines_of(change, written.get(change.name)))

    async with opened(shared, create=not dry_run) as app:
        if dry_run:
            for change in await service.plan(
                app.tasks, fields, group=group, prune=prune, allow_unknown=allow_unknown
            ):
                tell(change)
        else:
            try:
                await service.apply(
                    app.tasks, fields, group=group, prune=prune, allow_unknown=allow_unknown, tell=tell
                )
            except Exception as error:
                failure = failure_of(error)
                if failure is None or not changed(done):
                    raise
                raise Failure(
                    f"{failure} ({summary(done, done=True)} before that: apply again when it is mended)",
                    failure.exit,
                    kind=failure.kind,
                ) from error
    if out.json:
        out.data(plan_object(done, dry_run=dry_run))
    else:
        out.show(summary(done, done=not dry_run))
    if exit_code and changed(done):
        raise click.exceptions.Exit(CHANGES)


def _read(files: tuple[str, ...]) -> list[Document]:
    """Every task that is wrong is told with its file and line before anything is asked of the database."""
    from fusee.errors import Invalid
    from fusee.tasks.service.documents import read_document

    documents = read_documents(files, "task")
    for document in documents:
        if "template" in document.fields:
            continue  # what it is, the store knows
        try:
            read_document(document.fields)
        except Invalid as error:
            raise document.refused(error) from None
    return documents
