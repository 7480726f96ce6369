"""`fusee demo`: what happens, in order, and how it looks."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fusee.app.cli.demo.command import LINES, Log
from fusee.app.cli.demo.jobs import FRAGILE, LEASE, demo_app
from fusee.app.fusee import Fusee
from fusee.engine.model.run import Run
from fusee.events import RunAttemptEnded, SessionLost
from fusee.runs.handle import RunHandle
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.output import clean, human, status_text, table
from fusee.tasks.model.fire import Fire
from fusee.tasks.store.history import FireFilter
from fusee.values.fields import shown
from fusee.values.times import iso

__all__ = ["ACTS", "Act", "RunsStory"]

if TYPE_CHECKING:
    from rich.console import RenderableType

LONGEST = 50.0
LOOK_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class Act:
    """One run of the demo: what it shows, and how it must end."""

    handler: str
    title: str
    status: str
    attempts: int
    promise: str


ACTS = (
    Act("greet", "plain", "succeeded", 1, "Accepted is never lost: what was accepted ended."),
    Act("remind", "delayed 4 s", "succeeded", 1, "The database's clock decides when a run is due."),
    Act("flaky", "fails twice", "succeeded", 3, "One retry policy everywhere; each attempt is kept."),
    Act("export", "canceled", "canceled", 1, "After a cancel is acknowledged, no attempt starts."),
    Act("slow", "times out", "timed_out", 1, "Told to stop, given its grace, and only then over."),
    Act("encode", "its worker is killed", "succeeded", 2, "At least once: a dead worker's lease runs out."),
)

TASK = {"name": "tick", "cron": "* * * * * *", "handler": "tick", "overlap_action": "SKIP"}


class RunsStory:
    """`await story.play()`; `tell` gets each line of what happens, `runs` and `fires` show the cast."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.app: Fusee = demo_app(folder, "first-worker")
        self.folder = folder
        self.tell = tell
        self.runs: dict[str, Run] = {}
        self.handles: dict[str, RunHandle] = {}
        self.scheduled = False
        self.fires: Sequence[Fire] = ()
        """What became of the task: a row for each second."""

    async def play(self) -> None:
        self.app.bus.subscribe(SessionLost, self._lost)
        self.app.bus.subscribe(RunAttemptEnded, self._attempt_ended)
        async with self.app, asyncio.timeout(LONGEST):
            self.tell("starting a second worker, as a process of its own")
            async with self._victim() as victim:
                await self._submit("encode", {}, queue=FRAGILE)
                await self._until(lambda: self._status("encode") == "running")
                self.tell(f"second-worker (pid {victim.pid}) took run {self.handles['encode'].id}")
                async with self.app.running():
                    await self.app.tasks.create(TASK)
                    self.scheduled = True
                    self.tell("made a task: due every second, takes longer, and never twice at once")
                    await self._first_scene()
                    victim.kill()
                    self.tell(f"killed second-worker with SIGKILL; its lease of {LEASE:g} s runs out now")
                    await self._until(lambda: self._status("export") == "running")
                    await self.handles["export"].cancel("nobody needs it any more")
                    self.tell(f"canceled run {self.handles['export'].id}")
                    await self._until(lambda: all(run.ended for run in self.runs.values()))
                    await self._until(lambda: {"run", "skip"} <= {fire.decision for fire in self.fires})
        self._check()

    async def _first_scene(self) -> None:
        await self._submit("greet", {"name": "Ada"})
        await self._submit("remind", {"text": "tea is ready"}, delay=4.0)
        await self._submit("flaky", {})
        await self._submit("export", {})
        await self._submit("slow", {})
        self.tell("submitted five more runs")
        await self._until(lambda: self._status("flaky") == "running")
        until = time.monotonic() + 1.0
        await self._until(lambda: time.monotonic() > until)

    @contextlib.asynccontextmanager
    async def _victim(self) -> AsyncIterator[subprocess.Popen[bytes]]:
        # A session of its own: Ctrl-C is for the demo, which then ends it; its stdin ends with the demo.
        victim = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-m", "fusee.app.cli.demo.jobs", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while not await self.app.workers.list():
                if victim.poll() is not None:
                    raise Failure("the second worker could not start", Exit.FAILED)
                await self._look()
            yield victim
        finally:
            victim.kill()
            victim.communicate()

    async def _submit(self, handler: str, payload: dict[str, Any], **options: Any) -> None:
        self.handles[handler] = await self.app.enqueue(handler, payload, **options)

    async def _until(self, come: Callable[[], bool]) -> None:
        await self._look()
        while not come():
            await self._look()

    async def _look(self) -> None:
        for handler, handle in self.handles.items():
            now = (await self.app.runs.get(handle.id)).run
            before = self.runs.get(handler)
            self.runs[handler] = now
            if before is not None and (before.status, before.attempt) == (now.status, now.attempt):
                continue
            if before is None or now.ended or now.status == "running":
                attempt = f", attempt {now.attempt}" if now.attempt else ""
                self.tell(f"run {now.id} {handler}: {now.status}{attempt}")
        await self._look_at_the_task()
        await asyncio.sleep(LOOK_EVERY)

    async def _look_at_the_task(self) -> None:
        if not self.scheduled:
            return
        fires = await self.app.tasks.fires("tick", FireFilter(limit=100))
        for fire in reversed(fires):
            if fire.decision not in {known.decision for known in self.fires}:  # the first of its kind
                self.tell(f"task tick of {iso(fire.fire_time)}: {fire.decision} ({fire.rule})")
                self.fires = [*self.fires, fire]
        self.fires = fires

    def _status(self, handler: str) -> str | None:
        run = self.runs.get(handler)
        return None if run is None else str(run.status)

    def _lost(self, event: SessionLost) -> None:
        self.tell(f"the dispatcher found {event.worker} dead and put its run back in line")

    def _attempt_ended(self, event: RunAttemptEnded) -> None:
        if event.status == "delayed":
            why = (event.error or "").strip().splitlines()
            first = why[0] if why else event.end
            self.tell(f"run {event.run_id} {event.handler}: attempt {event.attempt} failed ({first})")

    def _check(self) -> None:
        for act in ACTS:
            run = self.runs[act.handler]
            if run.status != act.status or run.attempt != act.attempts:
                raise Failure(
                    f"run {run.id} ({act.handler}) ended {run.status} at attempt {run.attempt}; expected"
                    f" {act.status} at attempt {act.attempts}. Please report this"
                )

    def picture(self, log: Log) -> RenderableType:
        """The cast above, the log below."""
        drawn = Table(expand=True, box=None, header_style="bold", padding=(0, 1))
        for column in ("run", "handler", "shows", "status", "attempt", "age", "why"):
            drawn.add_column(column, no_wrap=column != "why", ratio=1 if column == "why" else None)
        now = time.time_ns() // 1000
        for act in ACTS:
            run = self.runs.get(act.handler)
            if run is None:
                drawn.add_row("", Text(act.handler, "dim"), Text(act.title, "dim"), "", "", "", "")
                continue
            age = ((run.finished_at or now) - run.created_at) / 1e6
            why = (run.error or run.reason or str(run.result or "")).strip().splitlines()
            drawn.add_row(
                str(run.id),
                act.handler,
                act.title,
                status_text(run.status),
                str(run.attempt),
                human(age),
                Text(clean(why[0]) if why else "", "dim"),
            )
        lines = [*log.lines, *[""] * (LINES - len(log.lines))]
        return Group(
            Panel(drawn, title="fusee demo", border_style="cyan"),
            Panel(Text(clean("\n".join(lines))), title="what happens", border_style="dim"),
        )

    def summary(self) -> RenderableType:
        """Each run, how it ended, and the promise it showed."""
        drawn = table("", "shown", "ended", ">attempts", "promise")
        for act in ACTS:
            run = self.runs[act.handler]
            drawn.add_row(
                Text("✓", "green"), act.title, status_text(run.status), str(run.attempt), Text(act.promise)
            )
        ran, skipped = (sum(fire.decision == what for fire in self.fires) for what in ("run", "skip"))
        ended = Text(f"{ran} ran, {skipped} skipped")
        promise = Text("Every due fire leaves a row, with the rule that decided.")
        drawn.add_row(Text("✓", "green"), "a task, every second", ended, "", promise)
        return drawn

    def data(self) -> dict[str, Any]:
        runs = {handler: shown(run) for handler, run in self.runs.items()}
        return {"runs": runs, "fires": [shown(fire) for fire in self.fires]}
