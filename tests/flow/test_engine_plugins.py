"""Runs that a worker hands to another engine: through the store, with cancel, timeout and drain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusee import Fusee, RetryPolicy
from fusee.app.cli.root import cli
from fusee.config import load
from fusee.errors import ConfigError, Invalid
from tests.unit.executors.api_server import TOKEN, ApiServer

pytestmark = pytest.mark.heavy

IMAGE = {"image": "registry.example.com/jobs/report:1"}


@pytest.fixture
async def cluster() -> AsyncIterator[tuple[ApiServer, str]]:
    server = ApiServer()
    async with server.serving() as url:
        yield server, url


def app_for(database: str, url: str, folder: Path, **worker: Any) -> Fusee:
    token = folder / "token"
    token.write_text(TOKEN)
    kubernetes = {
        "enabled": True, "server": url, "token_file": str(token), "namespace": "jobs", "poll_interval": "1s",
        "images": ["*"],
    }  # fmt: skip
    overrides = {
        "database": {"url": database},
        "worker": {"poll_interval": "50ms", "grace": "2s", **worker},
        "executors": {"kubernetes": kubernetes},
    }
    return Fusee(config=load(env={}, overrides=overrides))


async def test_a_run_is_a_job_from_submit_to_result(
    database_url: str, cluster: tuple[ApiServer, str], tmp_path: Path
) -> None:
    server, url = cluster
    app = app_for(database_url, url, tmp_path)
    async with app.running():
        run = await app.enqueue("kubernetes", IMAGE, executor="kubernetes")
        name = await server.until_made()
        await server.run(name)
        await server.succeed(name, message='{"rows": 3}', log="done\n")
        result = await run.result(timeout=30)
        assert result["message"] == {"rows": 3}
        assert (await app.runs.get(run.id)).run.output == "done\n"


async def test_cancel_deletes_the_job(
    database_url: str, cluster: tuple[ApiServer, str], tmp_path: Path
) -> None:
    server, url = cluster
    app = app_for(database_url, url, tmp_path)
    async with app.running():
        run = await app.enqueue("kubernetes", IMAGE, executor="kubernetes")
        await server.run(await server.until_made())
        await app.runs.cancel(run.id)
        await server.until(lambda: not server.jobs)
        assert str((await app.runs.wait(run.id, timeout=30)).status) == "canceled"


async def test_a_timeout_deletes_the_job(
    database_url: str, cluster: tuple[ApiServer, str], tmp_path: Path
) -> None:
    server, url = cluster
    app = app_for(database_url, url, tmp_path)
    async with app.running():
        once = RetryPolicy(max_attempts=1)
        run = await app.enqueue("kubernetes", IMAGE, executor="kubernetes", timeout=1.0, retry=once)
        await server.run(await server.until_made())
        ended = await app.runs.wait(run.id, timeout=30)
        assert str(ended.status) == "timed_out" and server.jobs == {}


async def test_a_job_survives_the_worker_that_drains(
    database_url: str, cluster: tuple[ApiServer, str], tmp_path: Path
) -> None:
    """Also when its policy allows one attempt: nothing is started again."""
    server, url = cluster
    app = app_for(database_url, url, tmp_path)
    async with app.running(dispatcher=False):
        once = RetryPolicy(max_attempts=1)
        run = await app.enqueue("kubernetes", IMAGE, executor="kubernetes", retry=once)
        name = await server.until_made()
        await server.run(name)
    assert name in server.jobs
    next_one = app_for(database_url, url, tmp_path)
    async with next_one.running(dispatcher=False):
        await server.until(lambda: server.jobs[name]["metadata"]["labels"]["fusee-attempt"] != "1")
        await server.succeed(name)
        ended = await next_one.runs.wait(run.id, timeout=30)
    assert (str(ended.status), server.made) == ("succeeded", [name])


async def test_a_lost_pod_is_tried_again(
    database_url: str, cluster: tuple[ApiServer, str], tmp_path: Path
) -> None:
    server, url = cluster
    app = app_for(database_url, url, tmp_path)
    async with app.running():
        run = await app.enqueue("kubernetes", IMAGE, executor="kubernetes")
        first = await server.until_made()
        await server.run(first)
        await server.evict(first)
        await server.succeed(await server.until_made(2))
        ended = await app.runs.wait(run.id, timeout=30)
        assert str(ended.status) == "succeeded" and ended.attempt == 2


async def test_a_payload_that_cannot_run_is_refused_at_once(tmp_path: Path) -> None:
    app = Fusee(config=load(env={}, overrides={"database": {"url": f"sqlite:///{tmp_path}/fusee.db"}}))
    async with app:
        with pytest.raises(Invalid, match="image"):
            await app.enqueue("kubernetes", {}, executor="kubernetes", allow_unknown=True)
        with pytest.raises(Invalid, match="function"):
            await app.enqueue("dask", {}, executor="dask", allow_unknown=True)


def test_the_command_line_hands_runs_to_other_engines(tmp_path: Path) -> None:
    def submit(*words: str) -> Any:
        database = ("--database", f"sqlite:///{tmp_path}/fusee.db", "--json")
        return CliRunner().invoke(cli, ["run", "submit", *words, *database])

    accepted = submit("--executor", "kubernetes", "--payload", json.dumps(IMAGE))
    assert accepted.exit_code == 0, accepted.stderr
    shown = CliRunner().invoke(
        cli, ["run", "show", "1", "--json", "--database", f"sqlite:///{tmp_path}/fusee.db"]
    )
    run = json.loads(shown.stdout)
    assert (run["executor"], run["payload"]) == ("kubernetes", IMAGE)
    assert "image" in submit("--executor", "kubernetes", "-p", "imagine=x").stderr
    assert "not two" in submit("--executor", "dask", "--http", "https://example.com").stderr
    assert "unexpected" in submit("--executor", "dask", "greet").stderr


def test_a_worker_without_a_way_to_the_cluster_does_not_start(tmp_path: Path) -> None:
    overrides = {
        "database": {"url": f"sqlite:///{tmp_path}/fusee.db"},
        "executors": {"kubernetes": {"enabled": True, "kubeconfig": str(tmp_path / "none")}},
    }
    with pytest.raises(ConfigError, match=r"executors\.kubernetes\.kubeconfig"):
        Fusee(config=load(env={}, overrides=overrides)).executors()


def test_they_are_off_and_not_loaded_until_they_are_wanted(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from fusee import Fusee; app = Fusee('sqlite:///x.db'); print(sorted(app.executors()));"
        "print([m for m in sys.modules if 'distributed' in m or 'executors.kubernetes' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "['http', 'python']\n[]\n", done.stderr


async def test_a_run_for_dask_is_accepted_where_dask_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server hands it to a worker that has it."""
    import sys

    for name in [name for name in sys.modules if name.startswith("fusee.executors.dask")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "distributed", None)
    app = Fusee(f"sqlite:///{tmp_path / 'fusee.db'}")
    async with app:
        await app.enqueue("dask", {"function": "json:dumps"}, executor="dask", allow_unknown=True)
        with pytest.raises(ValueError, match="function must be module:name"):
            await app.enqueue("dask", {"function": "json"}, executor="dask", allow_unknown=True)


async def test_a_run_is_a_call_on_a_dask_cluster(database_url: str) -> None:
    from distributed import LocalCluster

    async with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, asynchronous=True,
        protocol="tcp://", host="127.0.0.1",
    ) as dask:  # fmt: skip
        settings = {"enabled": True, "scheduler": dask.scheduler_address, "allow": ["json:dumps"]}
        overrides = {"database": {"url": database_url}, "executors": {"dask": settings}}
        app = Fusee(config=load(env={}, overrides=overrides))
        async with app.running():
            payload = {"function": "json:dumps", "kwargs": {"obj": [1, 2]}}
            run = await app.enqueue("dask", payload, executor="dask")
            assert await run.result(timeout=30) == "[1, 2]"
