"""`fusee workflow`, with `create`, `apply` and `delete`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command, steer
from fusee.surfaces.cli.documents import Document, read_documents
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.options import ALLOW_UNKNOWN, KEY, VERSION, Group
from fusee.values.fields import shown
from fusee.workflows.cli.look import WORKFLOWS, list_workflows, runs, show
from fusee.workflows.cli.start import cancel, rerun, start, wait

if TYPE_CHECKING:
    from fusee.workflows.model.workflow import Workflow
    from fusee.workflows.service import WorkflowOperations

__all__ = ["workflow"]


@click.group(cls=Group)
def workflow() -> None:
    """Define workflows, start them, follow them, stop them.

    A workflow is a named graph of nodes that is started as one. A node is a run that waits for others.

    Example:
      fusee workflow apply nightly.yaml
      fusee workflow start nightly -p day=2026-11-15 --wait
      fusee workflow runs nightly
    """


@command(create=True)
@click.argument("file", metavar="FILE")
@ALLOW_UNKNOWN
@KEY
async def create(workflows: WorkflowOperations, /, file: str, key: str | None, allow_unknown: bool) -> Answer:
    """Create a workflow from a file; refused when its name is taken.

    The file is YAML, JSON or TOML (- reads standard input): a workflow with its name, params and nodes, or a
    list of workflows. A circle is refused with the nodes that close it.

    Example: fusee workflow create nightly.yaml
    """

    async def made(fields: dict[str, Any]) -> tuple[Workflow, str]:
        return (await workflows.create_once(key, fields, allow_unknown=allow_unknown))[0], "created"

    documents = _read([file])
    if key is not None and len(documents) > 1:
        raise click.UsageError("--key goes with one workflow, not with several")
    done = await _write(documents, made)
    hint = f"start it: fusee workflow start {done[0][0].name}"
    return _answer(done, alone=len(done) == 1, say=[hint] if len(done) == 1 else [])


@command(create=True)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@ALLOW_UNKNOWN
async def apply(workflows: WorkflowOperations, /, files: Sequence[str], allow_unknown: bool) -> Answer:
    """Make workflows what files say: create them, or change them.

    Applying the same file again changes nothing. What was started before continues as it was started.

    Example: fusee workflow apply flows/*.yaml
    """
    done = await _write(_read(files), lambda fields: workflows.apply(fields, allow_unknown=allow_unknown))
    return _answer(done)


Written = list[tuple["Workflow", str]]


def _read(files: Sequence[str]) -> list[Document]:
    documents = read_documents(files, "workflow")
    if not documents:
        raise Failure(f"{', '.join(files)} holds no workflow", Exit.REFUSED)
    return documents


async def _write(
    documents: Sequence[Document], write: Callable[[dict[str, Any]], Awaitable[tuple[Workflow, str]]]
) -> Written:
    from fusee.errors import Invalid

    done: Written = []
    for document in documents:
        try:
            done.append(await write(document.fields))
        except Invalid as error:
            raise document.refused(error) from None
    return done


def _answer(done: Written, *, alone: bool = False, say: Sequence[str] = ()) -> Answer:
    items = [{"action": what, **shown(workflow)} for workflow, what in done]
    lines = (
        f"workflow {one.name} {what}: version {one.version}, {one.nodes} node{'s' * (one.nodes > 1)}"
        for one, what in done
    )
    return Answer(items[0] if alone else {"items": items}, *lines, say=say)


@steer(WORKFLOWS, "name", "NAME")
@VERSION
async def delete(workflows: WorkflowOperations, /, name: str, version: int | None) -> Answer:
    """Delete a workflow; its runs continue, and its name is free again.

    Example: fusee workflow delete nightly
    """
    await workflows.delete(name, version=version)
    return Answer({"name": name, "deleted": True}, f"workflow {name} deleted")


for command_ in (create, apply, list_workflows, show, start, runs, wait, cancel, rerun, delete):
    workflow.add_command(command_)
