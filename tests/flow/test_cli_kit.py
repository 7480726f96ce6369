"""What all commands share: plurals, several things at once, lists that are watched, and services by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fusee import Fusee
from fusee.app.cli.root import PLURALS
from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import needs, steer
from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.follow import watch_list
from fusee.surfaces.cli.options import Shared
from fusee.surfaces.cli.output import Out
from tools.document_cli import commands


def test_every_command_asks_for_services_that_exist() -> None:
    app = Fusee("sqlite://")
    found = {
        (name, wanted)
        for name, command in commands()
        if (body := getattr(command.callback, "body", None)) is not None
        for wanted in needs(body)
        if wanted not in ("out", "shared") and not hasattr(type(app), wanted) and not hasattr(app, wanted)
    }
    assert found == set()
    asked = [command for _, command in commands() if hasattr(command.callback, "body")]
    assert len(asked) > 90, "the test looks at nothing"


def test_the_plural_is_the_group_and_alone_it_lists(cli: Any) -> None:
    cli.json("run", "submit", "greet", "--allow-unknown")
    assert cli.json("runs", "show", "1") == cli.json("run", "show", "1")
    one = cli.json("run", "list", "--status", "pending")
    assert len(one["items"]) == 1
    assert cli.json("runs", "--status", "pending") == one
    assert cli.json("--namespace", "default", "runs", "--namespace", "default", "-s", "pending") == one
    assert cli.json("queues") == cli.json("queue", "list")
    assert cli.json("workers", "--all") == {"items": []}
    assert "COMMAND" in cli.text("runs", "--help")
    assert cli("runs", "nonsense").exit_code == Exit.USAGE
    for plural in PLURALS:
        assert "items" in cli.json(plural)


def test_steering_many_goes_on_after_a_refusal(cli: Any) -> None:
    for name in ("a", "b"):
        cli.json("task", "create", name, "--handler", "greet", "--allow-unknown")
    done = cli("--json", "task", "pause", "a", "none", "b")
    assert done.exit_code == Exit.NOT_FOUND
    items = json.loads(done.stdout)["items"]
    assert [one.get("status") for one in items] == ["paused", None, "paused"]
    assert items[1]["error"]["kind"] == "not_found" and items[1]["name"] == "none"
    told = cli("task", "resume", "a", "none", "b")
    assert told.exit_code == Exit.NOT_FOUND
    assert "a is enabled" in told.stdout and "b is enabled" in told.stdout and "none" in told.stderr
    assert cli.json("task", "pause", "a")["status"] == "paused", "one of them is an object, not a list"
    assert "--version goes with one" in cli.refused(
        "task", "pause", "a", "b", "--version", "1", code=Exit.USAGE
    )


def test_the_exit_code_of_one_of_several_is_kept() -> None:
    noun: Noun[str] = Noun(shape=lambda name: {"name": name}, columns={"name": str})

    @steer(noun, "name", "NAME")
    async def end(name: str) -> Answer:
        """End things."""
        return Answer({"name": name}, name, exit=Exit.UNSUCCESSFUL if name == "bad" else Exit.OK)

    for words, code in ((["good"], 0), (["bad"], 5), (["good", "bad", "good"], 5)):
        done = CliRunner().invoke(end, words, obj=Shared())
        assert (done.exit_code, done.stdout.split()) == (code, words)


async def test_a_watched_list_tells_each_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    pages = iter([[("a", 1), ("b", 1)], [("a", 1), ("b", 1)], [("a", 2), ("b", 1)]])
    noun: Noun[tuple[str, int]] = Noun(
        shape=lambda one: {"name": one[0], "state": one[1]}, columns={"name": lambda one: one[0]}
    )

    async def look() -> Sequence[tuple[str, int]]:
        try:
            return next(pages)
        except StopIteration:
            raise click.Abort from None

    with pytest.raises(click.Abort):
        await watch_list(Out(Shared(json=True)), noun, look)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["name"], one["state"]) for one in lines] == [("b", 1), ("a", 1), ("a", 2)]
