"""`fusee workflow`: create, apply, start, wait, cancel, run again, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command, steer
from fusee.surfaces.cli.documents import Document, read_documents
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.follow import progress
from fusee.surfaces.cli.inputs import object_from
from fusee.surfaces.cli.options import (
    ALLOW_UNKNOWN,
    KEY,
    TIMEOUT,
    VERSION,
    Group,
    WaitOption,
    option,
    reasoned,
    waits,
)
from fusee.surfaces.cli.output import Out
from fusee.values.fields import shown
from fusee.workflows.cli.look import RUNS, WORKFLOWS, list_workflows, runs, show

if TYPE_CHECKING:
    from fusee.workflows.model.workflow import Workflow
    from fusee.workflows.model.workflow_run import WorkflowRun
    from fusee.workflows.service import WorkflowOperations
    from fusee.workflows.store.start import StartedWorkflow

__all__ = ["workflow"]

RUN_ID = click.argument("workflow_run_id", metavar="ID", type=click.IntRange(1))


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
    list of workflows. A cycle is refused with the nodes that close it.

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


@command()
@click.argument("name")
@option("--params JSON", "The parameters: JSON, @FILE, or - for stdin.")
@option("-p members KEY=VALUE", "One parameter, as JSON or text.", multiple=True)
@KEY
@waits
async def start(
    workflows: WorkflowOperations, out: Out, /, name: str, params: str | None, members: tuple[str, ...],
    key: str | None, wait: WaitOption | None,
) -> Answer:  # fmt: skip
    """Start a workflow: all of its nodes in one transaction, or none.

    Nodes that wait for nothing can be claimed at once; the others are blocked until the nodes that they wait
    for have ended.

    Example: fusee workflow start nightly -p day=2026-11-15 --wait
    """
    given = object_from(params, members, "--params") or {}
    return await _started(workflows, out, await workflows.start(name, given, idempotency_key=key), wait)


async def _started(
    workflows: WorkflowOperations, out: Out, started: StartedWorkflow, wait: WaitOption | None
) -> Answer:
    number = started.id
    if wait is not None:
        out.say(f"workflow run {number}{'' if started.created else ', started before with this key'}")
        return await _ended(workflows, out, number, wait)
    known = "this key was used before: that is its workflow run, nothing new"
    follow = f"follow it: fusee workflow wait {number}, fusee workflow show --run {number}"
    data = {"id": number, "created": started.created}
    return Answer(data, str(number), say=["started" if started.created else known, follow])


@command()
@RUN_ID
@TIMEOUT
async def wait(
    workflows: WorkflowOperations, out: Out, /, workflow_run_id: int, timeout: float | None
) -> Answer:
    """Wait until a workflow run has ended, with a bar that shows its progress.

    Exits 0 when it succeeded, 5 when it ended in another way, 124 when it did not end within --timeout.

    Example: fusee workflow wait 17 --timeout 2h && echo done
    """
    return await _ended(workflows, out, workflow_run_id, WaitOption(timeout))


async def _ended(workflows: WorkflowOperations, out: Out, workflow_run_id: int, wait: WaitOption) -> Answer:
    with progress(out) as update:

        def seen(run: WorkflowRun) -> None:
            update(f"{run.workflow}{f', {run.failed} failed' * bool(run.failed)}", run.ended, run.total)

        run = await workflows.wait(workflow_run_id, wait.timeout, seen=seen)
    return RUNS.one(run, exit=Exit.OK if run.status == "succeeded" else Exit.UNSUCCESSFUL)


@steer(RUNS, "workflow_run_id")
@reasoned("canceled by request", kept="every node")
async def cancel(workflows: WorkflowOperations, /, workflow_run_id: int, reason: str) -> Answer:
    """Cancel a workflow run; when this returns, no node of it will start any more.

    Nodes that have not started end at once. Running ones are told to stop within two seconds; `fusee workflow
    wait` waits until all have ended.

    Example: fusee workflow cancel 17 --reason "wrong day"
    """
    answer = await workflows.cancel(workflow_run_id, reason)
    told = f", {answer.told} running node{'s' * (answer.told != 1)} told to stop" if answer.told else ""
    data = {**shown(answer.run), "told": answer.told}
    return Answer(data, f"workflow run {workflow_run_id} canceled{told}")


@command()
@RUN_ID
@KEY
@waits
async def rerun(
    workflows: WorkflowOperations, out: Out, /, workflow_run_id: int, key: str | None, wait: WaitOption | None
) -> Answer:
    """Run the nodes that did not succeed again, as a new workflow run.

    Their payloads are those of the first time; nodes that succeeded are not waited for again.

    Example: fusee workflow rerun 17 --wait
    """
    return await _started(workflows, out, await workflows.rerun(workflow_run_id, idempotency_key=key), wait)


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
