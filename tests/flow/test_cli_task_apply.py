"""Tasks as code: `fusee task apply`, `diff` and `export`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fusee import Fusee
from fusee.surfaces.cli.exits import Exit
from fusee.tasks.rest.shapes import ApplyOut
from fusee.tasks.service.apply import apply
from tests.flow.conftest import Cli

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tasks.yaml"

LOAD = "{name: load, cron: 0 3 * * *, timezone: Europe/Berlin, handler: load}"
REPORT = "{name: report, after: [load], handler: report}"


def write(*tasks: str, name: str = "tasks.yaml") -> str:
    Path(name).write_text("tasks:\n" + "".join(f"  - {task}\n" for task in tasks))
    return name


def actions(cli: Cli, *words: str, stdin: str | None = None) -> dict[str, str]:
    """What apply or diff answers, by task."""
    answer = cli.json("task", *words, "--allow-unknown", stdin=stdin)
    assert set(answer) == set(ApplyOut.model_fields)
    return {change["name"]: change["action"] for change in answer["changes"]}


def test_the_example_applies_and_is_what_was_applied(cli: Cli) -> None:
    made = actions(cli, "apply", str(EXAMPLE))
    assert set(made.values()) == {"create"} and len(made) == 6
    assert set(actions(cli, "apply", str(EXAMPLE)).values()) == {"unchanged"}
    load = cli.json("task", "show", "shop/load")
    assert load["retry"] == {"max_attempts": 5, "base": 30}, "all three ends is the default"
    assert (load["catch_up_window"], load["alerts"]["on_failures_in_a_row"]) == (7 * 86400, 3)
    assert cli.json("task", "show", "shop/reindex")["status"] == "disabled"
    assert cli.json("task", "show", "shop/report")["shards"] == 4


def test_what_is_exported_applies_without_a_change(cli: Cli) -> None:
    actions(cli, "apply", str(EXAMPLE))
    cli.json("task", "create", "byhand", "--allow-unknown", "--label", "team=ops", "--timeout", "1h30m")
    cli.json("task", "pause", "shop/poll")
    exported = cli("task", "export").stdout
    before = cli.json("task", "list")["items"]
    assert set(actions(cli, "apply", "-", stdin=exported).values()) == {"unchanged"}
    assert cli.json("task", "list")["items"] == before
    as_json = cli("task", "export", "--json").stdout
    assert set(actions(cli, "apply", "-", stdin=as_json).values()) == {"unchanged"}
    assert "timeout: 1h30m" in exported and "enabled: false" in exported
    assert "max_concurrency: 1" not in exported and "applied:" not in exported


def test_what_is_exported_makes_the_same_elsewhere(cli: Cli) -> None:
    actions(cli, "apply", str(EXAMPLE))
    there = Cli("--database", "sqlite:///there.db")
    assert set(actions(there, "apply", "-", stdin=cli("task", "export").stdout).values()) == {"create"}
    assert there("task", "export").stdout == cli("task", "export").stdout
    assert "shop/poll" in there("task", "export", "shop/poll", "shop/load").stdout


def test_a_plan_reads_like_one(cli: Cli) -> None:
    actions(cli, "apply", write(LOAD, REPORT, "{name: old, handler: old}"))
    file = write(LOAD.replace("0 3", "0 4"), REPORT, "{name: new, every: 15m, handler: new}")
    planned = cli.text("task", "diff", file, "--prune", "--allow-unknown")
    assert "~ load  update" in planned and "0 0 3 * * * → 0 0 4 * * *" in planned
    assert "+ new  create" in planned and "every    15m" in planned
    assert "- old  delete" in planned
    assert "1 to create, 1 to update, 1 to delete, 1 unchanged" in planned
    assert cli.json("task", "show", "load")["version"] == 1, "nothing was written"
    answer = cli.json("task", "diff", file, "--allow-unknown")
    [changed] = [one for one in answer["changes"] if one["action"] == "update"]
    assert changed["differences"] == [{"field": "cron", "before": "0 0 3 * * *", "after": "0 0 4 * * *"}]
    assert answer["dry_run"] is True

    done = cli.text("task", "apply", file, "--prune", "--allow-unknown")
    assert "1 created, 1 updated, 1 deleted, 1 unchanged" in done
    assert [item["name"] for item in cli.json("task", "list")["items"]] == ["load", "new", "report"]


def test_exit_code_2_says_that_something_would_change(cli: Cli) -> None:
    file = write(LOAD)
    Cli()("db", "upgrade")
    words = ("--allow-unknown", "--exit-code")
    assert cli("task", "diff", file, *words).exit_code == 2
    assert cli("task", "apply", file, "--dry-run", *words).exit_code == 2
    assert cli("task", "apply", file, "--dry-run", "--allow-unknown").exit_code == 0
    actions(cli, "apply", file)
    assert cli("task", "diff", file, *words).exit_code == 0
    assert "goes with --dry-run" in cli.refused("task", "apply", file, "--exit-code", code=Exit.USAGE)


def test_prune_deletes_only_what_its_group_applied(cli: Cli) -> None:
    cli.json("task", "create", "byhand", "--allow-unknown")
    actions(cli, "apply", write("{name: theirs, handler: x}"), "--group", "theirs")
    actions(cli, "apply", write(LOAD, REPORT), "--group", "mine")
    assert actions(cli, "apply", write(LOAD), "--group", "mine") == {"load": "unchanged"}
    assert actions(cli, "apply", write(LOAD), "--group", "mine", "--prune") == {
        "load": "unchanged",
        "report": "delete",
    }
    assert actions(cli, "apply", write("{name: byhand, handler: byhand}"), "--prune", "--group", "mine") == {
        "byhand": "update",  # taken over
        "load": "delete",
    }
    assert [item["name"] for item in cli.json("task", "list")["items"]] == ["byhand", "theirs"]


def test_apply_leaves_a_paused_task_paused(cli: Cli) -> None:
    actions(cli, "apply", write(LOAD))
    cli.json("task", "pause", "load")
    assert actions(cli, "apply", write(LOAD)) == {"load": "unchanged"}
    assert actions(cli, "apply", write(LOAD.replace("0 3", "0 4"))) == {"load": "update"}
    assert cli.json("task", "show", "load")["status"] == "paused"
    off = write(LOAD.replace("0 3", "0 4").replace("}", ", enabled: false}"))
    assert actions(cli, "apply", off) == {"load": "disable"}
    assert cli.json("task", "show", "load")["status"] == "disabled"
    assert actions(cli, "apply", write(LOAD.replace("0 3", "0 4"))) == {"load": "enable"}


def test_files_of_every_kind_and_upstreams_first(cli: Cli) -> None:
    Path("a.yaml").write_text(
        "name: report\nafter: load\nhandler: report\n---\n- name: other\n  handler: x\n"
    )
    Path("b.json").write_text('{"tasks": [{"name": "load", "every": "1h", "handler": "load"}]}')
    Path("c.toml").write_text('[[tasks]]\nname = "once"\nat = 2100-01-01T00:00:00Z\nhandler = "once"\n')
    Path("empty.yaml").write_text("# nothing yet\n")
    made = actions(cli, "apply", "a.yaml", "b.json", "c.toml", "empty.yaml")
    assert set(made.values()) == {"create"} and list(made).index("load") < list(made).index("report")
    assert cli.json("task", "show", "once")["at"] == "2100-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tasks:\n  - name: a\n    handler: x\n    cron: 61 * * * *\n", "tasks.yaml:4: task a: cron"),
        (
            "tasks:\n  - name: a\n    hndler: x\n",
            "tasks.yaml:3: task a: a task has no 'hndler'; did you mean",
        ),
        ("tasks:\n  - handler: x\n", "tasks.yaml:2: a task without a name"),
        ("tasks:\n  - name: a\n    name: b\n", "tasks.yaml:3: not YAML: name is written twice"),
        ("tasks:\n  - name: [a\n", "not YAML"),
        ("tasks:\n  - nightly\n", "a task is an object with a name"),
        ("tasks: nightly\n", "write a list of tasks"),
        ("defaults: {}\ntasks: []\n", "names that begin with x-"),
        ("tasks:\n  - {name: a, handler: x, payload: {1: one}}\n", "put it in quotes"),
        ("tasks:\n  - {name: a, handler: x, enabled: perhaps}\n", "enabled must be true or false"),
        ("- {name: a, handler: x}\n- {name: a, handler: y}\n", "task a is there twice"),
        ("- {name: a, handler: x, after: [b]}\n- {name: b, handler: x, after: [a]}\n", "closes a cycle"),
        ("- {name: a, handler: x, after: [nobody]}\n", "nobody"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(cli: Cli, text: str, says: str) -> None:
    Path("tasks.yaml").write_text(text)
    assert says in cli.refused("task", "apply", "tasks.yaml", "--allow-unknown")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("tasks.json", '{"tasks": [}', "not JSON"),
        ("tasks.json", '[{"name": "a", "name": "b"}]', "name is written twice"),
        ("tasks.toml", "tasks = nothing", "not TOML"),
        ("tasks.txt", "", "name it .yaml, .json or .toml"),
    ],
)
def test_what_is_no_such_file(cli: Cli, name: str, text: str, says: str) -> None:
    Path(name).write_text(text)
    assert says in cli.refused("task", "apply", name)
    assert "cannot read" in cli.refused("task", "apply", "nowhere.yaml", code=Exit.NOT_FOUND)


def test_all_are_checked_before_one_is_written(cli: Cli) -> None:
    file = write(
        "{name: good, executor: http, payload: {url: 'https://a.example'}}", "{name: bad, handler: nobody}"
    )
    message = cli.refused("task", "apply", file)
    assert message.startswith("task bad: no worker has a handler 'nobody'")
    assert cli.json("task", "list")["items"] == []


def test_what_was_done_before_a_refusal_is_told(cli: Cli) -> None:
    """Only the database can see that this closes a cycle with one that is there already."""
    actions(cli, "apply", write("{name: a, handler: x}", "{name: b, handler: x, after: [a]}"))
    file = write("{name: free, handler: x}", "{name: a, handler: x, after: [b]}")
    done = cli("task", "apply", file, "--allow-unknown")
    assert done.exit_code == Exit.REFUSED
    assert "1 created before that: apply again" in done.stderr
    assert "+ free" in done.stdout


def test_two_that_apply_at_once_agree(database_url: str) -> None:
    """Two processes of one application start at the same time."""

    async def both() -> list[Any]:
        documents = [{"name": f"task-{n}", "cron": "0 3 * * *", "handler": "x"} for n in range(10)]
        async with Fusee(database_url) as first, Fusee(database_url) as second:
            return await asyncio.gather(
                *(apply(app.tasks, documents, allow_unknown=True) for app in (first, second))
            )

    results = asyncio.run(both())
    for result in results:
        assert {change.action for change in result} <= {"create", "unchanged"}
    assert len(Cli("--database", database_url).json("task", "list")["items"]) == 10
