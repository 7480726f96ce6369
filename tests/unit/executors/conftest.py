"""Jobs, patience and processes for the executors' tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusee.engine.worker.executor import Job
from fusee.engine.worker.handlers import Handler, Handlers


@pytest.fixture(autouse=True, scope="session")
def _bytecode(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Many interpreters are started here: the second need not compile what the first did."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        cache = pytestconfig.cache
        place = cache.mkdir("bytecode") if cache else tmp_path_factory.mktemp("bytecode")
        patch.setenv("PYTHONPYCACHEPREFIX", str(place))
        yield


@pytest.fixture
def job() -> Callable[..., Job]:
    """`job(argv=[…])`: an attempt with that payload."""

    def make(*, grace: float = 5.0, timeout: float | None = None, **payload: Any) -> Job:
        return Job(
            run_id=7,
            attempt=2,
            handler="test",
            queue="default",
            payload=payload,
            timeout=timeout,
            grace=grace,
        )

    return make


@pytest.fixture
def handler() -> Callable[..., Handler]:
    """`handler(function)`: registered as a worker would."""

    def make(function: Callable[..., Any], isolation: str | None = None) -> Handler:
        return Handlers().register("test", function, isolation=isolation)

    return make


@pytest.fixture
def until() -> Callable[..., Any]:
    """`await until(lambda: …)`: looks again and again until it holds, and answers what it saw."""

    async def wait(holds: Callable[[], Any], seconds: float = 5.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (seen := holds()):
            assert time.monotonic() < deadline, "it did not come true"
            await asyncio.sleep(0.005)
        return seen

    return wait


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process runs; one that is dead and not yet reaped does not."""

    def look(pid: int) -> bool:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return False
        return state not in "ZX"

    return look


@pytest.fixture
def python() -> Callable[..., subprocess.Popen[bytes]]:
    """`python(…)`: another interpreter, running."""
    return lambda *args: subprocess.Popen([sys.executable, *args])


@pytest.fixture
def pids(tmp_path: Path) -> Callable[[int], list[int]]:
    """`pids(3)`: the three process ids that a script wrote, one a file, into `tmp_path`; else nothing."""

    def read(count: int) -> list[int]:
        texts = [file.read_text() for file in tmp_path.glob("*.pid")]
        found = [int(text) for text in texts if text.endswith("\n")]
        return found if len(found) == count else []

    return read
