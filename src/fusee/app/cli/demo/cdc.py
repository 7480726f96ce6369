"""`fusee demo cdc`: plan, apply, retry, rollback, what the journal says, and how it looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from fusee.app.cli.demo.command import LINES, Log
from fusee.app.fusee import Fusee
from fusee.batches.model.batch import Batch, BatchPhase, BatchStatus, BatchTask
from fusee.batches.store.queries import TargetFilter
from fusee.config import Config
from fusee.contrib import cdc
from fusee.contrib.cdc.control_plane import Audit, Plane, audit, plane_running
from fusee.surfaces.cli.exits import Failure
from fusee.surfaces.cli.output import clean, table

__all__ = ["ACTS", "JOBS", "CdcStory"]

if TYPE_CHECKING:
    from rich.console import RenderableType

LONGEST = 55.0
LOOK_EVERY = 0.05
JOBS = 300
CANARY = 10
FAIL_ONCE = tuple(f"job-{nr}" for nr in (17, 63, 144, 201, 288))
REFUSES = "job-99"
HANGS = "job-120"
MOVED_BY_HAND = "job-222"

FAULTS: Sequence[dict[str, Any]] = (
    {"fault": "refuse", "jobs": [REFUSES]},
    {"fault": "fail", "jobs": [*FAIL_ONCE], "times": 1},
    {"fault": "apply_then_hang", "jobs": [HANGS], "times": 1},
    {"fault": "slow", "seconds": 0.25},
)
ACTS = ("apply", "retry", "rollback")
BAR = 72
STYLES = {
    BatchStatus.SUCCESS: "green",
    BatchStatus.RUNNING: "yellow",
    BatchStatus.PENDING: "bright_black",
    BatchStatus.RETRY_PENDING: "cyan",
    BatchStatus.FAIL: "red",
    BatchStatus.CANCEL: "bright_black",
    BatchStatus.ROLLBACK_PENDING: "bright_black",
    BatchStatus.ROLLBACK_RUNNING: "yellow",
    BatchStatus.ROLLBACK_SUCCESS: "blue",
    BatchStatus.ROLLBACK_FAIL: "magenta",
}


class CdcStory:
    """`await story.play()`; `tell` gets each line of what happens, `batch` is how it stands."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.tell = tell
        self.act = ""
        self.batch: Batch | None = None
        self.counts: dict[str, Mapping[BatchStatus, int]] = {}
        """How the targets stood at the end of each act."""
        self.verdict = Audit()

    async def play(self) -> None:
        async with (
            asyncio.timeout(LONGEST),
            plane_running(self.folder / "journal", "--jobs", str(JOBS)) as plane,
        ):
            self.tell(f"started a control plane (pid {plane.pid}) with {JOBS} CDC jobs in zone sg-1")
            await plane.misbehave(*FAULTS)
            app = _app(self.folder, plane.url)
            async with app.running():
                await self._plan(app)
                await self._apply(app)
                await self._retry(app)
                await self._roll_back(app, plane)
                await plane.quiet()
                self.verdict = audit(plane.entries(), await self._tasks(app), rolled_back=True)
        self._check()

    async def _plan(self, app: Fusee) -> None:
        targets = (
            {"target_id": f"job-{nr}", "before": {"az": "sg-1"}, "after": {"az": "sg-2"}}
            for nr in range(1, JOBS + 1)
        )
        fields = {
            "batch_name": "move everything to sg-2",
            "batch_type": "cdc_switch_az",
            "target_type": "cdc",
            "concurrency": 64,
            "canary": CANARY,
            "ramp": 2,
            "max_errors": "5%",
            "timeout": 2.0,
            "retry": {"max_attempts": 3, "base": 0.5, "on": ["timed_out", "lost"]},
        }
        self.batch, _ = await app.batches.create(fields, targets)
        self.tell(f"plan: cdc_switch_az on {self.batch.total} targets; nothing is done yet")
        for one in await app.batches.plan(self.batch.id, TargetFilter(limit=3)):
            what = ", ".join(f"{name}: {before} → {after}" for name, (before, after) in one.changes.items())
            self.tell(f"      {one.task.target_id}  {one.action}  {what}")

    async def _apply(self, app: Fusee) -> None:
        assert self.batch is not None
        self.act = "apply"
        await app.batches.apply(self.batch.id)
        self.tell(f"apply: a canary of {CANARY} first, then twice as many each round, up to 64 at once")
        await self._until_done(app)
        fails = [task for task in await self._tasks(app) if task.status is BatchStatus.FAIL]
        self.tell(f"{self._stands()}; {HANGS} hung after it was done, was asked again, and had been moved")
        for task in fails[:2]:
            self.tell(f"      {task.target_id}  effect {task.effect}: {(task.info or '').splitlines()[0]}")

    async def _retry(self, app: Fusee) -> None:
        assert self.batch is not None
        self.act = "retry"
        self.batch, again = await app.batches.retry(self.batch.id)
        self.tell(f"retry: only the {again} that failed")
        await self._until_done(app)
        self.tell(self._stands())

    async def _roll_back(self, app: Fusee, plane: Plane) -> None:
        assert self.batch is not None
        self.act = "rollback"
        await plane.change(MOVED_BY_HAND, "move_az", az="sg-3")
        self.tell(f"meanwhile someone moved {MOVED_BY_HAND} to sg-3, by hand")
        await app.batches.roll_back(self.batch.id)
        self.tell("roll back: what was done, or may have been, newest first")
        await self._until_done(app)
        self.tell(f"{self._stands()}; {MOVED_BY_HAND} drifted and was left alone")

    async def _until_done(self, app: Fusee) -> None:
        assert self.batch is not None
        window = self.batch.window
        while True:
            self.batch = await app.batches.get(self.batch.id)
            if self.batch.window > window:
                window = self.batch.window
                self.tell(f"      {self._stands()}; from here {window} at once")
            if self.batch.phase is BatchPhase.DONE:
                self.counts[self.act] = self.batch.counts
                return
            await asyncio.sleep(LOOK_EVERY)

    async def _tasks(self, app: Fusee) -> Sequence[BatchTask]:
        assert self.batch is not None
        return await app.batches.tasks(self.batch.id, TargetFilter(limit=1000))

    def _stands(self) -> str:
        assert self.batch is not None
        return ", ".join(f"{count} {status}" for status, count in self.batch.counts.items() if count)

    def _check(self) -> None:
        expected: Mapping[str, Mapping[BatchStatus, int]] = {
            "apply": {BatchStatus.SUCCESS: JOBS - 6, BatchStatus.FAIL: 6},
            "retry": {BatchStatus.SUCCESS: JOBS - 1, BatchStatus.FAIL: 1},
            "rollback": {
                BatchStatus.ROLLBACK_SUCCESS: JOBS - 2,
                BatchStatus.ROLLBACK_FAIL: 1,
                BatchStatus.FAIL: 1,
            },
        }
        for act, wanted in expected.items():
            counts = {status: count for status, count in self.counts[act].items() if count}
            if counts != wanted:
                raise Failure(
                    f"after {act} the targets stood {counts}, expected {wanted}. Please report this"
                )
        if self.verdict.problems:
            raise Failure(f"the journal disagrees: {self.verdict.problems[0]}. Please report this")

    def picture(self, log: Log) -> RenderableType:
        lines = [*log.lines, *[""] * (LINES - len(log.lines))]
        return Group(
            Panel(Group(self._bar(), self._counted()), title="fusee demo cdc", border_style="cyan"),
            Panel(Text(clean("\n".join(lines))), title="what happens", border_style="dim"),
        )

    def _bar(self) -> Text:
        """Every status as wide as its share; what is there at all is seen."""
        bar = Text()
        if self.batch is not None:
            for status, style in STYLES.items():
                if count := self.batch.counts.get(status, 0):
                    bar.append("━" * max(1, round(BAR * count / self.batch.total)), style)
        return bar

    def _counted(self) -> Text:
        told = Text(f"{self.act or 'plan'}: ")
        if self.batch is not None:
            for status, style in STYLES.items():
                if count := self.batch.counts.get(status, 0):
                    told.append(f"{count} {status}  ", style)
            told.append(f"({self.batch.window} at once)", "dim")
        return told

    def summary(self) -> RenderableType:
        """Each act, how the targets stood after it, and what the journal says to that."""
        drawn = table("", "act", "the batch says")
        for act in ACTS:
            counts = ", ".join(f"{count} {status}" for status, count in self.counts[act].items() if count)
            drawn.add_row(Text("✓", "green"), act, counts)
        found = ", ".join(f"{count} {what}" for what, count in sorted(self.verdict.found.items()))
        verdict = Text.assemble(
            ("✓ ", "green"), "The control plane's own journal agrees, target by target: ", (found, "bold")
        )
        return Group(drawn, Text(), verdict)

    def data(self) -> dict[str, Any]:
        verdict = {"agrees": bool(self.verdict), "found": dict(self.verdict.found)}
        return {"acts": self.counts, "verdict": verdict}


def _app(folder: Path, plane: str) -> Fusee:
    """Reads no file and no variable: a demo is the same everywhere."""
    app = Fusee(
        config=Config.model_validate(
            {
                "namespace": "demo",
                "database": {"url": f"sqlite:///{folder}/demo.db"},
                "dispatcher": {"schedule_interval_seconds": 0.1},
                "worker": {"max_concurrent_tasks": 64, "poll_interval": 0.1, "grace": 0.5},
            }
        )
    )
    cdc.register(app, cdc.ControlPlaneDriver(plane))
    return app
