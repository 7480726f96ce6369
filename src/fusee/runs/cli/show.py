"""`fusee run show`: all there is to know about one run."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out, clean, human, status_text, table
from fusee.surfaces.cli.shapes import run_object

if TYPE_CHECKING:
    from fusee.engine.model.run import Attempt, Run
    from fusee.runs.service.runs import RunWithAttempts

__all__ = ["show", "show_run"]


@click.command(cls=Command)
@click.argument("run_id", metavar="ID", type=click.IntRange(1))
@click.pass_context
def show(context: click.Context, run_id: int) -> None:
    """Show one run: its state and why, its attempts, timeline, result and output.

    An attempt that ended in another way than success is kept with its error, so that the story of a run that
    was retried, lost or timed out can be read afterwards.

    Example:
      fusee run show 42
      fusee run show 42 --json | jq .result
    """
    drive(_show(Shared.of(context), Out.of(context), run_id))


async def _show(shared: Shared, out: Out, run_id: int) -> None:
    async with opened(shared) as app:
        found = await app.runs.get(run_id)
    if out.json:
        out.data(run_object(found.run, found.attempts))
    else:
        show_run(out, found)


def show_run(out: Out, found: RunWithAttempts) -> None:
    from rich.text import Text

    run = found.run
    facts = table("", "")
    facts.show_header = False

    def fact(name: str, value: Any) -> None:
        if value not in (None, "", {}):
            facts.add_row(Text(name, "bold"), value if isinstance(value, Text) else Text(clean(str(value))))

    fact("run", run.id)
    fact("handler", run.handler if run.executor == "python" else f"{run.handler} ({run.executor})")
    fact("status", status_text(run.status))
    fact("why", run.reason)
    fact("queue", run.queue + (f", priority {run.priority}" if run.priority else ""))
    fact("region", run.region)
    fact("strategy", run.strategy)
    fact("requires", ", ".join(f"{name}={value}" for name, value in run.requires.items()))
    fact("asks for", _needs(run))
    fact("for worker", run.target)
    fact("worker", run.worker)
    fact("effect", run.effect)
    fact("timeout", None if run.timeout is None else human(run.timeout))
    fact("retry", None if run.retry is None else _compact(run.retry.to_dict() or "the default"))
    fact("idempotency key", run.idempotency_key)
    fact("again of", run.origin_id)
    fact("payload", _compact(run.payload) if run.payload else None)
    if run.ended and run.status == "succeeded":
        fact("result", _compact(run.result))
    fact("error", run.error)
    out.show(facts)
    _timeline(out, found)
    outputs = [(a.attempt, a.output) for a in found.attempts if a.output and a.attempt != run.attempt]
    if run.output:
        outputs.append((run.attempt, run.output))
    for number, text in outputs:
        out.show("", Text(f"output of attempt {number}", "bold"), Text(clean(text.rstrip("\n"))))


def _timeline(out: Out, found: RunWithAttempts) -> None:
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
    out.show("", drawn)


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
