"""The memory limit of a worker: when it is full, when it is not, and who is told."""

from __future__ import annotations

import logging

import pytest

from fusee.engine.worker.memory import MemoryLimit, resident
from fusee.events import Bus, WorkerMemory
from fusee.observe import Health
from fusee.observe.logs import log_events


class Used:
    def __init__(self, *amounts: int | None) -> None:
        self.amounts = list(amounts)

    def __call__(self) -> int | None:
        return self.amounts.pop(0)


def test_a_limit_is_kept_with_a_gap_and_told_once_for_each_change() -> None:
    bus, told = Bus(), []
    bus.subscribe(WorkerMemory, told.append)
    limit = MemoryLimit(100, "w", bus, Used(99, 100, 101, 150, 95, 91, 90, 100, 101))
    seen = []
    for _ in range(9):
        freed = limit.look()
        seen.append((limit.full, freed))
    assert seen == [
        (False, False), (False, False), (True, False), (True, False), (True, False), (True, False),
        (False, True), (False, False), (True, False),
    ]  # fmt: skip
    assert [(event.full, event.used) for event in told] == [(True, 101), (False, 90), (True, 101)]


def test_where_the_system_tells_nothing_the_limit_is_given_up_loudly() -> None:
    bus, told = Bus(), []
    bus.subscribe(WorkerMemory, told.append)
    limit = MemoryLimit(100, "w", bus, Used(None))
    assert [limit.look() for _ in range(3)] == [False] * 3
    assert [(event.used, event.full) for event in told] == [(None, False)]


def test_without_a_limit_nothing_is_measured() -> None:
    limit = MemoryLimit(None, "w", Bus(), Used())
    assert (limit.look(), limit.full) == (False, False)


@pytest.mark.skipif(resident() is None, reason="this system does not tell a process's memory")
def test_what_a_process_holds_is_measured() -> None:
    before = resident()
    held = bytearray(64 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    after = resident()
    assert before is not None and after is not None and after - before > 48 * 2**20
    del held


async def test_the_log_and_readiness_tell_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async def nothing() -> None: ...
    async def revision() -> tuple[str | None, str]:
        return "1", "1"

    bus = Bus()
    health = Health(bus, ping=nothing, revision=revision)
    forget = log_events(bus)
    with caplog.at_level(logging.INFO, "fusee"):
        limit = MemoryLimit(2**20, "w", bus, Used(2**21, 0))
        limit.look()
        assert health.warnings() == ["this worker is above its memory limit of 1 MiB: it claims nothing"]
        assert await health.reasons() == []
        limit.look()
    assert health.warnings() == []
    forget()
    lines = [record.message for record in caplog.records]
    assert any("above worker.max_memory" in line for line in lines)
    assert any("below worker.max_memory again" in line for line in lines)
