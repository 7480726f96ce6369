"""The servers that other tests rely on: they answer, survive `kill -9`, and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tools import servers

# A client that was left inside a transaction, holding a lock on the table.
GUEST = """
import asyncio, sys
from urllib.parse import urlsplit
import asyncmy, asyncpg

async def sit(url):
    if url.startswith("postgres"):
        link = await asyncpg.connect(url)
        await link.execute("begin; select * from kept")
    else:
        at = urlsplit(url)
        link = await asyncmy.connect(
            host=at.hostname, port=at.port, user=at.username, password=at.password or "", database=at.path[1:]
        )
        async with link.cursor() as cursor:
            await cursor.execute("select * from kept")
    print("reading", flush=True)
    await asyncio.Event().wait()

asyncio.run(sit(sys.argv[1]))
"""


@pytest.fixture(params=["postgres", "mysql"])
def database_server(request: pytest.FixtureRequest) -> servers.Database:
    server: servers.Database = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture(params=["postgres", "mysql"])
def private_server(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[servers.Database]:
    """One of the test's own: the session's must not be killed under other tests."""
    monkeypatch.delenv(f"FUSEE_TEST_{request.param.upper()}_URL", raising=False)
    start: Callable[[], servers.Database] = getattr(servers, request.param)
    try:
        server = start()
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    with server:
        yield server


def test_postgres_answers(postgres_url: str) -> None:
    [(version,)] = servers.run_sql(postgres_url, "select version()")
    assert version.startswith("PostgreSQL")


def test_mysql_answers(mysql_url: str) -> None:
    [(version,)] = servers.run_sql(mysql_url, "select version()")
    assert version


def test_a_database_given_back_is_empty_and_free_of_guests(database_server: servers.Database) -> None:
    url = database_server.create_database()
    servers.run_sql(url, "create table kept (n int)")
    guest = subprocess.Popen([sys.executable, "-c", GUEST, url], stdout=subprocess.PIPE)
    try:
        assert guest.stdout is not None
        assert guest.stdout.readline() == b"reading\n"
        database_server.give_back(url)
    finally:
        guest.kill()
        guest.communicate()
    again = database_server.create_database()
    servers.run_sql(again, "create table kept (n int)")
    database_server.give_back(again)


def test_committed_data_survives_kill_9(private_server: servers.Database) -> None:
    url = private_server.create_database()
    servers.run_sql(url, "create table kept (n int)")
    servers.run_sql(url, "insert into kept values (7)")
    before = private_server.pids

    private_server.restart(kill=True)

    assert [tuple(row) for row in servers.run_sql(url, "select n from kept")] == [(7,)]
    assert not {*before} & {*private_server.pids}


def test_nothing_is_left_after_stop(private_server: servers.Database) -> None:
    port = urlsplit(private_server.url).port
    assert port
    leaders = [psutil.Process(pid) for pid in private_server.pids]
    started = [process for leader in leaders for process in (leader, *leader.children(recursive=True))]
    folders = {Path(leader.environ()["HOME"]) for leader in leaders}

    private_server.stop()

    assert not private_server.engine.answers(port)
    assert not servers.outliving(started, 0)
    assert not [folder for folder in folders if folder.exists()]


def test_nothing_is_left_when_the_one_who_started_it_is_killed() -> None:
    command = [sys.executable, str(Path(servers.__file__)), "postgres"]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline().startswith("postgresql://")
        orphans = psutil.Process(owner.pid).children(recursive=True)
        [leader] = [child for child in psutil.Process(owner.pid).children() if child.name() == "postgres"]
        folder = Path(leader.environ()["HOME"])
        assert folder.exists()
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()

    assert not servers.outliving(orphans, 10)
    assert not folder.exists()


def test_an_outside_server_is_used_and_never_stopped(
    postgres_server: servers.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEE_TEST_POSTGRES_URL", postgres_server.url)
    with servers.postgres() as outside:
        url = outside.create_database()
        with pytest.raises(servers.Unavailable, match="FUSEE_TEST_POSTGRES_URL is not ours to stop"):
            outside.restart(kill=True)
    name = urlsplit(url).path.lstrip("/")
    found = servers.run_sql(postgres_server.url, f"select 1 from pg_database where datname = '{name}'")
    assert found == []


def test_a_machine_without_the_server_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEE_TEST_MYSQL_URL", raising=False)
    monkeypatch.setattr(servers, "docker_runs", lambda: False)
    monkeypatch.setattr(servers, "found", lambda binary: None)
    monkeypatch.setattr(servers, "install", lambda engine: False)
    with pytest.raises(
        servers.Unavailable, match="MariaDB tests need root with apt, Docker, or: export FUSEE_"
    ):
        servers.mysql()
