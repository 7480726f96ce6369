"""How workflows, their runs and their graphs are shown; `fusee workflow list`, `show` and `runs`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists
from fusee.surfaces.cli.options import option
from fusee.surfaces.cli.output import ago, clean, facts, status_text
from fusee.values.fields import shown

if TYPE_CHECKING:
    from rich.text import Text

    from fusee.workflows.model.workflow import NodeSpec, Workflow, WorkflowSummary
    from fusee.workflows.model.workflow_run import WorkflowNode, WorkflowRun
    from fusee.workflows.service import WorkflowOperations

__all__ = ["DEEPEST", "RUNS", "WIDEST", "WORKFLOWS", "list_workflows", "runs", "show", "tree"]

PAGE = 1000


def _ended_line(run: WorkflowRun) -> str:
    took = ago(run.created_at, run.finished_at)
    why = f": {run.reason}" if run.reason and run.status != "succeeded" else ""
    return f"workflow run {run.id} {run.status} in {took}, {run.succeeded} of {run.total} nodes{why}"


WORKFLOWS: Noun[WorkflowSummary] = Noun(
    shape=shown,
    line=lambda workflow: f"workflow {workflow.name}: version {workflow.version}",
    none="no workflow: `fusee workflow create FILE` makes one",
    columns={
        "workflow": lambda workflow: workflow.name,
        ">nodes": lambda workflow: workflow.nodes,
        ">version": lambda workflow: workflow.version,
        ">changed": lambda workflow: f"{ago(workflow.updated_at)} ago",
        "description": lambda workflow: workflow.description,
    },
)
RUNS: Noun[WorkflowRun] = Noun(
    shape=shown,
    line=_ended_line,
    none="no workflow run: `fusee workflow start NAME` makes one",
    columns={
        ">id": lambda run: run.id,
        "workflow": lambda run: run.workflow,
        "status": lambda run: run.status,
        ">ended": lambda run: f"{run.ended}/{run.total}",
        ">failed": lambda run: run.failed or "",
        ">started": lambda run: f"{ago(run.created_at)} ago",
        ">took": lambda run: ago(run.created_at, run.finished_at),
        "why": lambda run: (run.reason or "")[:120],
    },
)


@lists(WORKFLOWS, limit=100)
@option("--prefix TEXT", "Only names that begin with this.", default="")
async def list_workflows(workflows: WorkflowOperations, /, **wanted: Any) -> Sequence[WorkflowSummary]:
    """List the workflows, by name.

    Example: fusee workflow list --prefix report-
    """
    from fusee.workflows.store.definitions import WorkflowFilter

    return await workflows.list(WorkflowFilter(**wanted))


@lists(RUNS, "runs", limit=20)
@click.argument("name", required=False)
@option(
    "--status -s",
    "Only these; repeatable.",
    multiple=True,
    choices=("running", "succeeded", "failed", "canceled"),
)
async def runs(
    workflows: WorkflowOperations, /, name: str | None, status: tuple[str, ...], limit: int
) -> Sequence[WorkflowRun]:
    """List workflow runs, newest first: of one workflow, or of all.

    Example:
      fusee workflow runs nightly
      fusee workflow runs --status failed
    """
    from fusee.workflows.model.workflow_run import WorkflowStatus
    from fusee.workflows.store.queries import WorkflowRunFilter

    statuses = [WorkflowStatus(one) for one in status]
    return await workflows.runs(WorkflowRunFilter(workflow=name, status=statuses, limit=limit))


@command()
@click.argument("name", required=False)
@option("--run workflow_run_id ID", "Show a workflow run instead.", type=click.IntRange(1))
@option("--all whole", "Draw the whole graph, however wide or deep.")
async def show(
    workflows: WorkflowOperations, /, name: str | None, workflow_run_id: int | None, whole: bool
) -> Answer:
    """Show a workflow, or a workflow run, with its graph as a tree.

    A node is drawn below the last of the nodes that it waits for; the others are named beside it. The tree of
    a workflow run shows the status of each node and which run it is.

    Example:
      fusee workflow show nightly
      fusee workflow show --run 17
    """
    if (name is None) == (workflow_run_id is None):
        raise click.UsageError("name a workflow, or a workflow run with --run ID")
    if workflow_run_id is None:
        found = await workflows.get(name or "")
        return Answer(lambda: shown(found), lambda: list(_workflow(found, whole)))
    run = await workflows.run(workflow_run_id)
    nodes = await _nodes(workflows, workflow_run_id)
    return Answer(
        lambda: {**shown(run), "nodes": [shown(node) for node in nodes]},
        lambda: list(_run(run, nodes, whole)),
    )


async def _nodes(workflows: WorkflowOperations, workflow_run_id: int) -> Sequence[WorkflowNode]:
    nodes: list[WorkflowNode] = []
    while True:
        after = nodes[-1].position if nodes else -1
        page = await workflows.graph(workflow_run_id, after=after, limit=PAGE)
        nodes += page.nodes
        if len(nodes) >= page.total or not page.nodes:
            return nodes


def _workflow(workflow: Workflow, whole: bool) -> Iterator[Any]:
    params = []
    for name, param in workflow.spec.params.items():
        default = "required" if param.required else f"default {json.dumps(param.default, ensure_ascii=False)}"
        params.append((f"param {name}", f"{default}{': ' if param.description else ''}{param.description}"))
    about = [("workflow", workflow.name), ("about", workflow.description), ("version", workflow.version)]
    yield facts([*about, ("nodes", workflow.nodes), *params])
    yield ""
    by_name = {node.name: node for node in workflow.spec.nodes}

    def details(name: str, line: Text) -> None:
        node = by_name[name]
        line.append(f"  {_action(node)}", "dim")
        if node.trigger_rule != "all_success":
            line.append(f"  {node.trigger_rule}", "yellow")

    after = {name: node.after for name, node in by_name.items()}
    yield from _tree(after, workflow.spec.levels(), whole, details)


def _action(node: NodeSpec) -> str:
    if node.task is not None:
        return f"task {node.task}"
    return f"workflow {node.workflow}" if node.workflow is not None else node.handler


def _run(run: WorkflowRun, nodes: Sequence[WorkflowNode], whole: bool) -> Iterator[Any]:
    ends = ", ".join(
        f"{count} {what}"
        for what in ("succeeded", "failed", "skipped", "canceled")
        if (count := getattr(run, what))
    )
    yield facts(
        [
            ("workflow run", run.id),
            ("workflow", f"{run.workflow}, version {run.version}"),
            ("status", status_text(str(run.status))),
            ("why", run.reason),
            ("nodes", f"{run.ended} of {run.total} ended{': ' if ends else ''}{ends}"),
            ("params", json.dumps(run.params, ensure_ascii=False) if run.params else None),
            ("took" if run.over else "runs for", ago(run.created_at, run.finished_at)),
            ("again of", run.origin_id),
            ("waited for by", None if run.parent_run is None else f"run {run.parent_run}"),
        ]
    )
    yield ""
    by_name = {node.name: node for node in nodes}

    def details(name: str, line: Text) -> None:
        node = by_name[name]
        line.append("  ").append(status_text(str(node.status))).append(f"  run {node.run_id}", "dim")
        if node.reason and node.status != "blocked":
            line.append(f"  {clean(node.reason)[:120]}", "dim")

    levels = {node.name: node.level for node in nodes}
    yield from _tree({node.name: node.after for node in nodes}, levels, whole, details)


def _tree(
    after: Mapping[str, Sequence[str]],
    levels: Mapping[str, int],
    whole: bool,
    details: Callable[[str, Text], None],
) -> Iterator[Text]:
    from rich.text import Text

    for branch in tree(after, levels, whole=whole):
        name, remark = branch.name, clean(branch.remark)
        line = Text(branch.indent, "dim").append(clean(name or ""), "not dim bold" if name else "")
        if name is not None:
            details(name, line)
        yield line.append(f"{'  ' * bool(remark and not line.plain.endswith(' '))}{remark}", "dim italic")


WIDEST = 12
"""The most siblings that are drawn; further ones are counted in one line."""
DEEPEST = 24


class Branch(NamedTuple):
    """One line: `indent` draws the tree, `name` is the node's (none for a remark)."""

    indent: str
    name: str | None
    remark: str = ""


