"""`fusee task` and `fusee cron`: each command by its output, its JSON and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusee.surfaces.cli.exits import Exit
from fusee.tasks.rest.shapes import BackfillOut, CronOut, FireOut, NextOut, TaskOut, TriggeredOut
from tests.flow.conftest import Cli


def make(cli: Cli, name: str, *words: str) -> Any:
    return cli.json("task", "create", name, "--allow-unknown", *words)


# --- cron


def test_cron_says_it_in_words_and_tells_when(cli: Cli) -> None:
    answer = cli.json("cron", "*/15 * * * * *", "-n", "2")
    assert set(answer) == set(CronOut.model_fields)
    assert answer["description_words"] == {"en": "every 15 seconds", "zh": "每 15 秒"}
    assert len(answer["next_fires"]) == 2
    text = cli.text("cron", "0 9 * * MON-FRI", "--timezone", "Asia/Shanghai")
    assert "Asia/Shanghai" in text and "CST" in text and "01:00:00" in text


def test_cron_shows_the_day_on_which_clocks_change(cli: Cli) -> None:
    words = ("cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--from", "2027-03-28 00:00", "-n", "1")
    assert "2027-03-28 03:00:00 CEST" in cli.text(*words)


def test_cron_points_at_the_field_that_is_wrong(cli: Cli) -> None:
    message = cli.refused("cron", "*/15 * * * 13 *")
    assert "month 13 is not in 1-12" in message
    lines = cli("cron", "*/15 * * * 13 *").stderr.splitlines()
    assert lines[-1].index("^^") == lines[-2].index("13")
    assert "31 is not a day of February" in cli.refused("cron", "0 0 31 2 *")
    assert "IANA" in cli.refused("cron", "@daily", "--timezone", "Mars/Olympus")
    assert "^" not in cli("cron", "* * *").stderr


# --- create


def test_a_new_task_tells_when_it_fires(cli: Cli) -> None:
    made = make(cli, "nightly", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "--handler", "tidy")
    assert set(made) == set(TaskOut.model_fields)
    assert (made["cron"], made["handler"], made["trigger"]) == ("0 0 3 * * *", "tidy", "cron")
    assert (made["status"], made["version"], len(made["next_fires"])) == ("enabled", 1, 5)
    text = cli.text("task", "create", "other", "--cron", "0 3 * * *", "--allow-unknown")
    assert "every day at 03:00" in text and text.count("03:00:00") == 5


def test_every_option_has_its_field(cli: Cli) -> None:
    words = (
        "--every", "15m", "--handler", "tidy", "--payload", '{"a": 1}', "-p", "b=two", "--overlap", "skip",
        "--concurrency", "2", "--concurrency-policy", "SKIP", "--queue-depth", "5", "--failure", "pause",
        "--catch-up", "full", "--grace", "5s", "--jitter", "1m", "--rate", "30/m", "--shards", "3",
        "--queue", "night", "--region", "eu", "--priority", "-5", "--timeout", "30s", "--max-attempts", "4",
        "--description", "tidy up", "--label", "team=ops", "--set", "catch_up_window=2h", "--set",
        "alerts.webhook=https://hooks.example/x", "--disabled",
    )  # fmt: skip
    made = make(cli, "tidy", *words)
    wanted = {
        "every": 900, "handler": "tidy", "payload": {"a": 1, "b": "two"}, "overlap_action": "SKIP",
        "max_concurrency": 2, "concurrency_policy": "SKIP", "queue_depth": 5, "failure_action": "PAUSE",
        "catch_up_mode": "FULL", "grace": 5, "jitter": 60, "rate": 0.5, "shards": 3, "queue": "night",
        "region": "eu", "priority": -5, "timeout": 30, "retry": {"max_attempts": 4},
        "description": "tidy up", "labels": {"team": "ops"}, "catch_up_window": 7200,
        "status": "disabled", "next_fires": [],
    }  # fmt: skip
    assert {name: made[name] for name in wanted} == wanted
    assert made["alerts"]["webhook"] == "https://hooks.example/x"


def test_concurrency_is_a_number_and_one_key_makes_one_task(cli: Cli) -> None:
    words = ("task", "create", "tidy", "--handler", "tidy", "--allow-unknown", "--key", "k")
    made = cli.json(*words, "--max-concurrency", "3")
    assert made["max_concurrency"] == 3
    assert cli.json(*words, "--concurrency", "3")["id"] == made["id"]
    assert "another request" in cli.refused(*words, "--concurrency", "4")
    assert cli("task", "create", "t", "--concurrency", "QUEUE").exit_code == Exit.USAGE


def test_a_task_calls_a_url_or_starts_a_program_or_follows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    call = (
        "--url",
        "https://a.example/hook",
        "--method",
        "PUT",
        "--header",
        "X-Id: 7",
        "--body",
        '{"id": 7}',
    )
    made = cli.json("task", "create", "call", "--at", "+1h", *call)
    assert (made["executor"], made["trigger"]) == ("http", "once")
    assert made["payload"] == {
        "url": "https://a.example/hook",
        "method": "PUT",
        "headers": {"X-Id": "7"},
        "body": {"id": 7},
    }
    assert "executors.shell.enabled" in cli.refused("task", "create", "dump", "--shell", "--", "ls", "-l")
    monkeypatch.setenv("FUSEE_EXECUTORS__SHELL__ENABLED", "true")
    made = cli.json("task", "create", "dump", "--shell", "--after", "call", "--", "ls", "-l")
    assert (made["payload"], made["after"]) == ({"argv": ["ls", "-l"]}, ["call"])
    assert made["trigger"] == "after"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name the task"),
        (("a", "b"), "unexpected 'b'"),
        (("a", "--shell"), "--shell needs a program"),
        (("a", "--handler", "x", "--url", "https://a.example"), "a task runs one thing"),
        (("a", "--body", "x"), "go with --url"),
        (("a", "--url", "https://a.example", "-p", "x=1"), "handler's arguments"),
        (("a", "--payload", "[1]"), "must be an object"),
        (("a", "--overlap", "MAYBE"), "MAYBE"),
        (("a", "--at", "soon"), "write a time such as"),
        (("a", "--set", "priority"), "KEY=VALUE"),
        (("a", "--set", "queue.x=1"), "only payload, labels"),
    ],
)
def test_a_wrong_command_line_is_2(cli: Cli, words: tuple[str, ...], says: str) -> None:
    assert says in cli.refused("task", "create", *words, code=Exit.USAGE)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--cron", "61 * * * *"), "minute 61"),
        (("--cron", "0 0 31 2 *"), "never fires"),
        (("--cron", "@daily", "--every", "5m"), "cannot stand together"),
        (("--every", "now and then"), "every must be"),
        (("--timezone", "Mars/Olympus", "--at", "03:00"), "IANA"),
        (("--at", "2020-01-01"), "has passed"),
        (("--after", "nobody"), "nobody"),
        (("--set", "colour=red"), "a task has no 'colour'"),
        (("--rate", "fast"), "rate must be"),
    ],
)
def test_what_no_task_can_be_is_4(cli: Cli, words: tuple[str, ...], says: str) -> None:
    assert says in cli.refused("task", "create", "a", "--allow-unknown", *words)
    assert cli.json("task", "list")["items"] == []


def test_a_bad_cron_is_underlined(cli: Cli) -> None:
    assert "^^" in cli("task", "create", "a", "--cron", "61 * * * *").stderr


def test_an_unknown_handler_is_refused(cli: Cli) -> None:
    assert "no worker" in cli.refused("task", "create", "a", "--cron", "@daily")


def test_a_name_is_taken_once(cli: Cli) -> None:
    make(cli, "a")
    assert "already" in cli.refused("task", "create", "a", "--allow-unknown")


@pytest.mark.parametrize("name", ["task.yaml", "task.json", "task.toml", "-"])
def test_a_task_from_a_file(cli: Cli, name: str) -> None:
    texts = {
        "task.yaml": "name: nightly\ncron: 0 3 * * *\nhandler: tidy\nenabled: false\n",
        "task.json": '{"name": "nightly", "cron": "0 3 * * *", "handler": "tidy", "enabled": false}',
        "task.toml": 'name = "nightly"\ncron = "0 3 * * *"\nhandler = "tidy"\nenabled = false\n',
    }
    text = texts.get(name, texts["task.yaml"])
    Path(name).write_text(text) if name != "-" else None
    words = ("task", "create", "--file", name, "--queue", "night", "--allow-unknown")
    made = cli.json(*words, stdin=text)
    assert (made["name"], made["handler"], made["queue"]) == ("nightly", "tidy", "night")
    assert made["status"] == "disabled"


def test_a_file_of_several_is_for_apply(cli: Cli) -> None:
    Path("tasks.yaml").write_text("- name: a\n- name: b\n")
    assert "fusee task apply" in cli.refused("task", "create", "--file", "tasks.yaml")


# --- look


def test_list_is_a_table_and_pages(cli: Cli) -> None:
    make(cli, "a/load", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin")
    make(cli, "a/report", "--after", "a/load")
    make(cli, "b", "--every", "90s", "--disabled")
    text = cli.text("task", "list")
    assert "0 3 * * * Europe/Berlin" in text and "after a/load" in text and "every 1m30s" in text
    assert " in " in text
    names = [item["name"] for item in cli.json("task", "list", "--prefix", "a/")["items"]]
    assert names == ["a/load", "a/report"]
    page = cli.json("task", "list", "--limit", "2")
    assert page["next_after"] == "a/report"
    assert [item["name"] for item in cli.json("task", "list", "--after", "a/report")["items"]] == ["b"]
    assert [item["name"] for item in cli.json("task", "list", "-s", "disabled")["items"]] == ["b"]
    assert "no task matches" in cli("task", "list", "-s", "paused").stderr


def test_show_and_next(cli: Cli) -> None:
    make(cli, "nightly", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "--overlap", "SKIP")
    text = cli.text("task", "show", "nightly")
    assert "overlap_action" in text and "every day at 03:00" in text and "max_concurrency" not in text
    answer = cli.json("task", "next", "nightly", "-n", "3")
    assert set(answer) == set(NextOut.model_fields) and len(answer["next_fires"]) == 3
    assert cli.text("task", "next", "nightly").count("03:00:00") == 5
    for command in ("show", "next", "runs", "export", "trigger", "pause", "delete"):
        assert "no task 'nobody'" in cli.refused("task", command, "nobody", code=Exit.NOT_FOUND)


def test_what_does_not_fire_says_why(cli: Cli) -> None:
    make(cli, "byhand")
    make(cli, "off", "--every", "5m", "--disabled")
    assert "fusee task trigger byhand" in cli("task", "next", "byhand").stderr
    assert "fusee task enable off" in cli("task", "next", "off").stderr


# --- change


def test_edit_changes_what_is_named(cli: Cli) -> None:
    make(cli, "nightly", "--cron", "0 3 * * *", "-p", "days=7", "-p", "deep=true", "--description", "old")
    text = cli.text("task", "edit", "nightly", "cron=0 4 * * *", "payload.days=30", "description=")
    assert "0 0 3 * * * → 0 0 4 * * *" in text and "04:00:00" in text
    shown = cli.json("task", "show", "nightly")
    assert shown["payload"] == {"days": 30, "deep": True}
    assert (shown["description"], shown["version"]) == ("", 2)
    words = ("payload.deep=", "labels.team=42", "after=", "retry.max_attempts=5", "max_concurrency=2")
    edited = cli.json("task", "edit", "nightly", *words)
    assert (edited["payload"], edited["labels"]) == ({"days": 30}, {"team": "42"})
    assert (edited["retry"], edited["max_concurrency"]) == ({"max_attempts": 5}, 2)
    edited = cli.json("task", "edit", "nightly", "every=15m")
    assert (edited["cron"], edited["every"]) == (None, 900)


def test_an_edit_of_an_old_version_is_refused(cli: Cli) -> None:
    make(cli, "nightly", "--cron", "0 3 * * *")
    cli.json("task", "edit", "nightly", "queue=night", "--version", "1")
    assert "is at version 2" in cli.refused("task", "edit", "nightly", "queue=day", "--version", "1")
    assert "a task has no 'colour'" in cli.refused("task", "edit", "nightly", "colour=red")
    assert "keeps its name" in cli.refused("task", "edit", "nightly", "name=daily")
    assert cli.json("task", "show", "nightly")["queue"] == "night"


def test_steering(cli: Cli) -> None:
    make(cli, "nightly", "--cron", "0 3 * * *")
    paused = cli.json("task", "pause", "nightly", "--reason", "the warehouse is down")
    assert (paused["status"], paused["reason"], paused["next_fires"]) == (
        "paused", "the warehouse is down", [],
    )  # fmt: skip
    assert "the warehouse is down" in cli.text("task", "list")
    assert len(cli.json("task", "resume", "nightly")["next_fires"]) == 5
    assert "nightly is disabled: moved" in cli.text("task", "disable", "nightly", "--reason", "moved")
    assert "cannot pause" in cli.refused("task", "pause", "nightly")
    assert "03:00:00" in cli.text("task", "enable", "nightly")
    version = cli.json("task", "show", "nightly")["version"]
    assert "is at version" in cli.refused("task", "delete", "nightly", "--version", str(version - 1))
    make(cli, "report", "--after", "nightly")
    assert "report" in cli.refused("task", "delete", "nightly")
    assert cli.json("task", "delete", "report")["status"] == "deleted"
    assert "nightly is deleted" in cli.text("task", "delete", "nightly")
    assert cli.json("task", "list")["items"] == []


# --- fire


def test_trigger_answers_with_the_rule(cli: Cli) -> None:
    make(cli, "poll", "--overlap", "SKIP", "-p", "a=1")
    fired = cli.json("task", "trigger", "poll", "-p", "b=2", "--key", "once")
    assert set(fired) == set(TriggeredOut.model_fields)
    assert (fired["decision"], fired["created"], fired["run_ids"]) == ("run", True, [1])
    assert cli.json("run", "show", "1")["payload"] == {"a": 1, "b": 2}
    assert cli.json("task", "trigger", "poll", "-p", "b=2", "--key", "once")["created"] is False
    text = cli.text("task", "trigger", "poll")
    assert "was skipped" in text and "overlap_action SKIP: run 1 has not ended" in text
    waited = cli("task", "trigger", "poll", "--wait", "--json")
    assert waited.exit_code == Exit.UNSUCCESSFUL and json.loads(waited.stdout)["status"] == "skipped"
    cli.text("task", "disable", "poll")
    assert "enable it first" in cli.refused("task", "trigger", "poll")


def test_clear_queue_leaves_out_what_stands_in_line(cli: Cli) -> None:
    make(cli, "poll")
    for _ in range(3):
        cli.text("task", "trigger", "poll")
    assert "2 fires of poll left out" in cli.text("task", "clear-queue", "poll", "--reason", "stale")
    assert cli.json("task", "clear-queue", "poll") == {"cleared": 0}
    fires = cli.json("task", "runs", "poll")["items"]
    assert [(fire["decision"], fire["code"]) for fire in fires[:2]] == [("skip", "cleared")] * 2
    assert fires[0]["rule"] == "queue cleared: stale"
    assert "no task" in cli.refused("task", "clear-queue", "nobody", code=Exit.NOT_FOUND)


def test_runs_lists_every_decision(cli: Cli) -> None:
    make(cli, "poll", "--overlap", "SKIP")
    assert "has not fired yet" in cli("task", "runs", "poll").stderr
    for _ in range(3):
        cli.text("task", "trigger", "poll")
    listed = cli.json("task", "runs", "poll")
    assert set(listed["items"][0]) == set(FireOut.model_fields)
    assert [fire["decision"] for fire in listed["items"]] == ["skip", "skip", "run"]
    [ran] = cli.json("task", "runs", "poll", "--decision", "run", "--since", "-5m")["items"]
    assert (ran["run_id"], ran["cause"], ran["run_status"]) == (1, "manual", "pending")
    page = cli.json("task", "runs", "poll", "--limit", "2")
    [last] = cli.json("task", "runs", "poll", "--before", page["next_before"])["items"]
    assert last["run_id"] == 1
    text = cli.text("task", "runs", "poll", "--decision", "skip")
    assert text.count("overlap_action SKIP") == 2 and "pending" not in text
    assert "no fire matches" in cli("task", "runs", "poll", "--until", "2020-01-01").stderr
    assert "next_before" in cli.refused("task", "runs", "poll", "--before", "x", code=Exit.USAGE)


def test_backfill_looks_first(cli: Cli) -> None:
    make(cli, "hourly", "--cron", "@hourly")
    dry = cli.json("task", "backfill", "hourly", "--from", "-3h", "--dry-run")
    assert set(dry) == set(BackfillOut.model_fields)
    assert (dry["id"], dry["created"], dry["count"]) == (None, False, 3)
    assert "would run 3 fires" in cli.text("task", "backfill", "hourly", "--from", "-3h", "--dry-run")
    made = cli.json("task", "backfill", "hourly", "--from", "-3h", "--concurrency", "2")
    assert (made["fires"], made["created"]) == (dry["fires"], True)
    fires = cli.json("task", "runs", "hourly")["items"]
    assert [fire["run_status"] for fire in fires] == ["blocked", "pending", "pending"]
    assert "nothing to make up for; 3 ran before" in cli.text("task", "backfill", "hourly", "--from", "-3h")
    assert "to lies before from" in cli.refused("task", "backfill", "hourly", "--from", "now", "--to", "-1h")
    assert "concurrency" in cli.refused("task", "backfill", "hourly", "--from", "-1h", "--concurrency", "0")
    assert "write a time" in cli.refused("task", "backfill", "hourly", "--from", "then", code=Exit.USAGE)
    late = ("--from", "-5h", "--to", "-4h", "--wait", "--wait-timeout", "50ms")
    waited = cli("task", "backfill", "hourly", *late)
    assert waited.exit_code == Exit.TIMED_OUT and "had not ended" in waited.stderr


def test_on_any_database(database_url: str) -> None:
    """What goes through the command line stands in each database in the same way."""
    cli = Cli("--database", database_url)
    make(cli, "load", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "-p", "name=Grüße")
    make(cli, "report", "--after", "load", "--shards", "2")
    fired = cli.json("task", "trigger", "report")
    assert len(fired["run_ids"]) == 2
    at = fired["fire_time"]
    assert cli.json("explain", "report", at)["verdict"] == "waiting"
    assert [fire["shard"] for fire in cli.json("task", "runs", "report")["items"]] == [1, 0]
    exported = cli("task", "export").stdout
    assert "Grüße" in exported
    changes = cli.json("task", "apply", "-", stdin=exported)["changes"]
    assert {change["action"] for change in changes} == {"unchanged"}
    assert cli.json("task", "edit", "load", "payload.name=")["payload"] == {}
