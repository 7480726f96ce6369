"""Connections that die without a word, while new ones work at once: every part is back at work soon."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import select, text

from fusee import Fusee, RetryPolicy
from fusee.config import load
from fusee.engine.model.run import RunSpec
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Finished, Order
from fusee.engine.store.postgres import COPY_FROM
from fusee.engine.store.rows import Bulk
from fusee.engine.store.tables import runs
from fusee.engine.store.watched_engine import SLACK
from fusee.errors import StoreUnavailable
from fusee.events import LoopFailed, SessionExpired
from fusee.stores import Store, open_store
from fusee.tasks.store.history import FireFilter
from tests.chaos.inside import Journal, Seen, all_ended, until, working
from tests.chaos.silence import proxied

TIMEOUT = 1.0
"""The statement timeout of most tests here, in seconds."""
BACK = 60.0
"""Seconds to wait for what takes a few; the kernel alone takes 900."""


@pytest.fixture(params=["postgres", "mysql"])
def server_url(request: pytest.FixtureRequest) -> str:
    """The databases that are reached by a network."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def make(url: str, *, broker: dict[str, Any] | None = None, **worker: Any) -> Fusee:
    settings = {
        "heartbeat_interval_seconds": 0.5,
        "lease_ttl": 30.0,
        "poll_interval": 0.1,
        "drain_timeout": 10.0,
        **worker,
    }
    return Fusee(
        config=load(
            env={},
            overrides={
                "database": {"url": url, "statement_timeout": TIMEOUT},
                "worker": settings,
                "dispatcher": {"recover_interval": 0.2, "schedule_interval_seconds": 0.1},
                "api": {"bind_address": "127.0.0.1:0"},
                **({"broker": broker} if broker else {}),
            },
        )
    )


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Store]:
    store = open_store(url, **{"statement_timeout": TIMEOUT, **options})
    await store.open()
    try:
        await store.upgrade()
        yield store
    finally:
        await store.close()


async def fill_pools(store: Store) -> None:
    """As many connections as there may be."""
    now = text("SELECT 1")
    await asyncio.gather(
        *(store.database.read(lambda c: c.execute(now).scalar_one()) for _ in range(20)),
        *(store.run_writer.enqueue([RunSpec(handler="work")]) for _ in range(20)),
    )


async def patiently(ask: Any) -> Any:
    """What it returns once the store answers."""
    answers: list[Any] = []

    async def answered() -> bool:
        try:
            answers.append(await ask())
        except StoreUnavailable:
            return False
        return True

    await until(answered, BACK, "an answer")
    return answers[0]


async def test_statements_on_dead_connections_are_given_up_and_the_next_ones_work(server_url: str) -> None:
    async with proxied(server_url) as (proxy, url), opened(url) as store:
        await fill_pools(store)
        dead = proxy.go_silent()
        assert dead >= 4
        asked = [patiently(store.ping) for _ in range(10)]
        asked += [patiently(lambda: store.run_writer.enqueue([RunSpec(handler="work")])) for _ in range(10)]
        asked += [patiently(lambda: store.claims.exchange(0, Finished(), Order())) for _ in range(4)]
        await asyncio.wait_for(asyncio.gather(*asked), BACK)


async def test_a_connection_that_missed_its_deadline_is_closed_and_not_used_again(server_url: str) -> None:
    async with proxied(server_url) as (proxy, url), opened(url) as store:
        await fill_pools(store)
        proxy.go_silent()

        async def all_closed() -> bool:
            asked = [store.ping() for _ in range(8)] + [
                store.run_writer.enqueue([RunSpec(handler="work")]) for _ in range(8)
            ]
            await asyncio.gather(*asked, return_exceptions=True)
            # PostgreSQL's listener is asked once in ten seconds.
            return proxy.still_held <= (1 if store.database.capabilities.notify else 0)

        await until(all_closed, BACK, "the end of all dead connections")


async def test_a_statement_that_takes_too_long_is_given_up_with_a_reason(server_url: str) -> None:
    sleep = "SELECT pg_sleep(20)" if server_url.startswith("postgres") else "SELECT SLEEP(20)"
    async with opened(server_url) as store:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.database.read(lambda connection: connection.execute(text(sleep)).all())
        assert time.monotonic() - began < 15
        await store.ping()