def tree(
    after: Mapping[str, Sequence[str]], level: Mapping[str, int], *, whole: bool = False
) -> Iterator[Branch]:
    """Each node once: below the deepest of those that it waits for; its remark names the others."""
    below: dict[str | None, list[str]] = {}
    for name, upstreams in after.items():
        below.setdefault(max(upstreams, key=lambda up: level[up]) if upstreams else None, []).append(name)
    stack = list(_reversed(below.get(None, []), "", whole))
    while stack:
        branch, inner = stack.pop()
        if branch.name is None:
            yield branch
            continue
        yield branch._replace(remark=_others(after[branch.name], level))
        children = below.get(branch.name, [])
        if children and not whole and level[branch.name] + 1 >= DEEPEST:
            yield Branch(inner + "└─ ", None, f"… {_count_below(below, children)} more below")
            continue
        stack += _reversed(children, inner, whole)


def _reversed(names: Sequence[str], indent: str, whole: bool) -> Iterator[tuple[Branch, str]]:
    """Last first, for a stack; (the line, the indent of what lies below)."""
    cut = not whole and len(names) > WIDEST
    shown = names[: WIDEST - 1] if cut else names
    if cut:
        yield Branch(indent + "└─ ", None, f"… {len(names) - len(shown)} more beside"), ""
    for place in range(len(shown) - 1, -1, -1):
        last = place == len(shown) - 1 and not cut
        yield Branch(indent + ("└─ " if last else "├─ "), shown[place]), indent + ("   " if last else "│  ")


def _others(upstreams: Sequence[str], level: Mapping[str, int]) -> str:
    if len(upstreams) < 2:
        return ""
    parent = max(upstreams, key=lambda up: level[up])
    others = [up for up in upstreams if up != parent]
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return f"also after {shown}"


def _count_below(below: Mapping[str | None, Sequence[str]], names: Sequence[str]) -> int:
    count, rest = 0, list(names)
    while rest:
        count += 1
        rest += below.get(rest.pop(), [])
    return count
