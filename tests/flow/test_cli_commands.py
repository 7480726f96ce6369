"""The commands that need no other process: each by its output, its JSON and its exit code."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fusee.app.cli.root import cli
from fusee.engine.store.migrate import known
from fusee.surfaces.cli.exits import Exit, meanings
from tools.document_cli import commands, page

ROOT = Path(__file__).parents[2]
Fusee = Callable[..., Result]

HEAD = known()[-1]
"""The newest revision of the schema."""


@pytest.fixture
def fusee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fusee:
    """`fusee("run", "list")` in an empty folder, with its own database."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, words, input=stdin)

    return run


def ok(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(result: Result, code: Exit) -> str:
    """The message of an error told as JSON."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    error = json.loads(result.stderr)["error"]
    assert error["exit"] == code
    return str(error["message"])


# --- help and docs


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_teaches(fusee: Fusee, name: str, command: Any) -> None:
    result = fusee(*name.split()[1:], "--help")
    assert result.exit_code == 0
    purpose, *rest = (command.help or "").split("\n\n")
    assert "\n" not in purpose and purpose.endswith("."), "the first paragraph is one line"
    assert "Example:" in rest[-1]
    assert name in rest[-1], "the example shows the command itself"


def test_help_tells_the_exit_codes(fusee: Fusee) -> None:
    text = fusee("--help").stdout
    for code, meaning in meanings().items():
        assert f"{int(code)} " in text and meaning in text


def test_the_page_is_fresh() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == page(), "run python tools/document_cli.py"


def test_help_loads_nothing_heavy() -> None:
    """The package itself is left out: what `import fusee` loads is not the command line's to decide."""
    code = (
        "import importlib.util, sys, types\n"
        "spec = importlib.util.find_spec('fusee'); bare = types.ModuleType('fusee')\n"
        "bare.__path__ = list(spec.submodule_search_locations); sys.modules['fusee'] = bare\n"
        "import fusee.app.cli\n"
        "heavy = {'sqlalchemy', 'pydantic', 'fastapi', 'uvicorn', 'aiohttp', 'alembic', 'rich', 'asyncpg'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- usage


def test_a_wrong_command_line_is_2(fusee: Fusee) -> None:
    assert fusee("run", "submit").exit_code == Exit.USAGE
    assert fusee("nonsense").exit_code == Exit.USAGE
    assert "--shell or --http" in refused(
        fusee("run", "submit", "--shell", "--http", "https://a.example", "--json", "--", "ls"), Exit.USAGE
    )
    assert "duration" in refused(fusee("--json", "run", "submit", "x", "--delay", "soon"), Exit.USAGE)


def test_the_shared_options_stand_anywhere(fusee: Fusee) -> None:
    fusee("db", "upgrade")
    assert ok(fusee("--json", "run", "list")) == ok(fusee("run", "--json", "list"))
    assert ok(fusee("run", "list", "--json"))["items"] == []


# --- the database


def test_a_mistyped_database_is_not_created(fusee: Fusee, tmp_path: Path) -> None:
    message = refused(fusee("run", "list", "--json", "--database", "sqlite:///typo.db"), Exit.UNAVAILABLE)
    assert "typo.db" in message and "fusee db upgrade" in message
    assert not (tmp_path / "typo.db").exists()


def test_an_unreachable_database_is_6_and_keeps_the_password(fusee: Fusee) -> None:
    url = "postgresql://ada:sesame@127.0.0.1:1/fusee"
    message = refused(fusee("run", "list", "--json", "--database", url), Exit.UNAVAILABLE)
    assert "127.0.0.1:1" in message and "sesame" not in message
    assert fusee("db", "status", "--database", "sqlite:////no/such/folder/x.db").exit_code == Exit.UNAVAILABLE


def test_db_upgrade_and_status(fusee: Fusee) -> None:
    first = ok(fusee("db", "upgrade", "--json"))
    assert first["before"] is None and first["revision"] == first["wanted"]
    assert ok(fusee("db", "upgrade", "--json"))["before"] == first["revision"]
    assert ok(fusee("db", "status", "--json"))["up_to_date"] is True


def test_db_upgrade_tells_what_the_new_version_adds(fusee: Fusee, request: pytest.FixtureRequest) -> None:
    before = ok(fusee("db", "upgrade", "--json"))["revision"]
    after = request.getfixturevalue("another_revision")
    assert fusee("db", "status").exit_code == Exit.FAILED
    assert "fusee db upgrade" in refused(fusee("run", "list", "--json"), Exit.UNAVAILABLE)
    told = fusee("db", "upgrade").output
    assert f"revision {after} (was {before})" in told
    for line in (
        f"{after}  Colours for lanes",
        "new tables: fusee_colours",
        "fusee_queues.shade",
        "go on working",
    ):
        assert line in told
    assert ok(fusee("db", "status", "--json"))["revision"] == after


def test_the_schema_of_a_development_version_is_refused(fusee: Fusee) -> None:
    fusee("db", "upgrade")
    with closing(sqlite3.connect("fusee.db")) as database, database:
        database.execute("UPDATE fusee_version SET version_num = '0005'")
    for words in (("db", "upgrade"), ("db", "status"), ("run", "list"), ("up",)):
        message = refused(fusee(*words, "--json"), Exit.UNAVAILABLE)
        assert "0005" in message and "only development versions" in message and "fusee db upgrade" in message
    assert "only development versions" in fusee("check", "--connect").output


def test_an_up_to_date_database_is_opened_without_alembic(fusee: Fusee) -> None:
    """Importing it takes longer than most commands."""
    fusee("db", "upgrade")
    code = (
        "import asyncio, sys\n"
        "from fusee import Fusee\n"
        "async def opened():\n"
        "    async with Fusee('sqlite:///fusee.db') as app:\n"
        "        print(await app.store.revision(), 'alembic' in sys.modules)\n"
        "asyncio.run(opened())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"('{HEAD}', '{HEAD}') False"


# --- runs


def test_submit_list_show_cancel_retry(fusee: Fusee) -> None:
    words = ("-p", "name=Ada", "-p", "times=3", "--delay", "1h", "--queue", "mail", "--priority", "5")
    made = ok(fusee("run", "submit", "greet", *words, "--allow-unknown", "--json"))
    assert made == {"id": 1, "created": True}

    [listed] = ok(fusee("run", "list", "--status", "delayed", "--json"))["items"]
    assert listed["handler"] == "greet" and listed["queue"] == "mail" and listed["priority"] == 5
    shown = ok(fusee("run", "show", "1", "--json"))
    assert shown["payload"] == {"name": "Ada", "times": 3} and shown["attempts"] == []
    assert "delayed" in fusee("run", "show", "1").stdout

    [canceled] = ok(fusee("run", "cancel", "1", "--reason", "not today", "--json"))["items"]
    assert canceled == {"id": 1, "status": "canceled", "canceled": True}
    waited = fusee("run", "wait", "1", "--json")
    assert waited.exit_code == Exit.UNSUCCESSFUL
    assert json.loads(waited.stdout)["reason"] == "not today"

    # The handler is unknown still, and doing it again asks once more.
    fusee("run", "retry", "1")
    assert fusee("run", "show", "99").exit_code == Exit.NOT_FOUND
    assert "no run 99" in refused(fusee("run", "cancel", "99", "--json"), Exit.NOT_FOUND)


def test_cancel_many_goes_on_after_a_refusal(fusee: Fusee) -> None:
    for _ in range(2):
        ok(fusee("run", "submit", "greet", "--allow-unknown", "--json"))
    result = fusee("run", "cancel", "1", "77", "2", "--json")
    assert result.exit_code == Exit.NOT_FOUND
    items = json.loads(result.stdout)["items"]
    assert [item.get("canceled") for item in items] == [True, None, True]
    assert items[1]["error"]["kind"] == "not_found"


def test_an_unknown_handler_is_refused(fusee: Fusee) -> None:
    assert "no worker" in refused(fusee("run", "submit", "greet", "--json"), Exit.REFUSED)


def test_one_key_makes_one_run(fusee: Fusee) -> None:
    words = ("run", "submit", "greet", "--key", "once", "--allow-unknown", "--json")
    assert ok(fusee(*words)) == {"id": 1, "created": True}
    assert ok(fusee(*words)) == {"id": 1, "created": False}
    assert "another request" in refused(fusee(*words, "-p", "name=Ada"), Exit.REFUSED)


def test_waiting_has_an_end(fusee: Fusee) -> None:
    ok(fusee("run", "submit", "greet", "--allow-unknown", "--json"))
    assert "run 1" in refused(fusee("run", "wait", "1", "--timeout", "50ms", "--json"), Exit.TIMED_OUT)


@pytest.mark.parametrize("text", ['{"name": "Ada"}', "@payload.json", "-"])
def test_a_payload_from_anywhere(fusee: Fusee, text: str) -> None:
    Path("payload.json").write_text('{"name": "Ada"}')
    result = fusee("run", "submit", "greet", "--payload", text, "--allow-unknown", stdin='{"name": "Ada"}')
    assert result.exit_code == 0, result.output
    assert ok(fusee("run", "show", "1", "--json"))["payload"] == {"name": "Ada"}


def test_shell_and_http(fusee: Fusee, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "executors.shell.enabled" in refused(
        fusee("--json", "run", "submit", "--shell", "--", "ls", "--json"), Exit.REFUSED
    )
    monkeypatch.setenv("FUSEE_EXECUTORS__SHELL__ENABLED", "true")
    ok(fusee("--json", "run", "submit", "--shell", "--", "ls", "--all"))
    assert ok(fusee("run", "show", "1", "--json"))["payload"] == {"argv": ["ls", "--all"]}
    call = ("--http", "https://a.example/hook", "--header", "X-Id: 7", "--body", '{"id": 7}')
    ok(fusee("run", "submit", *call, "--json"))
    shown = ok(fusee("run", "show", "2", "--json"))
    assert shown["executor"] == "http"
    assert shown["payload"] == {
        "url": "https://a.example/hook",
        "headers": {"X-Id": "7"},
        "body": {"id": 7},
    }


def test_a_file_of_runs(fusee: Fusee) -> None:
    lines = [json.dumps({"handler": "greet", "payload": {"n": n}}) for n in range(6000)]
    Path("runs.ndjson").write_text("\n".join(lines) + "\n\n")
    words = ("run", "submit", "--allow-unknown", "--json", "--from-file")
    assert ok(fusee(*words, "runs.ndjson")) == {
        "accepted": 6000,
        "created": 6000,
        "first_id": 1,
        "last_id": 6000,
    }
    keyed = json.dumps({"handler": "greet", "idempotency_key": "a"})
    again = ok(fusee(*words, "-", stdin=f"{keyed}\n{keyed}\n"))
    assert (again["accepted"], again["created"]) == (2, 1)
    message = refused(fusee(*words, "-", stdin=f"{lines[0]}\n{{broken\n"), Exit.REFUSED)
    assert "-:2" in message and "0 runs were accepted" in message
    assert ok(fusee("queues", "--json"))["items"][0]["pending"] == 6001


def test_an_error_cannot_steer_the_terminal(fusee: Fusee) -> None:
    result = fusee("run", "submit", "greet\x1b[2J")
    assert result.exit_code == Exit.REFUSED
    assert "\x1b" not in result.stderr


# --- queues, workers, keys


def test_queue_limits(fusee: Fusee) -> None:
    assert ok(fusee("queue", "limit", "mail", "--rate", "50", "--burst", "100", "--json"))["rate"] == 50
    both = ok(fusee("queue", "limit", "mail", "--concurrency", "3", "--json"))
    assert (both["rate"], both["burst"], both["concurrency"]) == (50, 100, 3)
    assert ok(fusee("queue", "pause", "mail", "--json"))["paused"] is True
    assert "paused; 3 at once; 50/s" in fusee("queues").stdout
    resumed = ok(fusee("queue", "resume", "mail", "--json"))
    assert (resumed["paused"], resumed["concurrency"]) == (False, 3)
    lifted = ok(fusee("queue", "limit", "mail", "--concurrency", "0", "--rate", "0", "--json"))
    assert (lifted["rate"], lifted["burst"], lifted["concurrency"]) == (None, None, None)
    assert fusee("queue", "limit", "mail").exit_code == Exit.USAGE
    assert "burst goes with a rate" in refused(
        fusee("queue", "limit", "other", "--burst", "5", "--json"), Exit.REFUSED
    )


def test_a_queue_gets_a_strategy(fusee: Fusee) -> None:
    assert ok(fusee("queue", "strategy", "mail", "round_robin", "--json"))["strategy"] == "round_robin"
    assert "round_robin" in fusee("queues").stdout
    assert ok(fusee("queue", "limit", "mail", "--rate", "5", "--json"))["strategy"] == "round_robin"
    assert ok(fusee("queue", "strategy", "mail", "shared", "--json"))["strategy"] == "shared"
    assert fusee("queue", "strategy", "mail", "fastest").exit_code == Exit.USAGE
    words = ("--strategy", "affinity", "--memory", "512MB", "--cpu", "2", "--allow-unknown", "--json")
    run = ok(fusee("run", "show", str(ok(fusee("run", "submit", "greet", *words))["id"]), "--json"))
    assert (run["strategy"], run["memory"], run["cpu"]) == ("affinity", 512_000_000, 2)
    assert "2 cpu, 500000KiB" in fusee("run", "show", str(run["id"])).stdout
    task = ok(fusee("task", "create", "t", "--handler", "x", *words))
    assert (task["strategy"], task["memory"]) == ("affinity", 512_000_000)


def test_keys_are_shown_once(fusee: Fusee) -> None:
    made = ok(fusee("key", "create", "deploy", "--role", "viewer", "--json"))
    listed = fusee("key", "list", "--json")
    assert made["key"] not in listed.stdout
    [row] = ok(listed)["items"]
    assert (row["name"], row["role"], row["revoked_at"]) == ("deploy", "viewer", None)
    assert ok(fusee("key", "revoke", "1", "--json")) == {"id": 1, "revoked": True}
    assert fusee("key", "revoke", "1").exit_code == Exit.NOT_FOUND
    quiet = fusee("key", "create", "ci", "--quiet")
    assert quiet.stdout.startswith("fusee_") and quiet.stderr == ""


def test_no_workers(fusee: Fusee) -> None:
    fusee("db", "upgrade")
    assert ok(fusee("workers", "--all", "--json")) == {"items": []}


# --- configuration


def test_check_tells_all_that_is_wrong(fusee: Fusee) -> None:
    Path("fusee.toml").write_text("[worker]\nqueus = ['a']\n\n[databse]\n")
    message = refused(fusee("check", "--json"), Exit.FAILED)
    assert "fusee.toml:2" in message and "fusee.toml:4" in message and "did you mean queues" in message


def test_check_connects_when_asked(fusee: Fusee) -> None:
    assert ok(fusee("check", "--json"))["ok"] is True
    assert "does not exist" in ok(fusee("check", "--connect", "--json"))["checks"][1]["message"]
    fusee("db", "upgrade")
    assert "up to date" in ok(fusee("check", "--connect", "--json"))["checks"][1]["message"]
    Path("fusee.toml").write_text('[api]\nbind_address = "0.0.0.0:8080"\n')
    plain = fusee("check", "--connect")
    assert plain.exit_code == Exit.FAILED and "without TLS" in plain.stdout
    with Path("fusee.toml").open("a") as file:
        file.write('trusted_proxies = ["10.0.0.1"]\n')
    assert fusee("check", "--connect").exit_code == Exit.FAILED
    fusee("key", "create", "first")
    assert fusee("check", "--connect").exit_code == 0


def test_check_imports_an_application(fusee: Fusee) -> None:
    result = fusee("check", "--app", "no_such_module_here:app")
    assert result.exit_code == Exit.FAILED and "no module" in result.stdout


def test_config_init_writes_a_file_that_sets_nothing(fusee: Fusee) -> None:
    assert fusee("config", "init").exit_code == 0
    assert ok(fusee("config", "show", "--changed", "--json")) == {}
    assert fusee("config", "init").exit_code == Exit.REFUSED
    assert fusee("config", "init", "--force").exit_code == 0
    assert fusee("check").exit_code == 0


def test_config_show_tells_origins_and_hides_secrets(fusee: Fusee, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("fusee.toml").write_text('[worker]\nqueues = ["mail"]\n')
    monkeypatch.setenv("FUSEE_DATABASE__URL", "postgresql://ada:sesame@db/fusee")
    result = fusee("config", "show", "--json", "--namespace", "shop")
    assert "sesame" not in result.stdout
    settings = ok(result)
    assert settings["worker.queues"] == {"value": ["mail"], "origin": "fusee.toml:2"}
    assert settings["database.url"]["origin"] == "FUSEE_DATABASE__URL"
    assert settings["namespace"] == {"value": "shop", "origin": "command line"}
    assert settings["worker.threads"]["origin"] == "default"
    assert set(ok(fusee("config", "show", "--changed", "--json"))) == {"worker.queues", "database.url"}


def test_config_reference(fusee: Fusee) -> None:
    assert fusee("config", "reference").stdout == (ROOT / "docs" / "configuration.md").read_text()
    assert ok(fusee("config", "reference", "--json"))["namespace"]["variable"] == "FUSEE_NAMESPACE"


def test_version(fusee: Fusee) -> None:
    assert set(ok(fusee("version", "--json"))) >= {"fusee", "python", "sqlite"}
    assert fusee("--version").stdout.startswith("fusee ")
