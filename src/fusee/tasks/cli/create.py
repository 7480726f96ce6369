"""`fusee task`, with `create`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.documents import read_documents
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.inputs import json_or_text, member_from, object_from, request_from
from fusee.surfaces.cli.moments import moment, now_us
from fusee.surfaces.cli.options import ALLOW_UNKNOWN, KEY, Group, option, options_of
from fusee.surfaces.cli.output import Out
from fusee.tasks.cli.apply import apply, diff, export
from fusee.tasks.cli.explain import explain, pointed
from fusee.tasks.cli.look import TASKS, list_tasks, next_fires, next_lines, runs, show
from fusee.tasks.cli.simulate import simulate
from fusee.tasks.cli.steer import clear_queue, delete, disable, edit, enable, fields_of_words, pause, resume
from fusee.tasks.cli.trigger import backfill, restart, trigger
from fusee.tasks.fields import TASK, enabled_from

if TYPE_CHECKING:
    from fusee.tasks.service.tasks import TaskOperations

__all__ = ["task"]

SEPARATELY = ("at", "after", "payload", "labels", "requires")
"""Fields whose options are not simply their values."""


@click.group(cls=Group)
def task() -> None:
    """Make tasks, steer them, fire them, and ask why they ran or did not.

    A task says what to run, when, and under which policies. Each time that it is due leaves a row: it ran, or
    it was skipped, queued or missed, with the rule that decided.

    Example:
      fusee task create nightly --cron "0 3 * * *" --timezone Europe/Berlin --handler tidy
      fusee task list
      fusee task explain nightly "2027-01-31 03:00"
      fusee task apply tasks.yaml
    """


@command(create=True)
@click.argument("words", metavar="NAME [-- ARGV...]", nargs=-1)
@options_of(TASK, "cron", "every")
@option("--at TIME", "Fire once: 2030-01-31T18:00, 18:00 (today), +10m.")
@option("--after NAME", "Wait for this task; repeatable.", multiple=True)
@options_of(TASK, "timezone")
@option("--handler NAME", "Call this handler.  [default: the task's name]")
@option("--payload JSON", "The handler's arguments: JSON, @FILE, or - for stdin.")
@option("-p members KEY=VALUE", "One argument, as JSON or text.", multiple=True)
@option("--url URL", "Make an HTTP call.")
@option("--method NAME", "With --url: GET, POST, ...  [default: by the body]")
@option("--header headers NAME:VALUE", "With --url; repeatable.", multiple=True)
@option("--body TEXT", "With --url: a template, as JSON or text; @FILE.")
@option("--shell", "Run a program: NAME --shell -- PROGRAM ARGUMENT...")
@options_of(TASK, "workflow", overlap_action="overlap", max_concurrency="concurrency max_concurrency")
@options_of(TASK, "concurrency_policy", "queue_depth", failure_action="failure", catch_up_mode="catch_up")
@options_of(TASK, "grace", "jitter", "rate", "shards", "queue", "region", "strategy")
@option("--require requires LABEL=VALUE", "A label its worker must have.", multiple=True)
@options_of(TASK, "cpu", "memory", "hash_key", "priority", "timeout")
@option("--max-attempts N", "Attempts in all, instead of the handler's policy.", type=int)
@options_of(TASK, "description")
@option("--label labels KEY=VALUE", "A label; repeatable.", multiple=True)
@option("--set others FIELD=VALUE", "Any other field; repeatable.", multiple=True)
@option("--template NAME", "Create it from this template.")
@option("--with params NAME=VALUE", "With --template: a parameter; repeatable.", multiple=True)
@option("--file -f FILE", "Read it from this YAML, JSON or TOML file; - for stdin.")
@option("--disabled", "It does not fire until it is enabled.")
@ALLOW_UNKNOWN
@KEY
async def create(tasks: TaskOperations, out: Out, /, words: tuple[str, ...], **given: Any) -> Answer:
    """Create a task, and show when it will fire.

    Without --cron, --every, --at or --after it fires only when someone triggers it. Policies that are not
    named have the defaults shown above; docs/tasks.md explains each of them. With --file, options
    replace what the file says.

    Example:
      fusee task create nightly --cron "0 3 * * *" --timezone Europe/Berlin --handler tidy
      fusee task create poll --every 15s --overlap SKIP --url https://example.com/poll
      fusee task create backup --cron @daily --shell -- pg_dump --file /backup/shop.sql shop
      fusee task create report --after nightly --handler report -p format=pdf --max-attempts 5
      fusee task create --file nightly.yaml
    """
    _check_shape(words, given)
    base = _from_file(given["file"]) if given["file"] else {}
    enabled = not given["disabled"]
    fields = {**base, **_fields(words, given, base, out)}
    if base:
        enabled = enabled_from(fields) is not False and enabled
    task, _ = await tasks.create_once(
        given["key"], fields, enabled=enabled, allow_unknown=given["allow_unknown"]
    )
    return TASKS.all(task, *next_lines(task)[1])


def _check_shape(words: tuple[str, ...], given: dict[str, Any]) -> None:
    if not words and not given["file"]:
        raise click.UsageError('name the task, such as: fusee task create nightly --cron "0 3 * * *"')
    if not given["shell"] and len(words) > 1:
        raise click.UsageError(f"unexpected {words[1]!r}: a program goes after --shell --")
    if given["shell"] and len(words) < 2:
        raise click.UsageError("--shell needs a program: NAME --shell -- PROGRAM ARGUMENT...")
    ways = [name for name in ("handler", "url", "shell", "workflow") if given[name]]
    if len(ways) > 1:
        raise click.UsageError(f"{' and '.join(f'--{way}' for way in ways)}: a task runs one thing")
    if given["params"] and not given["template"]:
        raise click.UsageError("--with goes with --template")
    if not given["url"] and any(given[name] for name in ("method", "headers", "body")):
        raise click.UsageError("--method, --header and --body go with --url")
    if (given["shell"] or given["url"]) and (given["payload"] or given["members"]):
        raise click.UsageError("--payload and -p are a handler's arguments; --shell and --url take none")


def _from_file(name: str) -> dict[str, Any]:
    found = read_documents([name], "task")
    if len(found) != 1:
        raise Failure(
            f"{name} holds {len(found)} tasks: `fusee task apply {name}` is for those", Exit.REFUSED
        )
    return dict(found[0].fields)


def _fields(words: tuple[str, ...], given: dict[str, Any], base: dict[str, Any], out: Out) -> dict[str, Any]:
    named = [field for field in TASK.fields if field in given and field not in SEPARATELY]
    fields = {field: given[field] for field in named if given[field] is not None}
    if words:
        fields["name"] = words[0]
    if given["after"]:
        fields["after"] = list(given["after"])
    if given["labels"]:
        fields["labels"] = dict(member_from(label, "--label") for label in given["labels"])
    if given["requires"]:
        fields["requires"] = dict(member_from(label, "--require") for label in given["requires"])
    if given["max_attempts"] is not None:
        fields["retry"] = {"max_attempts": given["max_attempts"]}
    if given["at"] is not None:
        fields["at"] = _at(given["at"], fields.get("timezone", base.get("timezone", "UTC")))
    if given["shell"]:
        fields |= {"executor": "shell", "payload": {"argv": list(words[1:])}}
    elif given["url"]:
        call = request_from(given["url"], given["method"], given["headers"], given["body"])
        fields |= {"executor": "http", "payload": call}
    elif (payload := object_from(given["payload"], given["members"])) is not None:
        fields["payload"] = payload
    fields |= fields_of_words(given["others"], "--set", fields)
    if given["template"]:
        members = (member_from(one, "--with") for one in given["params"])
        fields |= {"template": given["template"], "with": {k: json_or_text(v) for k, v in members}}
    whole = {**base, **fields}
    if not any(
        whole.get(way) for way in ("handler", "workflow", "batch", "executor", "target_url", "template")
    ):
        fields["handler"] = whole.get("name")
    _point_at_cron(whole.get("cron"), out)
    return fields


def _at(text: str, timezone: Any) -> str:
    from fusee.errors import Invalid
    from fusee.tasks.model.schedule import zone_named
    from fusee.values.times import iso

    try:
        zone = zone_named(str(timezone))
    except ValueError as error:
        raise Invalid(str(error), field="timezone") from None
    return iso(moment(text, zone, now_us(), "--at"))


def _point_at_cron(expression: Any, out: Out) -> None:
    """The same refusal as the store's door, with the field underlined."""
    from fusee.tasks.cron import Cron, CronError

    if out.json or not isinstance(expression, str):
        return
    try:
        Cron.parse(expression)
    except CronError as error:
        raise Failure(pointed(expression, error), Exit.REFUSED, kind="invalid") from None


for command_ in (
    create, list_tasks, show, next_fires, edit, delete, enable, disable, pause, resume,
    clear_queue, trigger, restart, backfill, runs, explain, simulate, apply, diff, export,
):  # fmt: skip
    task.add_command(command_)
