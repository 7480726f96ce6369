"""How a run is shown; `fusee run list` and `fusee run show`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists
from fusee.surfaces.cli.options import option
from fusee.surfaces.cli.output import ago, clean, facts, human, status_text, table
from fusee.values.fields import shown

if TYPE_CHECKING:
    from rich.table import Table

    from fusee.engine.model.run import Attempt, Run
    from fusee.runs.service.runs import RunOperations, RunWithAttempts

__all__ = ["RUNS", "ended_line", "list_runs", "show"]

STATUSES = (
    "blocked", "delayed", "pending", "dispatched", "running", "waiting",
    "succeeded", "failed", "timed_out", "canceled", "skipped", "missed",
)  # fmt: skip


def _why(run: Run) -> str:
    lines = (run.error or run.reason or "").strip().splitlines()
    if run.error and run.reason and not run.ended:
        lines = [f"{run.reason}: {lines[0]}"]
    text = clean(lines[0]) if lines else ""
    return text if len(text) <= 80 else text[:77] + "..."


RUNS: Noun[Run] = Noun(
    shape=shown,
    line=lambda run: f"{run.id}\t{run.handler}\t{run.status}\tattempt {run.attempt}",
    none="no runs yet",
    no_match="no run matches",
    cursor=("before", lambda run: run.id),
    columns={
        ">id": lambda run: run.id,
        "handler": lambda run: run.handler,
        "status": lambda run: run.status,
        ">attempt": lambda run: run.attempt,
        "queue": lambda run: run.queue,
        ">age": lambda run: ago(run.created_at),
        ">took": lambda run: ago(run.started_at, run.finished_at),
        "why": _why,
    },
)


@lists(RUNS, limit=25)
@option("--status -s", "Only these; repeatable.", multiple=True, choices=STATUSES)
@option("--handler NAME", "Only runs of this handler.")
@option("--queue NAME", "Only runs of this queue.")
@option("--before ID", "Only runs older than this one, for the next page.", type=int)
async def list_runs(runs: RunOperations, /, status: tuple[str, ...], **wanted: Any) -> Sequence[Run]:
    """List runs, newest first.

    With --watch the list is live; with --watch --json each change of a run is one line of JSON.

    Example:
      fusee run list --status failed --status timed_out --handler send_mail
      fusee run list --json | jq '.items[].id'
    """
    from fusee.engine.model.states import RunStatus
    from fusee.engine.store.runs import RunFilter

    return await runs.list(RunFilter(status=[RunStatus(one) for one in status], **wanted))


@command()
@click.argument("run_id", metavar="ID", type=click.IntRange(1))
async def show(runs: RunOperations, /, run_id: int) -> Answer:
    """Show one run: its status and the reason for it, its attempts, timeline, result and output.

    An attempt that did not succeed is kept with its error, so that you can see later why a run was retried,
    lost or timed out.

    Example:
      fusee run show 42
      fusee run show 42 --json | jq .result
    """
    found = await runs.get(run_id)
    return Answer(
        lambda: shown(found.run, attempts=[shown(attempt) for attempt in found.attempts]),
        lambda: list(_whole(found)),
    )


def _whole(found: RunWithAttempts) -> Iterator[Any]:
    from rich.text import Text

    run = found.run
    yield facts(
        [
            ("run", run.id),
            ("handler", run.handler if run.executor == "python" else f"{run.handler} ({run.executor})"),
            ("status", status_text(run.status)),
            ("why", run.reason),
            ("queue", run.queue + (f", priority {run.priority}" if run.priority else "")),
            ("region", run.region),
            ("strategy", run.strategy),
            ("requires", ", ".join(f"{name}={value}" for name, value in run.requires.items())),
            ("asks for", _needs(run)),
            ("for worker", run.target),
            ("worker", run.worker),
            ("effect", run.effect),
            ("timeout", None if run.timeout is None else human(run.timeout)),
            ("retry", None if run.retry is None else _compact(run.retry.to_dict() or "the default")),
            ("idempotency key", run.idempotency_key),
            ("again of", run.origin_id),
            ("payload", _compact(run.payload) if run.payload else None),
            ("result", _compact(run.result) if run.status == "succeeded" else None),
            ("error", run.error),
        ]
    )
    yield ""
    yield _timeline(found)
    outputs = [(a.attempt, a.output) for a in found.attempts if a.output and a.attempt != run.attempt]
    if run.output:
        outputs.append((run.attempt, run.output))
    for number, text in outputs:
        yield ""
        yield Text(f"output of attempt {number}", "bold")
        yield Text(clean(text.rstrip("\n")))


def _timeline(found: RunWithAttempts) -> Table:
    from rich.text import Text

    run = found.run
    steps: list[tuple[int, str, str]] = [(run.created_at, "accepted", "")]
    if run.due_at > run.created_at and not found.attempts:
        steps.append((run.due_at, "due", ""))
    for attempt in found.attempts:
        if attempt.started_at is not None:
            steps.append((attempt.started_at, f"attempt {attempt.attempt} started", attempt.worker or ""))
        first = (attempt.error or "").strip().splitlines()[:1]
        steps.append((attempt.finished_at, f"attempt {attempt.attempt} {attempt.end}", "".join(first)))
        if attempt.late_at is not None:
            late = f"attempt {attempt.attempt} reported {attempt.late_end}, too late"
            steps.append((attempt.late_at, late, "refused: it no longer owned the run"))
    told = {attempt.attempt for attempt in found.attempts}
    if run.started_at is not None and run.attempt not in told:
        steps.append((run.started_at, f"attempt {run.attempt} started", run.worker or ""))
    if run.status == "delayed" and found.attempts:
        steps.append((run.due_at, f"attempt {run.attempt + 1} due", ""))
    if run.callback_deadline is not None:
        steps.append((run.callback_deadline, f"attempt {run.attempt} times out", "unless it is called back"))
    if run.cancel_requested_at is not None:
        steps.append((run.cancel_requested_at, "cancel requested", ""))
    if run.finished_at is not None:
        steps.append((run.finished_at, str(run.status), ""))
    drawn = table("when", ">after", "what", "")
    for at, what, detail in sorted(steps, key=lambda step: step[0]):
        drawn.add_row(
            _local(at), human((at - run.created_at) / 1e6), Text(clean(what)), Text(clean(detail)[:160])
        )
    return drawn


def _local(at: int) -> str:
    seconds, micro = divmod(at, 1_000_000)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{micro // 1000:03}"


def _needs(run: Run) -> str:
    from fusee.config.units import format_size

    parts = [f"{run.cpu:g} cpu"] if run.cpu is not None else []
    return ", ".join(parts + ([format_size(run.memory)] if run.memory is not None else []))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def ended_line(run: Run, attempts: Sequence[Attempt] = ()) -> str:
    """How a run ended, in one line. With its earlier attempts the time counts from the first."""
    began = min((one.started_at for one in attempts if one.started_at is not None), default=run.started_at)
    took = None if began is None or run.finished_at is None else run.finished_at - began
    times = "" if took is None else f" in {human(took / 1e6)}"
    if attempts and took is not None:
        times += f" ({run.attempt} attempts)"
    why = (run.error or run.reason or "").strip().splitlines()
    if run.status == "succeeded":
        return f"run {run.id} succeeded{times}: {_compact(run.result)}"
    return f"run {run.id} {run.status}{times}" + (f": {why[0]}" if why else "")
