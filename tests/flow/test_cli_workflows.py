"""`fusee workflow`: each command by its output, its JSON and its exit code."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fusee import Fusee as App
from fusee.app.cli.root import cli
from fusee.events import SessionStarted
from fusee.surfaces.cli.exits import Exit

Run = Callable[..., Result]

NIGHTLY = """\
name: nightly
params:
  day:
nodes:
  - name: extract
    handler: note
    payload: {what: "{{param.day}}"}
  - {name: load, after: extract, handler: note}
  - name: tell
    after: [extract, load]
    trigger_rule: all_done
    handler: note
"""


@pytest.fixture
def fusee(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*words: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, words, input=stdin)

    return run


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[None]:
    """The platform in a thread of its own, on the database that the commands find."""
    up, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        app = App(f"sqlite:///{tmp_path}/fusee.db")

        @app.handler()
        async def note(what: str = "") -> str:
            if what == "bad":
                raise RuntimeError("no luck")
            return what

        app.bus.subscribe(SessionStarted, lambda _: up.set())
        async with app.running():
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert up.wait(30)
    yield
    stop.set()
    thread.join()


def ok(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(result: Result, code: Exit) -> str:
    assert result.exit_code == code, result.output
    return str(json.loads(result.stderr)["error"]["message"])


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_a_workflow_from_file_to_end(fusee: Run, platform: None) -> None:
    made = ok(fusee("workflow", "create", write("nightly.yaml", NIGHTLY), "--json"))
    assert (made["action"], made["version"], len(made["nodes"])) == ("created", 1, 3)
    ended = ok(fusee("workflow", "start", "nightly", "-p", "day=Monday", "--wait", "--json"))
    assert (ended["status"], ended["succeeded"], ended["params"]) == ("succeeded", 3, {"day": "Monday"})
    again = fusee("workflow", "wait", str(ended["id"]))
    assert again.exit_code == 0 and again.stdout.startswith(f"workflow run {ended['id']} succeeded in ")
    shown = ok(fusee("workflow", "show", "--run", str(ended["id"]), "--json"))
    assert [node["status"] for node in shown["nodes"]] == ["succeeded"] * 3
    listed = ok(fusee("workflow", "runs", "nightly", "--status", "succeeded", "--json"))
    assert [run["id"] for run in listed["items"]] == [ended["id"]]


def test_a_failure_is_an_exit_code_and_is_done_again(fusee: Run, platform: None) -> None:
    text = NIGHTLY.replace(
        "handler: note\n    payload", "handler: note\n    retry: {max_attempts: 1}\n    payload"
    )
    fusee("workflow", "create", write("nightly.yaml", text))
    failed = fusee("workflow", "start", "nightly", "-p", "day=bad", "-w")
    assert failed.exit_code == Exit.UNSUCCESSFUL and "node extract failed" in failed.stdout
    tree = fusee("workflow", "show", "--run", "1").stdout
    assert "└─ extract  failed" in tree and "load  skipped" in tree
    assert "trigger_rule all_success: extract did not succeed" in tree
    again = fusee("workflow", "rerun", "1", "--wait", "--json")
    assert again.exit_code == Exit.UNSUCCESSFUL
    assert json.loads(again.stdout)["origin_id"] == 1


def test_apply_creates_changes_or_leaves_alone(fusee: Run) -> None:
    write("nightly.yaml", NIGHTLY)
    write(
        "more.json", json.dumps({"workflows": [{"name": "w", "nodes": [{"name": "a", "handler": "note"}]}]})
    )
    apply = ("workflow", "apply", "nightly.yaml", "more.json", "--allow-unknown", "--json")
    assert [one["action"] for one in ok(fusee(*apply))["items"]] == ["created", "created"]
    write("nightly.yaml", "description: every night\n" + NIGHTLY)
    assert [one["action"] for one in ok(fusee(*apply))["items"]] == ["updated", "unchanged"]
    listed = ok(fusee("workflow", "list", "--json"))
    assert [(one["name"], one["version"], one["nodes"]) for one in listed["items"]] == [
        ("nightly", 2, 3),
        ("w", 1, 1),
    ]


def test_a_file_from_standard_input(fusee: Run) -> None:
    for text, name in (
        (NIGHTLY, "nightly"),
        ('{"name": "w", "nodes": [{"name": "a", "handler": "x"}]}', "w"),
    ):
        result = fusee("workflow", "create", "-", "--allow-unknown", "--json", stdin=text)
        assert ok(result)["name"] == name


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("after: extract", "aftr: extract"), "flow.yaml:8: node load has no 'aftr'; did you mean 'after'?"),
        (("after: extract,", "after: [tell],"), "after closes a cycle: load → tell → load"),
        (("{{param.day}}", "{{param.dya}}"), "{{param.dya}}, which params does not declare"),
        (("all_done", "some_done"), "flow.yaml:11: node tell: trigger_rule must be one of"),
        (("name: nightly", "name: nightly\nname: twice"), "flow.yaml:2: not YAML: name is written twice"),
        (("nodes:", "nodes: ]"), "flow.yaml:"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(fusee: Run, change: tuple[str, str], says: str) -> None:
    file = write("flow.yaml", NIGHTLY.replace(*change))
    message = refused(fusee("workflow", "create", file, "--allow-unknown", "--json"), Exit.REFUSED)
    assert says in message


def test_an_unknown_handler_is_refused_with_the_node(fusee: Run) -> None:
    message = refused(fusee("workflow", "create", write("f.yaml", NIGHTLY), "--json"), Exit.REFUSED)
    assert "f.yaml:6: node extract: no worker has a handler 'note'" in message


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("none.yaml", None, "cannot read none.yaml"),
        ("flow.txt", "x", "name it .yaml, .json or .toml"),
        ("flow.json", "{", "is not JSON"),
        ("flow.toml", "x", "is not TOML"),
        ("flow.yaml", "- 5", "a workflow is an object"),
        ("flow.yaml", "[]", "holds no workflow"),
    ],
)
def test_a_file_that_cannot_be_read(fusee: Run, name: str, text: str | None, says: str) -> None:
    if text is not None:
        write(name, text)
    result = fusee("workflow", "apply", name, "--json")
    assert result.exit_code in (Exit.REFUSED, Exit.NOT_FOUND) and says in result.stderr


def test_start_wait_timeout_cancel_delete(fusee: Run) -> None:
    fusee("workflow", "create", write("nightly.yaml", NIGHTLY), "--allow-unknown")
    started = ok(fusee("workflow", "start", "nightly", "--params", '{"day": 1}', "--key", "k", "--json"))
    assert started == {"id": 1, "created": True}
    again = fusee("workflow", "start", "nightly", "-p", "day=1", "--key", "k")
    assert again.stdout.strip() == "1" and "this key was used before" in again.stderr
    late = refused(fusee("workflow", "wait", "1", "--timeout", "50ms", "--json"), Exit.TIMED_OUT)
    assert "0 of 3 nodes had" in late
    canceled = ok(fusee("workflow", "cancel", "1", "--reason", "wrong day", "--json"))
    assert (canceled["told"], canceled["reason"]) == (0, "wrong day")
    assert refused(fusee("workflow", "delete", "nightly", "--version", "7", "--json"), Exit.REFUSED)
    assert ok(fusee("workflow", "delete", "nightly", "--json")) == {"name": "nightly", "deleted": True}
    assert refused(fusee("workflow", "start", "nightly", "--json"), Exit.NOT_FOUND)


def test_show_draws_the_graph(fusee: Run) -> None:
    fusee("workflow", "create", write("nightly.yaml", NIGHTLY), "--allow-unknown")
    shown = fusee("workflow", "show", "nightly").stdout
    assert "param day  required" in shown
    assert "└─ extract  note\n   └─ load  note\n      └─ tell  note  all_done  also after extract" in shown
    assert fusee("workflow", "show").exit_code == Exit.USAGE
    assert fusee("workflow", "show", "nightly", "--run", "1").exit_code == Exit.USAGE
    assert fusee("workflow", "show", "none").exit_code == Exit.NOT_FOUND


def test_lists_with_nothing_in_them_say_so(fusee: Run) -> None:
    fusee("workflow", "create", write("nightly.yaml", NIGHTLY), "--allow-unknown")
    assert "no workflow:" in fusee("workflow", "list", "--prefix", "x").stderr
    assert "no workflow run" in fusee("workflow", "runs").stderr
