"""`fusee workflow start`, `wait`, `cancel` and `rerun`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.inputs import json_or_text, member_from, text_of
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, duration
from fusee.surfaces.cli.output import Out, human
from fusee.workflows.cli.shapes import workflow_run_object

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.workflows.model.workflow_run import WorkflowRun

__all__ = ["cancel", "rerun", "start", "wait"]

RUN_ID = click.argument("workflow_run_id", metavar="ID", type=click.IntRange(1))
KEY = click.option("--key", metavar="TEXT", help="Idempotency key: the same key starts it once only.")
WAIT = click.option(
    "--wait", "-w", "waits", is_flag=True, help="Wait for the end; exit 5 when it is no success."
)
WAIT_TIMEOUT = click.option(
    "--wait-timeout", metavar="TIME", callback=duration(), help="With --wait: exit 124 after this."
)


@click.command(cls=Command)
@click.argument("name")
@click.option("--params", metavar="JSON", help="The parameters: JSON, @FILE, or - for stdin.")
@click.option(
    "-p", "members", metavar="KEY=VALUE", multiple=True, help="One parameter; JSON where it is, else text."
)
@KEY
@WAIT
@WAIT_TIMEOUT
@click.pass_context
def start(
    context: click.Context,
    name: str,
    params: str | None,
    members: tuple[str, ...],
    key: str | None,
    waits: bool,
    wait_timeout: float | None,
) -> None:
    """Start a workflow: all of its nodes in one transaction, or none.

    Nodes that wait for nothing can be claimed at once; the others are blocked until those that they wait for
    have ended.

    Example: fusee workflow start nightly -p day=2026-11-15 --wait
    """
    given = _params(params, members)
    drive(_start(Shared.of(context), Out.of(context), name, given, key, waits, wait_timeout))


async def _start(
    shared: Shared,
    out: Out,
    name: str,
    params: dict[str, Any],
    key: str | None,
    waits: bool,
    timeout: float | None,
) -> None:
    async with opened(shared) as app:
        started = await app.workflows.start(name, params, idempotency_key=key)
        await _go_on(app, out, started.id, started.created, waits, timeout)


async def _go_on(
    app: Fusee, out: Out, workflow_run_id: int, created: bool, waits: bool, timeout: float | None
) -> None:
    if waits:
        out.say(f"workflow run {workflow_run_id}{'' if created else ', started before with this key'}")
        await _tell_end(app, out, workflow_run_id, timeout)
    elif out.json:
        out.data({"id": workflow_run_id, "created": created})
    else:
        out.show(str(workflow_run_id))
        out.say("started" if created else "this key was used before: that is its workflow run, nothing new")
        out.say(
            f"follow it: fusee workflow wait {workflow_run_id}, fusee workflow show --run {workflow_run_id}"
        )


@click.command(cls=Command)
@RUN_ID
@click.option("--timeout", metavar="TIME", callback=duration(), help="Give up after this, such as 5m.")
@click.pass_context
def wait(context: click.Context, workflow_run_id: int, timeout: float | None) -> None:
    """Wait until a workflow run has ended, with a bar that shows how far it is.

    Exits 0 when it succeeded, 5 when it ended in another way, 124 when the time was up first.

    Example: fusee workflow wait 17 --timeout 2h && echo done
    """
    drive(_wait(Shared.of(context), Out.of(context), workflow_run_id, timeout))


async def _wait(shared: Shared, out: Out, workflow_run_id: int, timeout: float | None) -> None:
    async with opened(shared) as app:
        await _tell_end(app, out, workflow_run_id, timeout)


async def _tell_end(app: Fusee, out: Out, workflow_run_id: int, timeout: float | None) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    console = out.progress_console()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Elapsed(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"workflow run {workflow_run_id}", total=None)

        def seen(run: WorkflowRun) -> None:
            bad = f", {run.failed} failed" if run.failed else ""
            progress.update(bar, total=run.total, completed=run.ended, description=f"{run.workflow}{bad}")

        run = await app.workflows.wait(workflow_run_id, timeout, seen=seen)
    if out.json:
        out.data(workflow_run_object(run))
    else:
        assert run.finished_at is not None
        took = human((run.finished_at - run.created_at) / 1e6)
        why = f": {run.reason}" if run.reason and run.status != "succeeded" else ""
        out.show(f"workflow run {run.id} {run.status} in {took}, {run.succeeded} of {run.total} nodes{why}")
    if run.status != "succeeded":
        raise click.exceptions.Exit(int(Exit.UNSUCCESSFUL))


@click.command(cls=Command)
@RUN_ID
@click.option("--reason", default="canceled by request", show_default=True, help="Kept with every node.")
@click.pass_context
def cancel(context: click.Context, workflow_run_id: int, reason: str) -> None:
    """Cancel a workflow run; when this returns, no node of it will start any more.

    Nodes that have not started are over at once. Running ones are told to stop within two seconds; `fusee
    workflow wait` tells when all have ended.

    Example: fusee workflow cancel 17 --reason "wrong day"
    """
    drive(_cancel(Shared.of(context), Out.of(context), workflow_run_id, reason))


async def _cancel(shared: Shared, out: Out, workflow_run_id: int, reason: str) -> None:
    async with opened(shared) as app:
        answer = await app.workflows.cancel(workflow_run_id, reason)
    if out.json:
        out.data({**workflow_run_object(answer.run), "told": answer.told})
        return
    told = f", {answer.told} running node{'s' * (answer.told != 1)} told to stop" if answer.told else ""
    out.show(f"workflow run {workflow_run_id} canceled{told}")


@click.command(cls=Command)
@RUN_ID
@KEY
@WAIT
@WAIT_TIMEOUT
@click.pass_context
def rerun(
    context: click.Context, workflow_run_id: int, key: str | None, waits: bool, wait_timeout: float | None
) -> None:
    """Do the nodes that did not succeed again, as a new workflow run.

    Their payloads are those of the first time; nodes that succeeded are not waited for any more.

    Example: fusee workflow rerun 17 --wait
    """
    drive(_rerun(Shared.of(context), Out.of(context), workflow_run_id, key, waits, wait_timeout))


async def _rerun(
    shared: Shared, out: Out, workflow_run_id: int, key: str | None, waits: bool, timeout: float | None
) -> None:
    async with opened(shared) as app:
        started = await app.workflows.rerun(workflow_run_id, idempotency_key=key)
        await _go_on(app, out, started.id, started.created, waits, timeout)


def _params(text: str | None, members: tuple[str, ...]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if text is not None:
        try:
            params = json.loads(text_of(text, "--params"))
        except ValueError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--params") from None
        if not isinstance(params, dict):
            raise click.BadParameter('must be an object such as {"day": "2026-11-15"}', param_hint="--params")
    for member in members:
        name, value = member_from(member, "-p")
        params[name] = json_or_text(value)
    return params
