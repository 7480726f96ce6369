"""When the database can store nothing just now, callers are told so (503), why, and when to come back."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from fusee import Fusee
from fusee.app.cli.node import Node, Parts, Started
from fusee.app.cli.root import cli
from fusee.batches.grpc import BatchSchedulerService
from fusee.config import load
from fusee.engine.model.run import RunSpec
from fusee.engine.store.conditions import (
    DISK_FULL,
    MYSQL,
    NO_SLOTS,
    POSTGRESQL,
    SQLITE,
    Condition,
    condition_of,
)
from fusee.errors import StoreUnavailable
from fusee.stores import open_store
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.grpc.generated import batch_scheduler_pb2 as pb
from tests.chaos.inside import until
from tools import servers

RUNS = "/api/v1/runs"

# --- each condition of each database, as the database itself tells it

PLPGSQL = """
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'host db-7 says no' USING ERRCODE = '{code}'; END $$;
DROP TRIGGER IF EXISTS refuse ON fusee_runs;
CREATE TRIGGER refuse BEFORE INSERT ON fusee_runs FOR EACH ROW EXECUTE FUNCTION refuse();
"""


def refuse_on_postgres(url: str, code: str) -> None:
    for statement in PLPGSQL.format(code=code).strip().split(";\n"):
        if "LANGUAGE" in statement or "TRIGGER" in statement:
            servers.run_sql(url, statement)


def refuse_on_mysql(url: str, code: int) -> None:
    servers.run_sql(url, "DROP TRIGGER IF EXISTS refuse")
    servers.run_sql(
        url,
        "CREATE TRIGGER refuse BEFORE INSERT ON fusee_runs FOR EACH ROW"
        f" SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'host db-7 says no'",
    )


async def check(served: Any, condition: Condition) -> None:
    """By the hot statements, and by the others."""
    plain = served.ask("POST", RUNS, json={"handler": "greet"})
    keyed = served.ask("POST", RUNS, json={"handler": "greet"}, headers={"Idempotency-Key": "one"})
    for asked in (plain, keyed):
        status, problem, headers = await asked
        assert status == 503, (condition, problem)
        assert headers["Retry-After"] == str(condition.retry_after)
        assert problem["detail"].startswith(condition.sentence)
        assert "db-7" not in str(problem)


async def test_each_condition_of_postgresql_is_503_with_a_reason(postgres_url: str, serving: Any) -> None:
    async with serving(database={"url": postgres_url}) as served:
        for code, condition in POSTGRESQL.items():
            await asyncio.to_thread(refuse_on_postgres, postgres_url, code)
            await check(served, condition)
        await asyncio.to_thread(servers.run_sql, postgres_url, "DROP TRIGGER refuse ON fusee_runs")
        assert (await served.ask("POST", RUNS, json={"handler": "greet"}))[0] == 201
        assert await served.count() == 1


async def test_each_condition_of_mysql_is_503_with_a_reason(mysql_url: str, serving: Any) -> None:
    told = {code: one for code, one in MYSQL.items() if 1000 <= code < 2000 and code not in (1205, 1213)}
    async with serving(database={"url": mysql_url}) as served:
        for code, condition in told.items():
            await asyncio.to_thread(refuse_on_mysql, mysql_url, code)
            await check(served, condition)
        await asyncio.to_thread(servers.run_sql, mysql_url, "DROP TRIGGER refuse")
        assert (await served.ask("POST", RUNS, json={"handler": "greet"}))[0] == 201
        assert await served.count() == 1


@pytest.mark.parametrize("pragma", ["max_page_count = 1", "query_only = 1"])
async def test_a_full_or_read_only_file_is_no_error_of_ours(tmp_path: Path, pragma: str) -> None:
    store = open_store(f"sqlite:///{tmp_path}/fusee.db")
    await store.open()
    try:
        await store.upgrade()
        engine = store.database._write_engine  # type: ignore[attr-defined]

        def limit() -> None:
            with engine.connect() as connection:
                connection.connection.driver_connection.execute(f"PRAGMA {pragma}")

        await asyncio.get_running_loop().run_in_executor(store.database._writer, limit)  # type: ignore[attr-defined]
        for spec in (RunSpec(handler="x" * 100), RunSpec(handler="x", idempotency_key="k")):
            with pytest.raises(StoreUnavailable) as told:
                for _ in range(500):  # until the pages that there are have been filled
                    await store.run_writer.enqueue([spec, RunSpec(handler="x", payload={"much": "x" * 5000})])
            assert told.value.public in {one.sentence for one in SQLITE.values()}
    finally:
        await store.close()


async def test_a_read_only_postgresql_is_told_as_one(postgres_url: str, serving: Any) -> None:
    async with serving(database={"url": postgres_url}):
        pass  # its schema is there
    name = postgres_url.rpartition("/")[2]
    servers.run_sql(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with serving(database={"url": postgres_url, "migrate": False}) as served:
        await check(served, POSTGRESQL["25006"])
        assert (await served.ask("GET", RUNS))[0] == 200


def test_a_mistake_of_ours_is_not_taken_for_a_condition() -> None:
    assert condition_of(KeyError(1040)) is None
    assert condition_of(ValueError(3, "28")) is None
    assert condition_of(None) is None


# --- no connection slot


@pytest.fixture
def slotless(postgres_url: str) -> Any:
    """A role that may not connect as often as it would like: (its URL, a way to raise the limit)."""
    name = postgres_url.rpartition("/")[2]
    role = f"r_{secrets.token_hex(6)}"
    servers.run_sql(postgres_url, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
    servers.run_sql(postgres_url, f"ALTER DATABASE {name} OWNER TO {role}")
    servers.run_sql(postgres_url, f"GRANT ALL ON SCHEMA public TO {role}")
    url = postgres_url.replace("postgres@", f"{role}@", 1)

    def allow(many: int) -> None:
        servers.run_sql(postgres_url, f"ALTER ROLE {role} CONNECTION LIMIT {many}")

    yield url, allow
    servers.run_sql(postgres_url, f"REASSIGN OWNED BY {role} TO postgres")
    servers.run_sql(postgres_url, f"DROP OWNED BY {role}")
    servers.run_sql(postgres_url, f"DROP ROLE {role}")


async def test_no_slot_is_503_until_there_is_one(slotless: Any, serving: Any) -> None:
    url, allow = slotless
    await asyncio.to_thread(allow, 20)
    async with serving(database={"url": url}) as served:
        await asyncio.to_thread(allow, 1)
        asked = [served.ask("GET", RUNS) for _ in range(8)]
        answers = await asyncio.gather(*asked)
        assert {status for status, _, _ in answers} <= {200, 503}
        refused = [problem for status, problem, _ in answers if status == 503]
        assert refused and all(problem["detail"].startswith(NO_SLOTS.sentence) for problem in refused)
        await asyncio.to_thread(allow, 20)
        assert (await served.ask("GET", RUNS))[0] == 200


def test_a_command_without_a_slot_exits_with_6(slotless: Any) -> None:
    url, _ = slotless
    done = CliRunner().invoke(cli, ["run", "list", "--database", url])
    assert done.exit_code == Exit.UNAVAILABLE
    assert NO_SLOTS.sentence in done.stderr and "Traceback" not in done.stderr


def node_of(url: str, wait: float) -> tuple[Node, list[Started]]:
    started: list[Started] = []
    overrides = {"database": {"url": url, "wait_at_start": wait}, "status": {"bind_address": None}}
    app = Fusee(config=load(env={}, overrides=overrides))
    return Node(app, Parts(dispatcher=True), started.append), started


async def test_a_process_without_a_slot_waits_at_its_start_and_says_so(
    slotless: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url, allow = slotless
    node, started = node_of(url, 120)
    with caplog.at_level(logging.WARNING, "fusee"):
        running = asyncio.create_task(node.run())
        await until(lambda: "waiting for the database" in caplog.text, 60)
        assert not running.done()
        await asyncio.to_thread(allow, 20)
        await until(lambda: started or running.done(), 60)
    (record, *_) = [one for one in caplog.records if one.message == "waiting for the database"]
    assert NO_SLOTS.sentence in record.error  # type: ignore[attr-defined]
    node.stop()
    await running


async def test_it_gives_up_after_a_while_with_exit_code_6(slotless: Any) -> None:
    from fusee.surfaces.cli.exits import Failure

    node, started = node_of(slotless[0], 0.2)
    with pytest.raises(Failure, match="no free connection") as told:
        await node.run()
    assert told.value.exit is Exit.UNAVAILABLE and not started


async def test_a_process_that_waits_can_be_stopped() -> None:
    node, _ = node_of("postgresql://nobody@127.0.0.1:1/x", 3600)
    running = asyncio.create_task(node.run())
    await asyncio.sleep(0)
    node.stop()
    await asyncio.wait_for(running, 30)


async def test_a_file_that_cannot_be_made_is_not_waited_for() -> None:
    from fusee.surfaces.cli.exits import Failure

    node, _ = node_of("sqlite:////no/such/folder/x.db", 3600)
    with pytest.raises(Failure, match="does its folder exist"):
        await asyncio.wait_for(node.run(), 30)


# --- gRPC


async def test_grpc_tells_the_same() -> None:
    class Context:
        told: Any = None

        def invocation_metadata(self) -> Any:
            return ()

        def set_trailing_metadata(self, metadata: Any) -> None:
            self.metadata = dict(metadata)

        async def abort(self, code: Any, detail: str) -> None:
            self.told = (code, detail)

    async def admit(_: Any) -> Any:
        raise StoreUnavailable(
            "host db-7: no space left", public=DISK_FULL.sentence, retry_after=DISK_FULL.retry_after
        )

    context = Context()
    service = BatchSchedulerService(lambda _: None, admit)  # type: ignore[arg-type, return-value]
    await service.TriggerEvent(pb.TriggerEventRequest(), context)
    code, detail = context.told
    assert code is grpc.StatusCode.UNAVAILABLE
    assert detail.startswith(DISK_FULL.sentence) and "db-7" not in detail
    assert context.metadata == {"retry-after": str(DISK_FULL.retry_after)}


async def test_a_statement_over_its_time_is_told_as_one(postgres_url: str) -> None:
    store = open_store(postgres_url, statement_timeout=0.3)
    await store.open()
    try:
        with pytest.raises(StoreUnavailable) as told:
            await store.database.read(
                lambda connection: connection.execute(text("SELECT pg_sleep(20)")).all()
            )
        assert "statement_timeout" in told.value.public
    finally:
        await store.close()
