"""Hints that came while nobody could hear them: whoever waits for one looks once they are heard again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fusee.app.dispatcher import Dispatcher
from fusee.broker.rabbitmq.topology import Topology
from fusee.broker.rabbitmq.work_source import RabbitWorkSource
from fusee.engine.store import wakes
from fusee.engine.store.wakes import Wakes
from fusee.events import Bus
from fusee.stores import open_store
from tests.chaos.inside import until

KINDS = [getattr(wakes, name) for name in wakes.__all__ if name.isupper()]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_hint_fires_again_after_the_listener_reconnects(
    postgres_url: str, kind: str
) -> None:
    store, heard = open_store(postgres_url), asyncio.Event()
    store.wakes.on(kind, heard.set)
    await store.open()
    try:
        await asyncio.wait_for(heard.wait(), 30)  # the first time, too: something may have come before
        heard.clear()
        ended = await store.database.read(_end_listeners)
        assert ended >= 1
        await asyncio.wait_for(heard.wait(), 30)
    finally:
        await store.close()


def _end_listeners(connection: Any) -> int:
    query = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'fusee-listen' AND datname = current_database()"
    )
    return int(connection.exec_driver_sql(query).scalar_one())


async def test_a_kind_that_nobody_thought_of_fires_too() -> None:
    heard: list[str] = []
    hints = Wakes()
    for kind in (*KINDS, "a kind of next year"):
        hints.on(kind, lambda kind=kind: heard.append(kind))  # type: ignore[misc]
    hints.fire_all()
    assert heard == [*KINDS, "a kind of next year"]


async def test_all_loops_of_a_dispatcher_look_when_its_listener_is_back(postgres_url: str) -> None:
    """Among them the scan and the aggregation."""
    store = open_store(postgres_url)
    await store.open()
    try:
        await store.upgrade()
        dispatcher = Dispatcher(store, Bus(), interval=3600)
        running = asyncio.create_task(dispatcher.run())
        passes = dict.fromkeys(("scan", "aggregate", "promote"), 0)

        def counted(name: str) -> None:
            service = getattr(dispatcher, name)
            look = service.run_once

            async def run_once() -> Any:
                passes[name] += 1
                return await look()

            service.run_once = run_once

        for name in passes:
            counted(name)
        await until(lambda: store.wakes._callbacks.get("schedule"), 30)
        before = dict(passes)
        await store.database.read(_end_listeners)
        await until(lambda: all(passes[name] > before[name] for name in passes), 30, "a pass of each")
        dispatcher.stop()
        await running
    finally:
        await store.close()


async def test_a_worker_without_a_database_looks_when_it_is_connected_again() -> None:
    """Hints over RabbitMQ go to whoever is connected."""

    class Quiet:
        def on_connect(self, set_up: Any, tear_down: Any = None) -> None:
            self.set_up = set_up

    connection: Any = Quiet()
    work_source = RabbitWorkSource(connection, Topology(), namespace="default")
    heard: list[str] = []
    for kind in ("cancel", "drain", "pending"):
        work_source.wakes.on(kind, lambda kind=kind: heard.append(kind))  # type: ignore[misc]
    await connection.set_up(None)
    assert heard == ["cancel", "drain", "pending"]
