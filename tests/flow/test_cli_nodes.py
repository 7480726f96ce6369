"""`fusee up` and its kin as real processes: start, work, drain, and every way not to start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from fusee import Fusee
from fusee import __version__ as fusee_version
from fusee.app.cli.node import Node, Parts, Started
from fusee.app.cli.root import cli
from fusee.surfaces.cli.exits import Exit, Failure

JOBS = """
import asyncio, os, pathlib
from fusee import Fusee, RetryPolicy

app = Fusee()
not_an_app = 7

@app.handler()
async def greet(name):
    return f"hello {name}"

@app.handler(retry=RetryPolicy(max_attempts=1))
async def fail():
    raise RuntimeError("no luck")

@app.handler()
async def hold(marker, seconds):
    pathlib.Path(marker).touch()
    await asyncio.sleep(seconds)
    return "held"
"""
TIMED = """
from fusee import Fusee, RetryPolicy

app = Fusee()

@app.task(cron="* * * * * *", overlap_action="SKIP", timeout="30s", retry=RetryPolicy(max_attempts=2))
async def tick():
    return "tock"
"""
# A machine under load is slow, not broken.
PATIENCE = 30.0


class Folder:
    """A place with an application and a database, to run `fusee` in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "jobs.py").write_text(JOBS)

    def client(self, *words: str) -> Result:
        """A command in this process: as if in another one, and much sooner."""
        return CliRunner().invoke(cli, [*words, "--database", f"sqlite:///{self.path}/fusee.db"])

    def environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("FUSEE_")}
        return kept | {"FUSEE_WORKER__POLL_INTERVAL": "50ms", "FUSEE_DATABASE__WAIT_AT_START": "0s"}

    def fusee(self, *words: str) -> subprocess.CompletedProcess[str]:
        """To its end."""
        return subprocess.run(
            [sys.executable, "-c", "from fusee.app.cli import main; main()", *words],
            cwd=self.path,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def json(self, *words: str) -> Any:
        done = self.client(*words, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def node(self, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
        """A running one, and what it said when it had started."""
        process = subprocess.Popen(
            [sys.executable, "-c", "from fusee.app.cli import main; main()", *words, "--json"],
            cwd=self.path,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield process, json.loads(line)
        finally:
            process.kill()
            process.communicate()

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (self.path / name).exists():
            assert time.monotonic() < deadline, f"{name} did not appear"
            time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=PATIENCE)
    return process.returncode, stderr


def test_up_serves_works_and_drains(folder: Folder) -> None:
    with folder.node("up", "--app", "jobs:app", "--bind", "127.0.0.1:0", "--name", "one") as (node, said):
        assert said["parts"] == ["api", "dispatcher", "worker"]
        assert (said["worker"], said["handlers"]) == ("one", ["fail", "greet", "hold"])
        with urlopen(said["address"] + "/healthz", timeout=10) as answer:
            assert answer.status == 200

        run = folder.json("run", "submit", "greet", "-p", "name=Ada", "--wait")
        assert (run["status"], run["result"], run["worker"]) == ("succeeded", "hello Ada", "one")
        failed = folder.client("run", "submit", "fail", "--wait", "--json")
        assert failed.exit_code == Exit.UNSUCCESSFUL
        assert "no luck" in json.loads(failed.stdout)["error"]
        [worker] = folder.json("workers")["items"]
        assert (worker["name"], worker["state"]) == ("one", "alive")

        held = folder.json("run", "submit", "hold", "-p", "marker=started", "-p", "seconds=1")["id"]
        folder.wait_for("started")
        node.send_signal(signal.SIGTERM)
        code, stderr = ended(node)
        assert code == 0, stderr
    assert folder.json("run", "show", str(held))["result"] == "held"
    assert folder.json("workers")["items"] == []


def test_what_cannot_finish_in_time_is_not_lost(folder: Folder) -> None:
    (folder.path / "fusee.toml").write_text('[worker]\ndrain_timeout = "200ms"\ngrace = "200ms"\n')
    with folder.node("worker", "--app", "jobs:app", "--queue", "mail", "--capacity", "2") as (node, said):
        assert said["parts"] == ["worker"] and said["address"] is None
        words = ("-p", "marker=started", "-p", "seconds=60", "--queue", "mail")
        run = folder.json("run", "submit", "hold", *words)["id"]
        folder.wait_for("started")
        node.send_signal(signal.SIGINT)
        code, stderr = ended(node)
        assert code == 0, stderr
    assert folder.json("run", "show", str(run))["status"] == "pending"


def test_a_second_signal_stops_at_once(folder: Folder) -> None:
    with folder.node("worker", "--app", "jobs:app") as (node, _):
        folder.json("run", "submit", "hold", "-p", "marker=started", "-p", "seconds=60")
        folder.wait_for("started")
        node.send_signal(signal.SIGINT)
        while folder.json("workers")["items"][0]["state"] != "draining":
            assert node.poll() is None
        node.send_signal(signal.SIGINT)
        code, stderr = ended(node)
        assert code == Exit.INTERRUPTED and "at once" in stderr


def test_without_an_application_it_says_so(folder: Folder) -> None:
    with folder.node("up", "--no-api", "--no-dispatcher") as (node, said):
        assert (said["parts"], said["handlers"]) == (["worker"], [])
        node.send_signal(signal.SIGTERM)
        assert ended(node)[0] == 0
    nothing = folder.client("up", "--no-api", "--no-dispatcher", "--no-worker")
    assert nothing.exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("jobs:missing", "jobs has no 'missing'; it has jobs:app"),
        ("jobs:not_an_app", "that is a int, not a Fusee; it has jobs:app"),
        ("broken:app", "ZeroDivisionError"),
    ],
)
def test_an_application_that_cannot_be_used(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, app: str, told: str
) -> None:
    (folder.path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(folder.path)
    monkeypatch.syspath_prepend(folder.path)
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    done = folder.client("up", "--app", app)
    assert done.exit_code == Exit.FAILED
    assert told in done.stderr and "Traceback" not in done.stderr


def test_declared_tasks_are_applied_at_the_start(folder: Folder) -> None:
    (folder.path / "timed.py").write_text(TIMED)
    with folder.node("up", "--app", "timed:app", "--bind", "127.0.0.1:0") as (_, said):
        assert said["tasks"] == {"tick": "create"}
        tick = folder.json("task", "show", "tick")
        assert (tick["cron"], tick["overlap_action"]) == ("* * * * * *", "SKIP")
        fired = folder.json("task", "trigger", "tick", "--wait")
        assert fired["status"] in ("succeeded", "skipped")
    with folder.node("worker", "--app", "timed:app") as (_, said):
        assert said["tasks"] == {"tick": "unchanged"}


def test_a_task_that_cannot_be_ends_the_start(folder: Folder) -> None:
    (folder.path / "timed.py").write_text(TIMED.replace("* * * * * *", "61 * * * *"))
    done = folder.fusee("up", "--app", "timed:app", "--bind", "127.0.0.1:0")
    assert done.returncode == Exit.REFUSED
    assert "task tick" in done.stderr and "minute 61" in done.stderr and "Traceback" not in done.stderr
    checked = folder.fusee("check", "--app", "timed:app")
    assert checked.returncode == Exit.FAILED and "minute 61" in checked.stdout


def test_a_port_in_use_is_one_line(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = folder.fusee("up", "--bind", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == Exit.FAILED
    assert "in use" in done.stderr and "Traceback" not in done.stderr


def test_no_open_door_without_a_key(folder: Folder) -> None:
    done = folder.fusee("server", "--bind", "0.0.0.0:0")
    assert done.returncode == Exit.FAILED and "fusee key create" in done.stderr
    folder.json("key", "create", "first")
    done = folder.fusee("server", "--bind", "0.0.0.0:0")
    assert done.returncode == Exit.FAILED and "tls.cert_file" in done.stderr
    (folder.path / "fusee.toml").write_text('[api]\ntrusted_proxies = ["10.0.0.1"]\n')
    with folder.node("server", "--bind", "0.0.0.0:0") as (node, said):
        assert said["parts"] == ["api"]
        node.send_signal(signal.SIGTERM)
        assert ended(node)[0] == 0


def test_an_unreachable_database_is_one_line(folder: Folder) -> None:
    done = folder.fusee("dispatcher", "--database", "postgresql://ada:sesame@127.0.0.1:1/x")
    assert done.returncode == Exit.UNAVAILABLE
    assert "did not answer" in done.stderr
    assert "Traceback" not in done.stderr and "sesame" not in done.stderr


async def test_a_part_that_dies_brings_the_process_down(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doomed:
        async def run(self) -> None:
            raise RuntimeError("out of luck")

        def stop(self) -> None: ...

    app = Fusee("sqlite://")
    monkeypatch.setattr(app, "dispatcher", Doomed)
    started: list[Started] = []
    with pytest.raises(Failure, match="the dispatcher died: RuntimeError: out of luck") as failure:
        await Node(app, Parts(dispatcher=True, worker=True), started.append).run()
    assert failure.value.exit is Exit.FAILED


def test_a_worker_drained_by_command_ends_well(folder: Folder) -> None:
    with folder.node("worker", "--app", "jobs:app", "--name", "one", "--cpu", "2", "--memory", "1GiB") as (
        node,
        _,
    ):
        run = folder.json("run", "submit", "hold", "-p", "marker=started", "-p", "seconds=1")["id"]
        folder.wait_for("started")
        asked = folder.json("worker", "drain", "one", "--wait", "20s")
        assert ([one["name"] for one in asked["items"]], asked["left"]) == (["one"], 1)
        code, stderr = ended(node)
        assert code == 0, stderr
    assert folder.json("run", "show", str(run))["result"] == "held"
    [worker] = folder.json("workers", "--state", "down")["items"]
    assert (worker["name"], worker["state"], worker["cpu"], worker["memory"]) == ("one", "ended", 2, 2**30)
    assert worker["version"] == fusee_version and worker["drain_asked_at"] is not None


def test_the_rest_of_a_node_goes_on_without_its_drained_worker(folder: Folder) -> None:
    with folder.node("up", "--app", "jobs:app", "--bind", "127.0.0.1:0", "--name", "one") as (node, said):
        folder.json("worker", "drain", "one", "--wait", "20s")
        with urlopen(said["address"] + "/api/v1/workers", timeout=10) as answer:
            assert json.loads(answer.read())["items"] == []
        assert node.poll() is None
        node.send_signal(signal.SIGTERM)
        code, stderr = ended(node)
        assert code == 0, stderr


def test_draining_whom_nobody_knows(folder: Folder) -> None:
    folder.json("db", "upgrade")
    refused = folder.client("worker", "drain", "nobody")
    assert refused.exit_code == Exit.NOT_FOUND and "no worker 'nobody' is alive" in refused.stderr