async def test_a_unit_of_many_statements_may_take_longer_than_one_of_them(server_url: str) -> None:
    each = TIMEOUT / 2
    sleep = text(f"SELECT {'pg_sleep' if server_url.startswith('postgres') else 'SLEEP'}({each})")
    many = round((TIMEOUT + SLACK) / each) + 2

    def work(connection: Any) -> int:
        return sum(len(connection.execute(sleep).all()) for _ in range(many))

    async with opened(server_url) as store:
        assert await store.database.write(work) == many


_SLOWLY = """
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(TG_ARGV[0]::float); RETURN NULL; END $$;
CREATE TRIGGER slowly AFTER INSERT ON fusee_runs FOR EACH STATEMENT EXECUTE FUNCTION slowly({each});
CREATE TRIGGER slowly AFTER INSERT ON fusee_ready FOR EACH STATEMENT EXECUTE FUNCTION slowly({each});
CREATE CONSTRAINT TRIGGER at_the_end AFTER INSERT ON fusee_ready DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION slowly({row})"""


async def test_many_runs_are_inserted_while_none_of_their_statements_takes_too_long(
    postgres_url: str,
) -> None:
    """Two COPYs and the commit together take longer than one statement may."""
    many, timeout = COPY_FROM, 4.0
    each = 1.1 * (timeout + SLACK) / 3
    async with opened(postgres_url, statement_timeout=timeout) as store:
        await store.run_writer.enqueue([RunSpec(handler="work")])
        database: Any = store.database
        (lane,) = await database.read(lambda c: c.execute(select(runs.c.lane_id)).scalars().all())
        async with database.hot_pool.acquired() as connection:
            await connection.execute(_SLOWLY.format(each=each, row=each / many))
        bulk = Bulk([lane] * many, [0] * many, [None] * many, [None] * many, [None] * many)
        began = time.monotonic()
        ids = await database.insert_bulk(store.namespace, bulk)
        assert len(ids) == many
        assert time.monotonic() - began > database.limits.deadline, "else this test has shown nothing"


async def test_a_unit_that_may_take_long_is_not_cut_off(server_url: str) -> None:
    seconds = TIMEOUT + SLACK + 0.5
    sleep = text(f"SELECT {'pg_sleep' if server_url.startswith('postgres') else 'SLEEP'}({seconds})")
    async with opened(server_url) as store:
        rows = await store.database.write(lambda c: c.execute(sleep).all(), within=30)
        assert len(rows) == 1


