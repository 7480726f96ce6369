"""Real processes, started, killed and judged.

The judge reads the journal that the handlers wrote, then asks the store whether it agrees.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusee import Fusee, RunHandle
from fusee.engine.model.run import Run, RunSpec
from fusee.engine.model.states import RunStatus
from fusee.errors import StoreUnavailable
from tests.chaos.crew import SHELL, STUBBORN, make
from tests.chaos.inside import read_runs

__all__ = ["Fleet", "Journal", "NeverEnded", "fleet", "judge", "some_runs"]

ROOT = Path(__file__).resolve().parents[2]
# Many interpreters are started here: the second need not compile what the first did.
ENVIRONMENT = {
    **{
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith("FUSEE_CHAOS_")
    },
    "PYTHONPYCACHEPREFIX": str(ROOT / ".pytest_cache" / "d" / "bytecode"),
}


class NeverEnded(AssertionError):
    """Runs that were accepted and did not end in time."""


@dataclass(frozen=True)
class Line:
    run: int
    attempt: int
    pid: int
    what: str


class Journal:
    """The file in which handlers write what they do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[Line]:
        text = self.path.read_text()
        whole = text[: text.rfind("\n") + 1]
        return [Line(int(r), int(a), int(p), w) for r, a, p, w in map(str.split, whole.splitlines())]

    def count(self) -> int:
        return self.path.read_bytes().count(b"\n")


@dataclass(eq=False)
class Member:
    role: str
    process: subprocess.Popen[bytes]
    log: Path
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass
class Fleet:
    """Workers and dispatchers in processes of their own, over one database."""

    app: Fusee
    url: str
    journal: Journal
    folder: Path
    seed: int
    chance: random.Random
    overrides: dict[str, Any] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    gone: list[Member] = field(default_factory=list)
    judged: list[Run] = field(default_factory=list)
    module: str = "tests.chaos.crew"

    def of(self, role: str) -> list[Member]:
        return [member for member in self.members if member.role == role]

    def start(self, role: str, **overrides: Any) -> Member:
        log = self.folder / f"{role}-{len(self.members) + len(self.gone)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", self.module, role, self.url, str(self.journal.path),
                    json.dumps({**self.overrides, **overrides}),
                ],
                cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        member = Member(role, process, log)
        self.members.append(member)
        return member

    async def ready(self, *members: Member) -> None:
        """All these have opened the store."""
        for member in members or tuple(self.members):
            await self.until(lambda m=member: b"ready" in m.log.read_bytes() or m.process.poll() is not None)  # type: ignore[misc]

    def kill(self, member: Member) -> None:
        member.process.send_signal(signal.SIGKILL)
        member.process.wait(10)
        self._leaves(member)

    async def terminate(self, member: Member) -> int:
        """Ask it to drain; its exit code."""
        member.process.send_signal(signal.SIGTERM)
        code: int = await asyncio.to_thread(member.process.wait, 40)
        self._leaves(member)
        return code

    def _leaves(self, member: Member) -> None:
        self.members.remove(member)
        self.gone.append(member)

    def crashed(self) -> list[str]:
        """What members that ended by themselves had to say."""
        return [
            f"{m.role} {m.pid} ended with {m.process.poll()}:\n{m.log.read_text()[-3000:]}"
            for m in self.members
            if m.process.poll() is not None
        ]

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0, what: str = "") -> Any:
        deadline = time.monotonic() + seconds
        while not (answer := condition()):
            assert not self.crashed(), f"seed {self.seed}: {self.crashed()[0]}"
            assert time.monotonic() < deadline, f"seed {self.seed}: no {what or 'change'} in {seconds:g} s"
            await asyncio.sleep(0.005)
        return answer

    async def all_ended(self, handles: Sequence[RunHandle], seconds: float = 90.0) -> list[Run]:
        deadline = time.monotonic() + seconds
        left = {handle.id for handle in handles}
        while left:
            part = sorted(left)[:500]
            with suppress(StoreUnavailable):
                left -= (await self.app.store.runs.ended(part)).keys()
            if not left:
                break
            assert not self.crashed(), f"seed {self.seed}: {self.crashed()[0]}"
            if time.monotonic() > deadline:
                run = await self.app.store.runs.run(min(left))
                raise NeverEnded(f"seed {self.seed}: {len(left)} runs never ended, such as {run}")
            await asyncio.sleep(0.05)
        return await read_runs(self.app.store, [handle.id for handle in handles])

    def end(self) -> None:
        for member in [*self.members]:
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGCONT)
                member.process.kill()
            member.process.wait(10)
            self._leaves(member)


@asynccontextmanager
async def fleet(
    url: str,
    folder: Path,
    *,
    workers: int = 3,
    dispatchers: int = 2,
    seed: int | None = None,
    **overrides: Any,
) -> AsyncIterator[Fleet]:
    """So many processes, ready; they end with the block, however it ends."""
    seed = seed if seed is not None else int(os.environ.get("FUSEE_CHAOS_SEED", time.time_ns() % 10**6))
    print(f"chaos seed {seed} (FUSEE_CHAOS_SEED={seed} repeats it)")
    journal = Journal(folder / "journal")
    app = make(url, str(journal.path), {"database": {"migrate": True}, "cdc": overrides.get("cdc")})
    async with app:
        crew = Fleet(app, url, journal, folder, seed, random.Random(seed), overrides)
        try:
            for role, count in (("worker", workers), ("dispatcher", dispatchers)):
                for _ in range(count):
                    crew.start(role)
            await crew.ready()
            yield crew
        finally:
            crew.end()


def some_runs(crew: Fleet, count: int, *, shell: float = 0.02) -> list[RunSpec]:
    """Runs of every kind, a few milliseconds each."""
    specs = []
    for _ in range(count):
        ms = crew.chance.choice((1, 3, 8, 20))
        if crew.chance.random() < shell:
            payload = {"argv": ["sh", "-c", SHELL, str(crew.journal.path)]}
            specs.append(RunSpec(handler="shell", executor="shell", payload=payload, retry=STUBBORN))
        else:
            kind = crew.chance.choice(("quick", "waits", "waits", "thread"))
            specs.append(RunSpec(handler=kind, payload=None if kind == "quick" else {"ms": ms}))
    return specs


def judge(crew: Fleet, runs: Sequence[Run], *, burnt: bool = True) -> Counter[str]:
    """Nothing lost, no attempt started twice, and the store tells the same story as the journal."""
    lines, why = crew.journal.lines(), f"seed {crew.seed}"
    accepted = {run.id for run in runs}
    assert {run.status for run in runs} == {RunStatus.SUCCEEDED}, why
    starts = Counter((line.run, line.attempt) for line in lines if line.what == "start")
    ends = Counter((line.run, line.attempt) for line in lines if line.what == "end")
    twice = [pair for pair, count in starts.items() if count > 1]
    assert not twice, f"{why}: started twice: {twice[:5]}"
    assert {run for run, _ in starts} == accepted, f"{why}: started, and accepted, are not the same runs"
    assert {run for run, _ in ends} == accepted, f"{why}: some run never came to its end"
    assert not ends.keys() - starts.keys(), why
    for run in runs:
        pair = (run.id, run.attempt)
        assert ends[pair] == 1, f"{why}: the store says {pair} succeeded, the journal says it never ended"
        if not burnt:
            assert run.spent == 0, f"{why}: {pair} lost {run.spent} attempts"
    return Counter(runs=len(runs), starts=len(starts), cut_short=len(starts) - len(ends))
