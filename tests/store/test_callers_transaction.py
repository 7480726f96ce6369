"""Runs that are accepted in a caller's own transaction, on SQLite with an engine as SQLAlchemy makes it.

Python's driver begins a transaction at the first INSERT, UPDATE or DELETE, and not at a savepoint: releasing
a savepoint that began one commits it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from fusee.engine.model.run import RunSpec
from fusee.engine.store.runs import RunFilter
from fusee.stores import Store, open_store

GREET = RunSpec(handler="greet")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/fusee.db")
    await store.open()
    await store.upgrade()
    yield store
    await store.close()


@pytest.fixture
def engine(store: Store, tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/fusee.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    yield engine
    engine.dispose()


async def handlers(store: Store) -> list[str]:
    return [run.handler for run in await store.runs.runs(RunFilter())]


@pytest.mark.parametrize("known", [False, True], ids=["new-lane", "known-lane"])
async def test_a_rollback_takes_the_run_back_when_it_was_the_first_write(
    store: Store, engine: Engine, known: bool
) -> None:
    if known:
        await store.run_writer.enqueue([GREET])
    before = await handlers(store)
    with engine.connect() as connection:
        store.run_writer.enqueue_within(connection, [GREET])
        connection.execute(text("INSERT INTO orders VALUES (7)"))
        connection.rollback()
    assert await handlers(store) == before
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar_one() == 0


async def test_nobody_sees_the_run_before_the_commit(store: Store, engine: Engine) -> None:
    with engine.begin() as connection:
        store.run_writer.enqueue_within(connection, [GREET])
        assert await handlers(store) == []
    assert await handlers(store) == ["greet"]


async def test_a_transaction_that_has_begun_goes_on(store: Store, engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO orders VALUES (7)"))
        store.run_writer.enqueue_within(connection, [GREET])
        connection.rollback()
        store.run_writer.enqueue_within(connection, [GREET])
        connection.commit()
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar_one() == 0
    assert await handlers(store) == ["greet"]


async def test_without_transactions_the_run_is_there_at_once(store: Store, engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        store.run_writer.enqueue_within(connection, [GREET])
        assert await handlers(store) == ["greet"]
