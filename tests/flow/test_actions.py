"""Every action of every noun, end to end, on a running `fusee up` at default settings.

The lists of what there is come from the OpenAPI document and from the tree of commands: a new route or a new
command that no step below calls fails the test.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from fusee.cli import cli as root
from tests.flow.programs import Programs, Up

JOBS = """
import asyncio
from fusee import Fusee
from fusee.batch import Target

app = Fusee()
lamps: dict[str, int] = {}

@app.handler()
async def greet(name: str = "you") -> str:
    return f"hello {name}"

@app.handler()
async def fail() -> None:
    raise RuntimeError("no luck")

@app.handler()
async def hang() -> None:
    await asyncio.Event().wait()

async def unmail(user: int) -> None: ...

@app.bulk("mail", undo=unmail)
async def mail(user: int) -> None:
    if user == 1:
        raise ValueError("no such user")

@app.operation("lamp", "set_level", params=dict[str, int], timeout=20)
class SetLevel:
    async def finished(self, target: Target) -> bool:
        return lamps.get(target.id) == target.after["level"]
    async def capture(self, target: Target) -> dict[str, int]:
        return {"level": lamps.get(target.id, 0)}
    async def apply(self, target: Target) -> None:
        lamps[target.id] = target.after["level"]
    async def undo(self, target: Target) -> None:
        lamps[target.id] = target.image["level"]
