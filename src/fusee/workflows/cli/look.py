"""`fusee workflow list`, `show` and `runs`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out, clean, human, status_text, table
from fusee.workflows.cli.shapes import node_object, summary_object, workflow_object, workflow_run_object
from fusee.workflows.cli.tree import tree

if TYPE_CHECKING:
    from rich.text import Text

    from fusee.app.fusee import Fusee
    from fusee.workflows.model.workflow import NodeSpec, Workflow
    from fusee.workflows.model.workflow_run import WorkflowNode, WorkflowRun

__all__ = ["list_workflows", "runs", "show"]

PAGE = 1000


@click.command("list", cls=Command)
@click.option("--prefix", metavar="TEXT", default="", help="Only names that begin so.")
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), default=100, show_default=True)
@click.pass_context
def list_workflows(context: click.Context, prefix: str, limit: int) -> None:
    """List the workflows, by name.

    Example: fusee workflow list --prefix report-
    """
    drive(_list(Shared.of(context), Out.of(context), prefix, limit))


async def _list(shared: Shared, out: Out, prefix: str, limit: int) -> None:
    from fusee.workflows.store.definitions import WorkflowFilter

    async with opened(shared) as app:
        found = await app.workflows.list(WorkflowFilter(prefix=prefix, limit=limit))
    if out.json:
        out.data({"items": [summary_object(workflow) for workflow in found]})
        return
    if not found:
        out.say("no workflow: `fusee workflow create FILE` makes one")
        return
    from rich.text import Text

    drawn = table("workflow", ">nodes", ">version", ">changed", "description")
    now = time.time_ns() // 1000
    for workflow in found:
        drawn.add_row(
            Text(clean(workflow.name)),
            str(workflow.nodes),
            str(workflow.version),
            f"{human((now - workflow.updated_at) / 1e6)} ago",
            Text(clean(workflow.description)),
        )
    out.show(drawn)


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option(
    "--run", "workflow_run_id", metavar="ID", type=click.IntRange(1), help="A workflow run instead."
)
@click.option("--all", "whole", is_flag=True, help="Draw all of it, however wide or deep.")
@click.pass_context
def show(context: click.Context, name: str | None, workflow_run_id: int | None, whole: bool) -> None:
    """Show a workflow, or a workflow run, with its graph as a tree.

    A node stands below the last of those that it waits for; the others are named beside it. Of a
    workflow run the tree shows how each node stands and which run it is.

    Example:
      fusee workflow show nightly
      fusee workflow show --run 17
    """
    if (name is None) == (workflow_run_id is None):
        raise click.UsageError("name a workflow, or a workflow run with --run ID")
    if workflow_run_id is not None:
        drive(_show_run(Shared.of(context), Out.of(context), workflow_run_id, whole))
    else:
        drive(_show(Shared.of(context), Out.of(context), name or "", whole))


async def _show(shared: Shared, out: Out, name: str, whole: bool) -> None:
    async with opened(shared) as app:
        workflow = await app.workflows.get(name)
    if out.json:
        out.data(workflow_object(workflow))
        return
    out.show(_facts(_of_workflow(workflow)), "")
    by_name = {node.name: node for node in workflow.spec.nodes}
    after = {name: node.after for name, node in by_name.items()}
    for branch in tree(after, workflow.spec.levels(), whole=whole):
        line = _line(branch.indent, branch.name)
        if branch.name is not None:
            node = by_name[branch.name]
            line.append(f"  {_action(node)}", "dim")
            if node.trigger_rule != "all_success":
                line.append(f"  {node.trigger_rule}", "yellow")
        out.show(_remarked(line, branch.remark))


def _of_workflow(workflow: Workflow) -> Iterator[tuple[str, Any]]:
    yield "workflow", workflow.name
    yield "about", workflow.description
    yield "version", workflow.version
    yield "nodes", workflow.nodes
    for name, param in workflow.spec.params.items():
        default = "required" if param.required else f"default {json.dumps(param.default, ensure_ascii=False)}"
        yield f"param {name}", f"{default}{': ' if param.description else ''}{param.description}"


def _action(node: NodeSpec) -> str:
    if node.task is not None:
        return f"task {node.task}"
    return f"workflow {node.workflow}" if node.workflow is not None else node.handler


async def _show_run(shared: Shared, out: Out, workflow_run_id: int, whole: bool) -> None:
    async with opened(shared) as app:
        run = await app.workflows.run(workflow_run_id)
        nodes = await _nodes(app, workflow_run_id)
    if out.json:
        out.data({**workflow_run_object(run), "nodes": [node_object(node) for node in nodes]})
        return
    out.show(_facts(_of_run(run)), "")
    by_name = {node.name: node for node in nodes}
    levels = {node.name: node.level for node in nodes}
    for branch in tree({node.name: node.after for node in nodes}, levels, whole=whole):
        line = _line(branch.indent, branch.name)
        if branch.name is not None:
            node = by_name[branch.name]
            line.append("  ").append(status_text(str(node.status))).append(f"  run {node.run_id}", "dim")
            if node.reason and node.status != "blocked":
                line.append(f"  {clean(node.reason)[:120]}", "dim")
        out.show(_remarked(line, branch.remark))


async def _nodes(app: Fusee, workflow_run_id: int) -> Sequence[WorkflowNode]:
    nodes: list[WorkflowNode] = []
    while True:
        after = nodes[-1].position if nodes else -1
        page = await app.workflows.graph(workflow_run_id, after=after, limit=PAGE)
        nodes += page.nodes
        if len(nodes) >= page.total or not page.nodes:
            return nodes


def _of_run(run: WorkflowRun) -> Iterator[tuple[str, Any]]:
    ends = {
        "succeeded": run.succeeded,
        "failed": run.failed,
        "skipped": run.skipped,
        "canceled": run.canceled,
    }
    told = ", ".join(f"{count} {what}" for what, count in ends.items() if count)
    took = (run.finished_at or time.time_ns() // 1000) - run.created_at
    yield "workflow run", run.id
    yield "workflow", f"{run.workflow}, version {run.version}"
    yield "status", status_text(str(run.status))
    yield "why", run.reason
    yield "nodes", f"{run.ended} of {run.total} ended{': ' if told else ''}{told}"
    yield "params", json.dumps(run.params, ensure_ascii=False) if run.params else None
    yield "took" if run.over else "runs for", human(took / 1e6)
    yield "again of", run.origin_id
    yield "waited for by", None if run.waiter is None else f"run {run.waiter}"


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option(
    "-s",
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(["running", "succeeded", "failed", "canceled"], case_sensitive=False),
    help="Only these; repeatable.",
)
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.pass_context
def runs(context: click.Context, name: str | None, statuses: tuple[str, ...], limit: int) -> None:
    """List workflow runs, newest first: of one workflow, or of all.

    Example:
      fusee workflow runs nightly
      fusee workflow runs --status failed
    """
    drive(_runs(Shared.of(context), Out.of(context), name, statuses, limit))


async def _runs(shared: Shared, out: Out, name: str | None, statuses: tuple[str, ...], limit: int) -> None:
    from fusee.workflows.model.workflow_run import WorkflowStatus
    from fusee.workflows.store.queries import WorkflowRunFilter

    wanted = WorkflowRunFilter(
        workflow=name, status=[WorkflowStatus(status) for status in statuses], limit=limit
    )
    async with opened(shared) as app:
        found = await app.workflows.runs(wanted)
    if out.json:
        out.data({"items": [workflow_run_object(run) for run in found]})
        return
    if not found:
        out.say("no workflow run: `fusee workflow start NAME` makes one")
        return
    from rich.text import Text

    drawn = table(">id", "workflow", "status", ">ended", ">failed", ">started", ">took", "why")
    now = time.time_ns() // 1000
    for run in found:
        drawn.add_row(
            str(run.id),
            Text(clean(run.workflow)),
            status_text(str(run.status)),
            f"{run.ended}/{run.total}",
            str(run.failed or ""),
            f"{human((now - run.created_at) / 1e6)} ago",
            human(((run.finished_at or now) - run.created_at) / 1e6),
            Text(clean(run.reason or "")[:120]),
        )
    out.show(drawn)


def _facts(pairs: Iterator[tuple[str, Any]]) -> Any:
    from rich.text import Text

    facts = table("", "")
    facts.show_header = False
    for name, value in pairs:
        if value not in (None, "", {}):
            facts.add_row(
                Text(clean(name), "bold"), value if isinstance(value, Text) else Text(clean(str(value)))
            )
    return facts


def _line(indent: str, name: str | None) -> Text:
    from rich.text import Text

    return Text(indent, "dim").append(clean(name or ""), "not dim bold" if name else "")


def _remarked(line: Text, remark: str) -> Text:
    return line.append(
        f"{'  ' if remark and not line.plain.endswith(' ') else ''}{clean(remark)}", "dim italic"
    )
