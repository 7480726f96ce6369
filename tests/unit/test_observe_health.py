"""Readiness: why not, in words that may be shown to anyone."""

from __future__ import annotations

import asyncio

import pytest

from fusee.errors import StoreUnavailable
from fusee.events import Bus, LoopFailed
from fusee.observe import Health, health
from fusee.observe.health import FAILURES, FRESH, SCHEMA_EVERY, WITHIN


class Database:
    def __init__(self) -> None:
        self.has: str | None = "0001"
        self.error: Exception | None = None
        self.pings = self.looks = 0

    async def ping(self) -> None:
        self.pings += 1
        if self.error:
            raise self.error

    async def revision(self) -> tuple[str | None, str]:
        self.looks += 1
        return self.has, "0002"


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def watched(database, now) -> Health:
    return Health(Bus(), ping=database.ping, revision=database.revision, now=lambda: now[0])


async def test_schema(watched, database, now):
    assert await watched.reasons() == [
        "the schema is at 0001 and this version wants 0002: run `fusee db upgrade`"
    ]
    database.has = None
    now[0] += FRESH
    assert "no schema" in (await watched.reasons())[0]
    for fits in ("0002", "0003"):  # a newer schema still works: it expands before it contracts
        database.has = fits
        now[0] += SCHEMA_EVERY
        assert await watched.reasons() == []


async def test_asking_often_asks_the_database_little(watched, database, now):
    database.has = "0002"
    await asyncio.gather(*(watched.reasons() for _ in range(20)))
    assert (database.pings, database.looks) == (1, 1)
    now[0] += FRESH
    await watched.reasons()
    assert (database.pings, database.looks) == (2, 1)


async def test_a_database_that_is_away(watched, database, caplog):
    database.error = StoreUnavailable("db.internal refused user fusee")
    assert await watched.reasons() == ["the database did not answer"]
    assert "db.internal" in caplog.records[-1].error


async def test_a_database_that_hangs(now, monkeypatch):
    monkeypatch.setattr(health, "PATIENCE", 0.01)

    async def hang() -> None:
        await asyncio.Event().wait()

    watched = Health(Bus(), ping=hang, revision=Database().revision, now=lambda: now[0])
    assert await watched.reasons() == ["the database did not answer within 0.01 s"]


async def test_loops(watched, database, now):
    database.has = "0002"

    async def fail() -> None:
        watched.bus.emit(LoopFailed(loop="recover", error=RuntimeError(), failures=1))
        now[0] += FRESH

    for _ in range(FAILURES - 1):
        await fail()
        assert await watched.reasons() == []
    await fail()
    assert await watched.reasons() == ["the recover loop keeps failing"]
    now[0] += WITHIN
    assert await watched.reasons() == []