"""
FLOW = {
    "name": "flow",
    "nodes": [{"name": "a", "handler": "greet"}, {"name": "b", "after": ["a"], "handler": "greet"}],
}
POLL = {"name": "poll", "task": {"handler": "greet", "every": "1h"}}
LAMPS = {
    "batch_name": "light",
    "batch_type": "set_level",
    "target_type": "lamp",
    "targets": [{"target_id": "1", "before": {"level": 0}, "after": {"level": 5}}],
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with Programs(tmp_path_factory.mktemp("programs")) as running:
        yield running


@pytest.fixture
def up(programs: Programs, tmp_path: Path) -> Iterator[Up]:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "templates.yaml").write_text(json.dumps({"templates": [POLL]}))
    (tmp_path / "flow.json").write_text(json.dumps(FLOW))
    for name, handler in (("bad", "fail"), ("slow", "hang")):
        nodes = [{"name": "a", "handler": handler}]
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, "nodes": nodes}))
    (tmp_path / "lamps.csv").write_text("target_id,before.level,after.level\n1,0,5\n")
    with programs.up(tmp_path, "--app", "jobs:app", "--name", "w1") as running:
        yield running
        failed = [line for line in running.lines() if line["level"] in ("error", "critical")]
        assert not failed, failed


# -- the command line: a story for each noun; `refused CODE …` expects that exit code,
# `soon …` waits until what is under way allows it

STORIES = """
# runs
fusee run submit greet -p name=Ada --wait | grep 'hello Ada'
fusee run submit hang
fusee run list
fusee run cancel 2
refused 5 fusee run wait 2
fusee run retry 2
fusee run cancel 3
fusee run show 1 | grep succeeded
# tasks
fusee task create nightly --cron '0 3 * * *' --handler greet
fusee task list | grep nightly
fusee task show nightly
fusee task next nightly
fusee task trigger nightly --wait
fusee task restart nightly --wait
fusee task runs nightly
fusee task explain nightly now
fusee explain nightly now
fusee task simulate nightly --from -1d --duration 1s
fusee task edit nightly cron='30 3 * * *'
fusee task pause nightly
fusee task resume nightly
fusee task disable nightly
fusee task enable nightly
fusee task clear-queue nightly
fusee task backfill nightly --from 2025-01-01 --to 2025-01-03 --dry-run
fusee task export > tasks.yaml
fusee task diff tasks.yaml
fusee task apply tasks.yaml
fusee task delete nightly
fusee cron '0 9 * * MON-FRI'
# templates
fusee template apply templates.yaml
fusee template list | grep poll
fusee template show poll
fusee template export
fusee template delete poll
# workflows
fusee workflow create flow.json
fusee workflow apply flow.json
fusee workflow list | grep flow
fusee workflow start flow --wait
fusee workflow wait 1
fusee workflow show flow
fusee workflow runs flow
fusee workflow create bad.json
refused 5 fusee workflow start bad --wait
refused 5 fusee workflow rerun 2 --wait
fusee workflow create slow.json
fusee workflow start slow
fusee workflow cancel 4
refused 4 fusee workflow cancel 1
fusee workflow delete flow
# batches
fusee batch create light --type lamp/set_level --targets lamps.csv
fusee batch list | grep light
fusee batch plan 1
fusee batch apply 1 --wait
fusee batch wait 1
fusee batch show 1 | grep success
fusee batch targets 1
fusee batch recount 1
fusee batch retry 1
refused 4 fusee batch cancel 1
fusee batch rollback 1 --wait
# bulk jobs
fusee bulk create news --business mail --source 0..3
fusee bulk data 1 '{"template": 4}'
fusee bulk start 1
fusee bulk wait 1
fusee bulk list | grep news
fusee bulk show 1
fusee bulk quarantine 1
fusee bulk log 1 'all is well'
fusee bulk logs 1 | grep 'all is well'
fusee bulk undo 1 --wait
refused 5 fusee bulk rerun 1 --wait
fusee bulk create slow --business mail --source 0..100000 --rate 1 --start
fusee bulk rate 4 --rate 2
fusee bulk pause 4
soon fusee bulk resume 4
fusee bulk stop 4
fusee bulk watch 1 --json
refused 4 fusee bulk extend 1
# businesses
fusee business register crm --chunk https://crm.example/mail --chunk-size 200
fusee business list | grep crm
fusee business show crm
fusee business change crm --timeout 30s
fusee business delete crm
# queues, workers, keys
fusee queue limit mail --concurrency 10
fusee queue pause mail
fusee queue resume mail
fusee queue strategy mail least_loaded
fusee queues | grep mail
fusee workers | grep w1
fusee worker drain w1
fusee key create ada --role viewer
fusee key list | grep ada
fusee key revoke 1
# the platform itself
fusee version
fusee check
fusee config show
fusee config reference | grep api
fusee config init other.toml
fusee db status
fusee db upgrade
"""
ELSEWHERE = {
    "up": "tests/flow/test_actions.py",
    "server": "tests/flow/test_cli_nodes.py",
    "dispatcher": "tests/flow/test_cli_nodes.py",
    "demo": "tests/flow/test_cli_demo.py",
    "broker dead list": "tests/broker/test_processes.py",
    "broker dead show": "tests/broker/test_processes.py",
    "broker dead requeue": "tests/broker/test_processes.py",
    "broker dead drop": "tests/broker/test_processes.py",
}
"""Commands that start a process of their own or need RabbitMQ, and where they are driven."""


def commands() -> set[str]:
    def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                if (child := command.get_command(context, name)) is not None:
                    yield from leaves(child, (*path, name))
        else:
            yield " ".join(path)

    return set(leaves(root, ()))


def test_every_command_has_a_step() -> None:
    called = {
        name
        for name in commands()
        if re.search(rf"^(refused \d |soon )?fusee {name}( |$)", STORIES, re.MULTILINE)
    }
    assert commands() - called - set(ELSEWHERE) == set()
    for page in ELSEWHERE.values():
        assert (Path(__file__).parents[2] / page).exists()


def test_every_command_does_what_it_says(programs: Programs, up: Up, tmp_path: Path) -> None:
    lines = [line for line in STORIES.splitlines() if line and not line.startswith("#")]
    script = """
        set -uo pipefail
        refused() { local wanted=$1; shift; "$@"; local code=$?; ((code == wanted)); }
        soon() { for _ in {1..100}; do "$@" && return; sleep 0.1; done; return 1; }
    """ + "\n".join(
        f'{line} || echo "FAILED ($?): {line.split("|")[0].replace(chr(34), "")}" >&3' for line in lines
    )
    done = programs.sh(f"exec 3>failed\n{script}", tmp_path)
    failed = (tmp_path / "failed").read_text()
    assert not failed, failed + done.stderr


# -- REST


class Step(NamedTuple):
    method: str
    path: str
    status: int = 200
    body: Any = None


def rest(*steps: tuple[Any, ...]) -> list[Step]:
    return [Step(*step) for step in steps]


V1 = "/api/v1"
NIGHTLY = {"name": "nightly", "cron": "0 3 * * *", "handler": "greet"}
STEPS = rest(
    ("POST", f"{V1}/runs", 201, {"handler": "greet"}),
    ("GET", f"{V1}/runs/1/wait"),
    ("GET", f"{V1}/runs"),
    ("GET", f"{V1}/runs/1"),
    ("GET", f"{V1}/runs/1/events"),
    ("POST", f"{V1}/runs/1/retry", 201),
    ("POST", f"{V1}/runs", 201, {"handler": "greet", "delay": 3600}),
    ("POST", f"{V1}/runs/3/cancel"),
    ("POST", f"{V1}/callbacks/1", 401, {}),
    ("PUT", f"{V1}/callbacks/1", 401, {}),
    ("PATCH", f"{V1}/callbacks/1", 401, {}),
    ("POST", f"{V1}/tasks/preview", 200, NIGHTLY),
    ("POST", f"{V1}/tasks", 201, NIGHTLY),
    ("GET", f"{V1}/tasks"),
    ("GET", f"{V1}/tasks/nightly"),
    ("POST", f"{V1}/tasks/nightly/trigger", 201),
    ("POST", f"{V1}/tasks/nightly/restart", 201),
    ("GET", f"{V1}/tasks/nightly/runs"),
    ("GET", f"{V1}/tasks/nightly/explain?at=2030-01-01T03:00:00Z"),
    ("GET", f"{V1}/tasks/nightly/next"),
    (
        "POST",
        f"{V1}/tasks/nightly/simulate",
        200,
        {"from": "2030-01-01T00:00:00Z", "to": "2030-01-03T00:00:00Z", "duration": 1},
    ),
    ("GET", f"{V1}/cron?expression=0+9+*+*+*"),
    ("POST", f"{V1}/tasks/nightly/pause"),
    ("POST", f"{V1}/tasks/nightly/resume"),
    ("POST", f"{V1}/tasks/nightly/disable"),
    ("POST", f"{V1}/tasks/nightly/enable"),
    ("POST", f"{V1}/tasks/nightly/clear-queue"),
    (
        "POST",
        f"{V1}/tasks/nightly/backfill",
        200,
        {"from": "2025-01-01T00:00:00Z", "to": "2025-01-03T00:00:00Z", "dry_run": True},
    ),
    ("PATCH", f"{V1}/tasks/nightly", 200, {"cron": "30 3 * * *"}),
    ("PUT", f"{V1}/tasks/nightly", 200, NIGHTLY),
    ("POST", f"{V1}/tasks/apply", 200, {"documents": [NIGHTLY]}),
    ("DELETE", f"{V1}/tasks/nightly", 204),
    ("POST", f"{V1}/task-templates", 201, POLL),
    ("GET", f"{V1}/task-templates"),
    ("GET", f"{V1}/task-templates/poll"),
    ("PUT", f"{V1}/task-templates/poll", 200, POLL),
    ("DELETE", f"{V1}/task-templates/poll", 204),
    ("POST", f"{V1}/workflows", 201, FLOW),
    ("GET", f"{V1}/workflows"),
    ("GET", f"{V1}/workflows/flow"),
    ("GET", f"{V1}/workflows/flow/graph"),
    ("PUT", f"{V1}/workflows/flow", 200, FLOW),
    ("POST", f"{V1}/workflows/flow/start", 201),
    ("GET", f"{V1}/workflows/flow/runs"),
    ("GET", f"{V1}/workflow-runs"),
    ("GET", f"{V1}/workflow-runs/1"),
    ("GET", f"{V1}/workflow-runs/1/graph"),
    ("POST", f"{V1}/workflow-runs/1/rerun", (201, 409)),
    ("POST", f"{V1}/workflow-runs/1/cancel", (200, 202, 409)),
    ("DELETE", f"{V1}/workflows/flow", 204),
    ("POST", f"{V1}/batches", 201, LAMPS),
    ("POST", "/api/batch", 201, LAMPS),
    ("GET", f"{V1}/batches"),
    ("GET", f"{V1}/batches/1"),
    ("GET", f"{V1}/batches/1/tasks"),
    ("GET", f"{V1}/batches/1/plan"),
    ("POST", f"{V1}/batches/1/plan", (200, 201, 202)),
    ("GET", f"{V1}/batches/1/recount"),
    ("POST", f"{V1}/batches/1/apply", (200, 202)),
    ("POST", f"{V1}/batches/1/retry", (200, 202, 409)),
    ("POST", f"{V1}/batches/1/rollback", (200, 202, 409)),
    ("POST", f"{V1}/batches/2/cancel", (200, 202, 409)),
    ("POST", f"{V1}/bulk-jobs", 201, {"name": "news", "business": "mail", "source": 3}),
    ("GET", f"{V1}/bulk-jobs"),
    ("GET", f"{V1}/bulk-jobs/1"),
    ("PUT", f"{V1}/bulk-jobs/1/data", 200, {"data": {"template": 4}}),
    ("POST", f"{V1}/bulk-jobs/1/rate", 200, {"rate": 100}),
    ("POST", f"{V1}/bulk-jobs/1/start", (200, 202)),
    ("POST", f"{V1}/bulk-jobs/1/pause", (200, 202, 409)),
    ("POST", f"{V1}/bulk-jobs/1/resume", (200, 202, 409)),
    ("POST", f"{V1}/bulk-jobs/1/stop", (200, 202, 409)),
    ("GET", f"{V1}/bulk-jobs/1/quarantine"),
    ("GET", f"{V1}/bulk-jobs/1/quarantine/download"),
    ("POST", f"{V1}/bulk-jobs/1/quarantine/rerun", (200, 201, 409, 422)),
    ("POST", f"{V1}/bulk-jobs/1/undo", (200, 201, 409)),
    ("POST", f"{V1}/bulk-jobs/1/extend", 409),
    ("POST", f"{V1}/bulk-jobs/1/logs", 201, {"text": "all is well"}),
    ("GET", f"{V1}/bulk-jobs/1/logs"),
    (
        "POST",
        f"{V1}/businesses",
        201,
        {"name": "crm", "chunk": "https://crm.example/mail", "chunk_size": 200},
    ),
    ("GET", f"{V1}/businesses"),
    ("GET", f"{V1}/businesses/crm"),
    ("PATCH", f"{V1}/businesses/crm", 200, {"timeout": 30}),
    ("DELETE", f"{V1}/businesses/crm", 204),
    ("GET", f"{V1}/queues"),
    ("GET", f"{V1}/queues/mail"),
    ("PUT", f"{V1}/queues/mail", 200, {"concurrency": 4}),
    ("PATCH", f"{V1}/queues/mail", 200, {"rate": 2.5}),
    ("PUT", f"{V1}/queues/mail/strategy", 200, {"strategy": "least_loaded"}),
    ("POST", f"{V1}/queues/mail/pause"),
    ("POST", f"{V1}/queues/mail/resume"),
    ("GET", f"{V1}/workers"),
    ("GET", f"{V1}/workers/w1"),
    ("POST", f"{V1}/workers/w1/drain", 202),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", f"{V1}/keys"),
    ("POST", f"{V1}/keys", 201, {"name": "ada", "role": "admin"}),
    ("DELETE", f"{V1}/keys/1", 204),
)


def test_every_route_answers_as_it_says(up: Up) -> None:
    with urllib.request.urlopen(f"{up.url}/openapi.json") as answer:
        document = json.load(answer)
    patterns = {
        (method.upper(), path): re.compile(re.sub(r"\\{\w+\\}", "[^/?]+", re.escape(path)) + r"(\?.*)?")
        for path, methods in document["paths"].items()
        for method in methods
    }
    called, wrong, key = set(), [], ""
    for step in STEPS:
        status, said = ask(up.url, step, key)
        wanted = step.status if isinstance(step.status, tuple) else (step.status,)
        if status not in wanted:
            wrong.append(f"{step.method} {step.path}: {status} instead of {step.status}: {said[:300]}")
        if step.path.endswith("/keys") and status == 201:
            key = json.loads(said)["key"]
        called |= {
            route for route, path in patterns.items() if route[0] == step.method and path.fullmatch(step.path)
        }
    assert not wrong, "\n".join(wrong)
    assert set(patterns) - called == set(), "routes that no step calls"


def ask(url: str, step: Step, key: str) -> tuple[int, str]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if step.body is None else json.dumps(step.body).encode()
    request = urllib.request.Request(url + step.path, data=data, method=step.method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
