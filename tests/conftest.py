"""Servers and databases for the tests, and the rule that nothing is skipped in CI."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
import uvloop
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # for `tools` and `bench`, which are not installed
    sys.path.insert(0, str(ROOT))

from fusee.config import LoggingConfig  # noqa: E402
from tools import servers  # noqa: E402

ENGINES = ("sqlite", "postgres", "mysql")

# As users run it, with every line written: pytest's own level would hide a line that cannot be made.
logging.getLogger("fusee").setLevel(LoggingConfig().level.upper())

# The loop that `fusee` runs on. Tests with a database spent a fifth of their time in asyncio's own.
if sys.version_info < (3, 14):  # later there are no policies
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

# What an example does is judged, never how long it took: the machine may have other things to do.
settings.register_profile("fusee", deadline=None)
settings.load_profile("fusee")


# --- servers, started when first asked for -----------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.Database]:
    yield from _running(servers.postgres)


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[servers.Database]:
    yield from _running(servers.mysql)


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[servers.Server]:
    yield from _running(servers.rabbitmq)


S = TypeVar("S", bound=servers.Server)


def _running(start: Callable[[], S]) -> Iterator[S]:
    try:
        server = start()
    except servers.Unavailable as reason:
        pytest.skip(str(reason))
    with server:
        yield server


# --- one empty database per test ---------------------------------------------------------------------


@pytest.fixture
def postgres_url(postgres_server: servers.Database) -> Iterator[str]:
    yield from _database(postgres_server)


@pytest.fixture
def mysql_url(mysql_server: servers.Database) -> Iterator[str]:
    yield from _database(mysql_server)


@pytest.fixture(params=ENGINES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The test runs once per engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fusee.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def _database(server: servers.Database) -> Iterator[str]:
    url = server.create_database()
    yield url
    with suppress(Exception):  # a test may leave the server broken; the next database is another one
        server.give_back(url)


@pytest.fixture
def another_revision(monkeypatch: pytest.MonkeyPatch) -> str:
    """This version knows one more revision, which only the tests have."""
    from fusee.engine.store import migrate

    monkeypatch.setattr(migrate, "FOLDERS", (*migrate.FOLDERS, ROOT / "tests" / "store" / "revisions"))
    return "9001"


# --- FUSEE_TEST_ONLY=sqlite,postgres leaves the other engines out -------------------------------------


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of the broker, those that kill processes and those marked `heavy` take many seconds: on
    PostgreSQL, as people use it, and on the other databases with the slow tests."""
    heavy = item.get_closest_marker("heavy") is not None or {"broker", "chaos"} & {*item.path.parts}
    if heavy and _named(item) & {"sqlite", "mysql"}:
        item.add_marker(pytest.mark.chaos)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only = {name.strip() for name in os.environ.get("FUSEE_TEST_ONLY", "").split(",") if name.strip()}
    if not only:
        return
    if unknown := only - set(ENGINES):
        raise pytest.UsageError(
            f"FUSEE_TEST_ONLY: {', '.join(sorted(unknown))} is none of {', '.join(ENGINES)}"
        )
    left_out = [item for item in items if not _engines(item) <= only]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _engines(item) <= only]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    # The thousands of tests that were collected stay to the end: the collector need not walk them each time.
    gc.collect()
    gc.freeze()


def _named(item: pytest.Item) -> set[str]:
    """What its parameters name."""
    callspec = getattr(item, "callspec", None)
    return {value for value in callspec.params.values() if isinstance(value, str)} if callspec else set()


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


def _engines(item: pytest.Item) -> set[str]:
    """Which engines a test needs: those that its parameters name, or its fixtures."""
    named, fixtures = _named(item), _fixtures(item)
    return {name for name in ENGINES if name in named or f"{name}_server" in fixtures}


# --- CI: a skipped test is a failed one --------------------------------------------------------------


def _skipped(config: pytest.Config) -> list[pytest.TestReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or os.environ.get("CI") != "true":
        return []
    return [*reporter.stats.get("skipped", ())]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped(session.config) and session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not (skipped := _skipped(config)):
        return
    terminalreporter.section("skipped, and CI=true allows none", red=True, bold=True)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.line(f"{report.nodeid}: {reason}", red=True)