async def test_whoever_waits_for_a_connection_says_so(
    server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log after a while, and to the caller in the end, with the setting that limits it."""
    async with opened(server_url, max_connections=3) as store:
        pool: Any = store.database.engine.pool  # type: ignore[attr-defined]
        held = [await store.database.engine.connect() for _ in range(pool.size())]  # type: ignore[attr-defined]
        refused = pytest.raises(StoreUnavailable, match=r"database\.max_connections \(3\)")
        with caplog.at_level(logging.WARNING, "fusee.store"), refused:
            await store.ping()
        assert "waiting for a database connection" in caplog.text
        for connection in held:
            await connection.close()
        await store.ping()


def _options(sock: Any) -> dict[str, int]:
    return {
        "alive": sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        "idle": sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        "timeout": sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    }


async def test_the_kernel_watches_every_connection_to_the_database(server_url: str) -> None:
    wanted = {"alive": 1, "idle": 5, "timeout": 15_000}
    async with opened(server_url) as store:
        database: Any = store.database
        async with database.engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert _options(driver._transport.get_extra_info("socket")) == wanted
        async with database.hot_pool.acquired() as found:
            driver = found if database.capabilities.notify else found[0]
            assert _options(driver._transport.get_extra_info("socket")) == wanted


async def test_the_server_too_notices_that_a_client_is_gone(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        query = text(
            "SELECT name, setting FROM pg_settings"
            " WHERE name IN ('tcp_keepalives_idle', 'tcp_keepalives_count', 'tcp_user_timeout')"
        )
        rows = await store.database.read(lambda connection: connection.execute(query).all())
    found = {row.name: int(row.setting) for row in rows}
    assert 0 < found["tcp_keepalives_idle"] <= 10
    assert found["tcp_user_timeout"] == 15_000


# --- the parts


async def test_a_worker_goes_on_and_keeps_its_lease(server_url: str) -> None:
    """What runs goes on running under the same session; delayed runs and new queues are served."""
    journal, let_go = Journal(), asyncio.Event()
    async with proxied(server_url) as (proxy, url):
        app, outside = make(url), make(server_url)
        seen = Seen(app.bus, SessionExpired)

        @app.handler("hang", retry=RetryPolicy(max_attempts=1))
        async def hang() -> None:
            journal.start()
            await let_go.wait()

        @app.handler("work")
        async def work() -> None:
            journal.start()

        async with outside:
            dispatcher = outside.dispatcher()
            dispatching = asyncio.create_task(dispatcher.run())
            async with working(app, dispatcher=False) as worker:
                session = worker.session
                held = await outside.enqueue("hang")
                await until(lambda: journal.started(held))
                assert proxy.go_silent() >= 2
                handles = [
                    await outside.enqueue("work"),
                    await outside.enqueue("work", delay=0.1),
                    await outside.enqueue("work", queue="a-new-one"),
                ]
                await all_ended(outside, handles, BACK)
                let_go.set()
                (run,) = await all_ended(outside, [held], BACK)
                assert worker.session == session
            dispatcher.stop()
            await dispatching
    assert run.status is RunStatus.SUCCEEDED
    assert not seen.events


async def test_a_dispatcher_fires_again(server_url: str) -> None:
    async with proxied(server_url) as (proxy, url):
        app, outside = make(url), make(server_url)
        seen = Seen(app.bus, LoopFailed)
        async with outside, app:
            dispatcher = app.dispatcher()
            dispatching = asyncio.create_task(dispatcher.run())
            tick = {"name": "tick", "handler": "work", "every": 1}
            await outside.tasks.create(tick, allow_unknown=True)
            fires = 0

            async def fired() -> bool:
                return len(await outside.tasks.fires("tick", FireFilter(limit=1000))) > fires

            await until(fired, BACK)
            assert proxy.go_silent() >= 1
            fires = len(await outside.tasks.fires("tick", FireFilter(limit=1000)))
            fires += 1  # one may have been decided as the connections died
            await until(fired, BACK, "a fire")
            dispatcher.stop()
            await dispatching
        assert all(isinstance(event.error, StoreUnavailable) for event in seen.of(LoopFailed))


async def test_the_api_answers_again(server_url: str, serving: Any) -> None:
    runs, run = "/api/v1/runs", {"handler": "greet"}
    async with proxied(server_url) as (proxy, url):
        database = {"url": url, "statement_timeout": TIMEOUT}
        async with serving(database=database) as served:
            asked = [served.ask("GET", runs) for _ in range(10)]
            assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}
            proxy.go_silent()
            asked = [served.ask("GET", runs) for _ in range(10)]
            asked += [served.ask("POST", runs, json=run) for _ in range(10)]
            answers = await asyncio.wait_for(asyncio.gather(*asked), BACK)
            assert {status for status, _, _ in answers} <= {200, 201, 503}

            async def works() -> bool:
                status, _, _ = await served.ask("POST", runs, json=run)
                assert status in (201, 503)
                return bool(status == 201)

            await until(works, BACK)


async def test_the_listener_hears_again(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusee.engine.store.postgres_connections.LISTENER_ASKED_EVERY", 0.2)
    heard = asyncio.Event()
    async with proxied(postgres_url) as (proxy, url), opened(url) as store, opened(postgres_url) as outside:
        store.wakes.on("pending", heard.set)

        async def hears() -> bool:
            """Nothing but the notification of another process tells this one."""
            heard.clear()
            await outside.run_writer.enqueue([RunSpec(handler="work")])
            try:
                await asyncio.wait_for(heard.wait(), 1)
            except TimeoutError:
                return False
            return True

        await until(hears, BACK, "a hint")
        assert proxy.go_silent() >= 1
        await until(hears, BACK, "a hint after the silence")
