"""Every command of every noun, end to end, on a running `fusee up` at default settings.

The list of what there is comes from the tree of commands: a new one that no step below calls fails the test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fusee.app.cli.root import cli as root
from tests.flow.programs import Programs, Up

JOBS = """
import asyncio
from fusee import Fusee
from fusee import Target

app = Fusee()
lamps: dict[str, int] = {}
tried: set[str] = set()

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
        if target.id == "loose" and target.id not in tried:
            tried.add(target.id)
            raise RuntimeError("the bulb is loose")
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
soon fusee bulk delete 4
refused 3 fusee bulk show 4
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
fusee queue list | grep mail
fusee queues | grep mail
fusee worker list | grep w1
fusee workers | grep w1
fusee runs show 1
fusee worker drain w1
fusee key create ada --role viewer
fusee key list | grep ada
fusee key rotate 1 --overlap 1h
fusee key create eve --role viewer --grant billing=viewer --expires-in 90d
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
