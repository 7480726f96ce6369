"""`fusee workflow create`, `apply` and `delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out
from fusee.workflows.cli.files import WorkflowDocument, read_workflows
from fusee.workflows.cli.shapes import workflow_object

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.workflows.model.workflow import Workflow

__all__ = ["apply", "create", "delete"]

UNKNOWN = click.option("--allow-unknown", is_flag=True, help="Also for handlers that no worker has had yet.")


@click.command(cls=Command)
@click.argument("file", metavar="FILE")
@UNKNOWN
@click.pass_context
def create(context: click.Context, file: str, allow_unknown: bool) -> None:
    """Make a workflow from a file; refused when its name is taken.

    The file is YAML, JSON or TOML (- reads standard input): a workflow with its name, params and nodes, or a
    list of workflows. A circle is refused with the nodes that close it.

    Example: fusee workflow create nightly.yaml
    """
    drive(_write(Shared.of(context), Out.of(context), [file], allow_unknown, new=True))


@click.command(cls=Command)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@UNKNOWN
@click.pass_context
def apply(context: click.Context, files: tuple[str, ...], allow_unknown: bool) -> None:
    """Make workflows what files say: create them, or change them.

    Applying the same file again changes nothing. What was started before goes on as it was started.

    Example: fusee workflow apply flows/*.yaml
    """
    drive(_write(Shared.of(context), Out.of(context), files, allow_unknown, new=False))


async def _write(
    shared: Shared, out: Out, files: tuple[str, ...] | list[str], allow_unknown: bool, *, new: bool
) -> None:
    documents = [document for file in files for document in read_workflows(file)]
    done: list[dict[str, Any]] = []
    async with opened(shared, create=True) as app:
        for document in documents:
            workflow, what = await _write_one(app, document, allow_unknown, new)
            done.append({"action": what, **workflow_object(workflow)})
            if not out.json:
                many = f"{workflow.nodes} node{'s' * (workflow.nodes > 1)}"
                out.show(f"workflow {workflow.name} {what}: version {workflow.version}, {many}")
    if out.json:
        out.data(done[0] if new and len(done) == 1 else {"items": done})
    elif new and len(done) == 1:
        out.say(f"start it: fusee workflow start {done[0]['name']}")


async def _write_one(
    app: Fusee, document: WorkflowDocument, allow_unknown: bool, new: bool
) -> tuple[Workflow, str]:
    from fusee.errors import Invalid

    try:
        if new:
            return await app.workflows.create(document.fields, allow_unknown=allow_unknown), "created"
        return await app.workflows.apply(document.fields, allow_unknown=allow_unknown)
    except Invalid as error:
        raise document.refused(error) from None


@click.command(cls=Command)
@click.argument("name")
@click.option("--version", metavar="N", type=int, help="Only if it is at this version still.")
@click.pass_context
def delete(context: click.Context, name: str, version: int | None) -> None:
    """Delete a workflow; what was started goes on, and its name is free again.

    Example: fusee workflow delete nightly
    """
    drive(_delete(Shared.of(context), Out.of(context), name, version))


async def _delete(shared: Shared, out: Out, name: str, version: int | None) -> None:
    async with opened(shared) as app:
        await app.workflows.delete(name, version=version)
    if out.json:
        out.data({"name": name, "deleted": True})
    else:
        out.show(f"workflow {name} deleted")
