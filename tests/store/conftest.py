"""One world per test and engine. The schema is made once an engine: making it costs more than most tests."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Connection, text

from fusee.stores import Store, open_store
from tests.conftest import ENGINES
from tests.store.clockwork import Clockwork
from tests.store.harness import (
    DATABASE_NOW,
    START,
    ManualDatabaseClock,
    ProcessClock,
    World,
    broken_invariants,
    sweep_clean,
)
from tests.store.transitions import guard_transitions
from tools import servers


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The test runs once per engine."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """Engine → URL of a database with the schema in it, made when first asked for."""
    urls: dict[str, str] = {}

    def url_of(engine: str) -> str:
        if engine not in urls:
            if engine == "sqlite":
                urls[engine] = f"sqlite:///{tmp_path_factory.mktemp('template')}/fusee.db"
            else:
                server: servers.Database = request.getfixturevalue(f"{engine}_server")
                urls[engine] = server.create_database()
            with ThreadPoolExecutor(1) as thread:  # a loop of its own: one may be running here
                thread.submit(lambda: asyncio.run(_upgrade(urls[engine]))).result()
        return urls[engine]

    return url_of  # the servers take their databases with them


async def _upgrade(url: str) -> None:
    def make_clock(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE test_clock (us BIGINT NOT NULL)"))
        connection.execute(text(f"INSERT INTO test_clock VALUES ({START})"))

    store = open_store(url)
    await store.open()
    try:
        await store.upgrade()
        await store.database.write(guard_transitions)
        if not url.startswith("sqlite"):
            await store.database.write(make_clock)
    finally:
        await store.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def opened() -> AsyncIterator[dict[str, Store]]:
    """Server → a store that stays open for all tests, in the loop of all tests: connecting takes long."""
    stores: dict[str, Store] = {}
    yield stores
    for store in stores.values():
        await store.close()


@pytest_asyncio.fixture(loop_scope="session")
async def world(
    engine: str, upgraded: Callable[[str], str], opened: dict[str, Store], tmp_path: Path
) -> AsyncIterator[World]:
    """An empty store on a clock that the test moves; afterwards the invariants must hold."""
    url = upgraded(engine)
    if engine == "sqlite":
        shutil.copy(url.removeprefix("sqlite:///"), tmp_path / "fusee.db")
        world = World(f"sqlite:///{tmp_path}/fusee.db", ProcessClock())
        await world.another()
    else:
        if engine not in opened:
            opened[engine] = open_store(url, now=DATABASE_NOW)
            await opened[engine].open()
        world = World(url, ManualDatabaseClock(), Store(opened[engine].database))
    try:
        yield world
        wrong = await world.store.database.read(broken_invariants)
    finally:
        if engine != "sqlite":
            await world.store.database.write(sweep_clean)
            await world.sql(f"UPDATE test_clock SET us = {START}")
        await world.close()
    assert not wrong, "after the test: " + "; ".join(wrong)


@pytest_asyncio.fixture(loop_scope="session")
async def works(world: World) -> Clockwork:
    """The same world, with tasks in mind."""
    return await Clockwork.wind(world)


@pytest.fixture
def store(world: World) -> Store:
    return world.store
