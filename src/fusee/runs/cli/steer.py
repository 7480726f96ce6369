"""`fusee run wait`, `cancel` and `retry`: for one run or many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from fusee.runs.cli.look import RUNS, ended_line
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command, steer
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.follow import Progress, follow
from fusee.surfaces.cli.options import KEY, TIMEOUT, WaitOption, reasoned
from fusee.surfaces.cli.output import Out
from fusee.values.fields import shown

if TYPE_CHECKING:
    from fusee.engine.model.run import Run
    from fusee.engine.model.states import RunStatus
    from fusee.runs.service.runs import RunOperations

__all__ = ["cancel", "ended", "retry", "wait"]

SHOWN = 20
SHOWN_AS_JSON = 1000


@command()
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(1))
@TIMEOUT
async def wait(runs: RunOperations, out: Out, /, run_ids: Sequence[int], timeout: float | None) -> Answer:
    """Wait until runs have ended, and show how.

    Exits 0 when all succeeded, 5 when one ended in another way, 124 when they did not end within --timeout.
    The runs themselves continue: waiting changes nothing.

    Example: fusee run wait 42 43 --timeout 10m && echo done
    """
    for run_id in run_ids:
        await runs.peek(run_id)
    return await ended(runs, out, run_ids, WaitOption(timeout))


async def ended(runs: RunOperations, out: Out, run_ids: Sequence[int], wait: WaitOption) -> Answer:
    """How each of them ended; the exit code is 5 when one did not succeed."""
    left = list(dict.fromkeys(run_ids))
    total, first = len(left), left[0]
    ends: dict[int, RunStatus] = {}

    async def look() -> Mapping[int, RunStatus]:
        ends.update(await runs.ended(left))
        left[:] = [run_id for run_id in left if run_id not in ends]
        return ends

    def so_far(found: Mapping[int, RunStatus]) -> Progress:
        what = f"waiting for run {first}" if total == 1 else f"waiting for {total} runs"
        return what, len(found), total, " " if total == 1 else ""

    def late(found: Mapping[int, RunStatus]) -> str:
        return f"run {first}" if total == 1 else f"{len(left)} of {total} runs"

    timeout = wait.timeout
    await follow(out, look, so_far, lambda found: len(found) == total, timeout=timeout, line=late)
    bad = [run_id for run_id, status in ends.items() if status != "succeeded"]
    code = Exit.UNSUCCESSFUL if bad else Exit.OK
    if total <= SHOWN or (out.json and total <= SHOWN_AS_JSON):
        return await _each([await runs.peek(run_id) for run_id in ends], runs, out, code)
    counts = Counter(str(status) for status in ends.values())
    lines = [", ".join(f"{count} {status}" for status, count in sorted(counts.items()))]
    if bad:
        lines.append(f"without success: {', '.join(map(str, bad[:SHOWN]))}{' …' * (len(bad) > SHOWN)}")
    return Answer({"counts": dict(counts), "unsuccessful": bad[:SHOWN_AS_JSON]}, *lines, exit=code)


async def _each(found: Sequence[Run], runs: RunOperations, out: Out, code: Exit) -> Answer:
    """Each run; for a person, with its earlier attempts where it has some."""
    lines: list[str] = []
    if not out.json:
        for run in found:
            lines.append(ended_line(run, (await runs.get(run.id)).attempts if run.attempt > 1 else ()))
    objects = [shown(run) for run in found]
    return Answer(objects[0] if len(objects) == 1 else {"items": objects}, *lines, exit=code)


@steer(RUNS, "run_id", items=True)
@reasoned("canceled by request", kept="the run")
async def cancel(runs: RunOperations, /, run_id: int, reason: str) -> Answer:
    """Cancel runs; when this returns, no attempt of theirs will start any more.

    A run that has not started ends at once. A running one is told to stop within two seconds, and killed
    after its grace where that is possible; `fusee run wait` shows how it ended.

    Example: fusee run cancel 42 43 --reason "wrong customer list"
    """
    answer = await runs.cancel(run_id, reason)
    over = "canceled" if answer.canceled else f"told to stop ({answer.run.status})"
    fields = {"id": run_id, "status": str(answer.run.status), "canceled": answer.canceled}
    return Answer(fields, f"run {run_id} {over}")


@steer(RUNS, "run_id", items=True)
@KEY
async def retry(runs: RunOperations, /, run_id: int, key: str | None) -> Answer:
    """Run ended runs again, each as a new run with the same payload.

    The new run names the old one as its origin; the old one stays as it ended. A run of a task becomes a new
    fire, under the policies of the task. A run of a batch, a workflow or a bulk job is refused; the error
    names the command that retries it.

    Example:
      fusee run retry 42
      fusee run list -s failed --json | jq '.items[].id' | xargs fusee run retry
    """
    made = await runs.retry(run_id, idempotency_key=key)
    rule = f" ({made.status}): {made.rule}" if made.rule is not None else ""
    fields = {"id": made.id, "origin_id": run_id, "status": str(made.status), "rule": made.rule}
    return Answer(fields, f"run {run_id} again as run {made.id}{rule}")
