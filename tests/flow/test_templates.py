"""Task templates over REST, on the command line, in files and from code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusee.errors import Invalid
from fusee.surfaces.cli.exits import Exit
from tests.flow.conftest import Cli

TEMPLATES, TASKS = "/api/v1/task-templates", "/api/v1/tasks"
GREETING: dict[str, Any] = {
    "name": "greeting",
    "params": {"who": {}, "hour": {"default": 9}},
    "task": {
        "cron": "0 {{param.hour}} * * *",
        "handler": "greet",
        "payload": {"name": "{{param.who}}"},
        "max_retries": 4,
    },
}
FILE = """
templates:
  - name: greeting
    params:
      who: {}
      hour: {default: 9}
    task:
      cron: 0 {{param.hour}} * * *
      handler: greet
      payload: {name: "{{param.who}}"}
"""


async def ask(served: Any, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    status, answer, _ = await served.ask(method, path, json=body)
    return status, answer


async def test_a_task_is_made_of_a_template_over_rest(served: Any) -> None:
    status, made, headers = await served.ask("POST", TEMPLATES, json=GREETING)
    assert (status, made["version"], headers["ETag"]) == (201, 1, '"1"'), made
    assert headers["Location"] == f"{TEMPLATES}/greeting"
    assert (await ask(served, "POST", TEMPLATES, GREETING))[0] == 409
    wish = {"name": "ada", "template": "greeting", "with": {"who": "Ada"}, "max_retries": 1}
    status, task = await ask(served, "POST", TASKS, wish)
    assert status == 201, task
    assert (task["cron"], task["handler"], task["payload"]) == ("0 0 9 * * *", "greet", {"name": "Ada"})
    assert (task["retry"], task["labels"]) == ({"max_attempts": 2}, {"template": "greeting"})
    status, shown = await ask(served, "POST", f"{TASKS}/preview", wish)
    assert (status, shown["cron"]) == (200, "0 0 9 * * *")
    changed = {**made, "task": {**GREETING["task"], "handler": "hang"}}
    status, changed = await ask(served, "PUT", f"{TEMPLATES}/greeting", changed)
    assert (status, changed["version"]) == (200, 2), changed
    _, again = await ask(served, "GET", f"{TASKS}/ada")
    assert (again["handler"], again["version"]) == ("greet", 1), "what was made stays as it is"
    status, task = await ask(served, "PUT", f"{TASKS}/ada", {"template": "greeting", "with": {"who": "Bob"}})
    assert (status, task["handler"], task["payload"]) == (200, "hang", {"name": "Bob"})
    _, page = await ask(served, "GET", TEMPLATES)
    assert [one["name"] for one in page["items"]] == ["greeting"]
    assert (await served.ask("DELETE", f"{TEMPLATES}/greeting", headers={"If-Match": '"1"'}))[0] == 409
    assert (await served.ask("DELETE", f"{TEMPLATES}/greeting"))[0] == 204
    assert (await ask(served, "GET", f"{TEMPLATES}/greeting"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", TASKS, {"name": "x", "template": "nobody"}, "template"),
        ("POST", TASKS, {"name": "x", "template": "greeting"}, "with"),
        ("POST", TASKS, {"name": "x", "template": "greeting", "with": {"who": "a", "age": 7}}, "with"),
        ("POST", TASKS, {"name": "x", "template": "greeting", "with": {"who": "a", "hour": 99}}, "cron"),
        ("POST", TASKS, {"name": "x", "with": {"who": "a"}}, "template"),
        ("PATCH", f"{TASKS}/there", {"template": "greeting", "with": {"who": "a"}}, "template"),
        ("POST", TEMPLATES, {**GREETING, "name": "other", "task": {"handlr": "x"}}, "task.handlr"),
        ("POST", TEMPLATES, {**GREETING, "name": "other", "params": {}}, "task"),
    ],
)
async def test_what_cannot_be_made_is_refused_with_its_field(
    served: Any, method: str, path: str, body: Any, field: str
) -> None:
    await ask(served, "POST", TEMPLATES, GREETING)
    await ask(served, "POST", TASKS, {"name": "there", "handler": "greet"})
    status, problem = await ask(served, method, path, body)
    assert (status, problem["field"]) == (422, field), problem
    assert [one["name"] for one in (await ask(served, "GET", TASKS))[1]["items"]] == ["there"]
    assert len((await ask(served, "GET", TEMPLATES))[1]["items"]) == 1


async def test_tasks_of_templates_are_made_and_applied_from_code(served: Any) -> None:
    await served.app.templates.create(GREETING)
    task = await served.app.tasks.create({"name": "a", "template": "greeting", "with": {"who": "Ada"}})
    assert task.spec.payload == {"name": "Ada"}
    documents = [{"name": "b", "template": "greeting", "with": {"who": "Bob"}}]
    status, body = await ask(served, "POST", f"{TASKS}/apply", {"documents": documents})
    assert (status, [one["action"] for one in body["changes"]]) == (200, ["create"]), body
    status, body = await ask(served, "POST", f"{TASKS}/apply", {"documents": documents})
    assert [one["action"] for one in body["changes"]] == ["unchanged"]
    documents[0]["with"] = {"who": "Eve"}
    _, body = await ask(served, "POST", f"{TASKS}/apply", {"documents": documents, "dry_run": True})
    assert [one["action"] for one in body["changes"]] == ["update"]
    with pytest.raises(Invalid, match="no template"):
        await served.app.tasks.create({"name": "c", "template": "nobody"})


def test_templates_are_kept_in_files_and_tasks_made_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "templates.yaml"
    file.write_text(FILE)
    assert "template greeting created: version 1" in cli.text("template", "apply", str(file))
    assert cli.json("template", "apply", str(file))["items"][0]["action"] == "unchanged"
    assert "who [hour]" in cli.text("template", "list")
    made = cli.json(
        "task", "create", "a", "--template", "greeting", "--with", "who=Ada", "--with", "hour=7",
        "--allow-unknown",
    )  # fmt: skip
    assert (made["cron"], made["payload"]) == ("0 0 7 * * *", {"name": "Ada"})
    assert cli.json("template", "show", "greeting")["version"] == 1
    exported = cli.text("template", "export")
    assert "unchanged" in cli.text("template", "apply", "-", stdin=exported)
    tasks = tmp_path / "tasks.yaml"
    tasks.write_text("tasks:\n  - name: b\n    template: greeting\n    with: {who: Bob}\n")
    assert "1 created" in cli.text("task", "apply", str(tasks), "--allow-unknown")
    assert cli.json("task", "show", "b")["payload"] == {"name": "Bob"}
    assert "--with goes with --template" in cli("task", "create", "x", "--with", "who=Ada").stderr
    assert "who must be given" in cli.refused("task", "create", "x", "--template", "greeting")
    assert "is deleted" in cli.text("template", "delete", "greeting")
    assert "no template" in cli.refused("template", "show", "greeting", code=Exit.NOT_FOUND)
