"""`fusee task apply`, `diff` and `export`: tasks as code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.documents import Document, read_documents, write_document
from fusee.surfaces.cli.exits import Failure, failure_of
from fusee.surfaces.cli.options import ALLOW_UNKNOWN, Shared, option
from fusee.surfaces.cli.output import Out, clean
from fusee.tasks.cli.look import value_text
from fusee.values.fields import shown

if TYPE_CHECKING:
    from rich.text import Text

    from fusee.tasks.model.task import Task
    from fusee.tasks.service.apply import Change, Difference
    from fusee.tasks.service.tasks import TaskOperations

__all__ = ["apply", "diff", "differences_lines", "export"]

CHANGES = 2
"""The exit code for "there are changes", as of `diff` and `terraform plan`."""
A_PAGE = 500
MARKS = {
    "create": ("+", "green"),
    "update": ("~", "yellow"),
    "enable": ("~", "yellow"),
    "disable": ("~", "yellow"),
    "delete": ("-", "red"),
    "unchanged": ("=", "dim"),
}


FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True)
PRUNE = option("--prune", "Also delete tasks of the group that are in no file.")
GROUP = option(
    "--group NAME", "The group that these tasks belong to, for --prune.", default="default", show_default=True
)
EXIT_CODE = option("--exit-code", "Exit 2 when there are changes, for CI.")


@command()
@FILES
@PRUNE
@GROUP
@option("--dry-run", "Only show what would change.")
@EXIT_CODE
@ALLOW_UNKNOWN
async def apply(
    shared: Shared, out: Out, /, files: Sequence[str], dry_run: bool, exit_code: bool, **how: Any
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
    await _apply(shared, out, files, dry_run, exit_code, how)


@command()
@FILES
@PRUNE
@GROUP
@EXIT_CODE
@ALLOW_UNKNOWN
async def diff(shared: Shared, out: Out, /, files: Sequence[str], exit_code: bool, **how: Any) -> None:
    """Show what `fusee task apply` would change, field by field.

    The same as `fusee task apply --dry-run`: nothing is written.

    Example:
      fusee task diff tasks.yaml
      fusee task diff tasks.yaml --prune --exit-code || echo "there is something to apply"
    """
    await _apply(shared, out, files, True, exit_code, how)


async def _apply(
    shared: Shared, out: Out, files: Sequence[str], dry_run: bool, exit_code: bool, how: dict[str, Any]
) -> None:
    """Checks all files before it opens the database, and tells each change as it is made."""
    from fusee.tasks.service import apply as service

    fields = [document.fields for document in _read(files)]
    written = {str(one.get("name")): one for one in fields}
    done: list[Change] = []

    def tell(change: Change) -> None:
        done.append(change)
        if not out.json and change.action != "unchanged":
            out.show(*_lines(change, written.get(change.name)))

    async with shared.opened(create=not dry_run) as app:
        if dry_run:
            for change in await service.plan(app.tasks, fields, **how):
                tell(change)
        else:
            try:
                await service.apply(app.tasks, fields, tell=tell, **how)
            except Exception as error:
                failure = failure_of(error)
                if failure is None or not _changed(done):
                    raise
                raise Failure(
                    f"{failure} ({_summary(done, done=True)} before that: apply again when it is fixed)",
                    failure.exit,
                    kind=failure.kind,
                ) from error
    data = {"dry_run": dry_run, "changes": [shown(change) for change in done]}
    Answer(data, _summary(done, done=not dry_run)).print(out)
    if exit_code and _changed(done):
        raise click.exceptions.Exit(CHANGES)


def _read(files: Sequence[str]) -> list[Document]:
    """Refuses a wrong task with its file and line before the database is opened."""
    from fusee.errors import Invalid
    from fusee.tasks.service.apply import read_document

    documents = read_documents(files, "task")
    for document in documents:
        if "template" in document.fields:
            continue  # what it is, the store knows
        try:
            read_document(document.fields)
        except Invalid as error:
            raise document.refused(error) from None
    return documents


@command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
async def export(tasks: TaskOperations, /, names: Sequence[str]) -> Answer:
    """Print tasks as YAML that `fusee task apply` takes; all of them, or those that are named.

    Fields that have their default are left out. Applying what was exported changes nothing; applying it to
    another database makes the same tasks there. With --json it is JSON, which apply takes too.

    Example:
      fusee task export > tasks.yaml
      fusee task export nightly report
    """
    from fusee.tasks.service.apply import document_of

    found = [await tasks.get(name) for name in names] if names else await _all(tasks)
    document = {"tasks": [document_of(task) for task in found]}
    note = "# fusee task apply FILE makes these tasks; fusee task diff FILE shows what that would change."
    return Answer(document, lambda: click.echo(f"{note}\n{write_document(document)}", nl=False))


async def _all(tasks: TaskOperations) -> list[Task]:
    from fusee.tasks.store.tasks import TaskFilter

    found: list[Task] = []
    while page := await tasks.list(TaskFilter(after=found[-1].name if found else None, limit=A_PAGE)):
        found += page
    return found


def _changed(changes: Iterable[Change]) -> bool:
    return any(change.action != "unchanged" for change in changes)


def _lines(change: Change, written: Mapping[str, Any] | None) -> list[Text]:
    """One line for the task, and one for each field that changes; `written` is what a new one is made of."""
    from rich.text import Text

    mark, style = MARKS[change.action]
    lines = [Text(f"{mark} {clean(change.name)}", style) + Text(f"  {change.action}", "dim")]
    if change.action == "create":
        fields = [(name, value) for name, value in (written or {}).items() if name != "name"]
        width = max((len(name) for name, _ in fields), default=0)
        return lines + [Text(f"    {name:{width}}  {clean(value_text(value))}") for name, value in fields]
    return lines + differences_lines(change.differences)


def differences_lines(differences: Sequence[Difference]) -> list[Text]:
    """`    every  15m → 1h`."""
    from rich.text import Text

    width = max((len(one.field) for one in differences), default=0)
    return [
        Text(f"    {one.field:{width}}  ")
        + Text(clean(_value(one.field, one.before)), "red")
        + Text(" → ")
        + Text(clean(_value(one.field, one.after)), "green")
        for one in differences
    ]


def _value(field: str, value: Any) -> str:
    from fusee.tasks.service.apply import DURATIONS
    from fusee.values.durations import duration_text

    if field in DURATIONS and isinstance(value, float):
        return duration_text(value)
    return value_text(value)


def _summary(changes: Sequence[Change], *, done: bool) -> str:
    """`2 created, 1 updated, 4 unchanged`."""
    words = {
        "create": ("to create", "created"),
        "update": ("to update", "updated"),
        "enable": ("to enable", "enabled"),
        "disable": ("to disable", "disabled"),
        "delete": ("to delete", "deleted"),
        "unchanged": ("unchanged", "unchanged"),
    }
    counts = Counter(change.action for change in changes)
    return ", ".join(f"{counts[a]} {words[a][done]}" for a in words if counts[a]) or "no tasks"
