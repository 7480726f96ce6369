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
from fusee.surfaces.cli.options import ALLOW_UNKNOWN, KEY, Group
from fusee.surfaces.cli.output import Out
from fusee.tasks.cli.apply import apply, diff, export
from fusee.tasks.cli.explain import explain, pointed
from fusee.tasks.cli.look import TASKS, list_tasks, next_fires, next_lines, runs, show
from fusee.tasks.cli.simulate import simulate
from fusee.tasks.cli.steer import clear_queue, delete, disable, edit, enable, pause, resume
from fusee.tasks.cli.trigger import backfill, restart, trigger
from fusee.tasks.cli.words import fields_of_words

if TYPE_CHECKING:
    from fusee.tasks.service.tasks import TaskOperations

__all__ = ["task"]

PLAIN = (
    "cron", "every", "timezone", "handler", "workflow", "description", "overlap_action", "max_concurrency",
    "concurrency_policy", "queue_depth", "failure_action", "catch_up_mode", "grace", "jitter", "rate",
    "shards", "queue", "region", "strategy", "cpu", "memory", "hash_key", "priority", "timeout",
)  # fmt: skip
"""Fields that take what was typed."""


def _one_of(*words: str) -> click.Choice[str]:
    return click.Choice(words, case_sensitive=False)


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
@click.option("--cron", metavar="EXPRESSION", help="Fire by cron: 5 fields, 6 with seconds, or @daily.")
@click.option("--every", metavar="TIME", help="Fire at an interval: 30s, 15m, 1h30m.")
@click.option("--at", metavar="TIME", help="Fire once: 2030-01-31T18:00, 18:00 (today), +10m.")
@click.option("--after", metavar="NAME", multiple=True, help="Wait for this task; repeatable.")
@click.option("--timezone", metavar="ZONE", help="Such as Europe/Berlin.  [default: UTC]")
@click.option("--handler", metavar="NAME", help="Call this handler.  [default: the task's name]")
@click.option("--payload", metavar="JSON", help="The handler's arguments: JSON, @FILE, or - for stdin.")
@click.option("-p", "members", metavar="KEY=VALUE", multiple=True, help="One argument, as JSON or text.")
@click.option("--url", metavar="URL", help="Make an HTTP call.")
@click.option("--method", metavar="NAME", help="With --url: GET, POST, ...  [default: by the body]")
@click.option("--header", "headers", metavar="NAME:VALUE", multiple=True, help="With --url; repeatable.")
@click.option("--body", metavar="TEXT", help="With --url: a template, as JSON or text; @FILE.")
@click.option("--shell", is_flag=True, help="Run a program: NAME --shell -- PROGRAM ARGUMENT...")
@click.option("--workflow", metavar="NAME", help="Start this workflow.")
@click.option(
    "--overlap",
    "overlap_action",
    type=_one_of("ALLOW", "SKIP", "CANCEL_PREV", "PARALLEL"),
    help="What happens to a fire while an earlier one has not ended.  [default: ALLOW]",
)
@click.option(
    "--concurrency",
    "--max-concurrency",
    "max_concurrency",
    metavar="N",
    type=int,
    help="Fires at once; 0: no cap.  [default: 1]",
)
@click.option(
    "--concurrency-policy",
    type=_one_of("QUEUE", "SKIP", "PARALLEL"),
    help="What happens to a fire above that number.  [default: QUEUE]",
)
@click.option("--queue-depth", metavar="N", type=int, help="Fires that QUEUE may hold.  [default: 100]")
@click.option(
    "--failure",
    "failure_action",
    type=_one_of("RUN_NEW", "SKIP", "RETRY", "PAUSE"),
    help="What happens to a fire when the last one failed.  [default: RUN_NEW]",
)
@click.option(
    "--catch-up",
    "catch_up_mode",
    type=_one_of("NONE", "COMPACT", "FULL"),
    help="What happens to fires that were due while no dispatcher ran.  [default: COMPACT]",
)
@click.option("--grace", metavar="TIME", help="A fire within this delay counts as on time.  [default: 10s]")
@click.option(
    "--jitter", metavar="TIME", help="Delay each start by a random time up to this.  [default: none]"
)
@click.option("--rate", metavar="N", help="Starts a second, or such as 10/m.  [default: no limit]")
@click.option("--shards", metavar="N", type=int, help="Number of runs that each fire creates.  [default: 1]")
@click.option("--queue", metavar="NAME", help="The queue of its runs.  [default: default]")
@click.option("--region", metavar="NAME", help="Only workers of this region.")
@click.option("--strategy", metavar="NAME", help="How its runs find their worker: round_robin, ...")
@click.option(
    "--require", "requires", metavar="LABEL=VALUE", multiple=True, help="A label its worker must have."
)
@click.option("--cpu", metavar="N", type=float, help="Cores its worker must have free.")
@click.option("--memory", metavar="SIZE", help="Memory its worker must have free: 512MB.")
@click.option("--hash-key", metavar="TEXT", help="Runs of one key go to the same worker.")
@click.option("--priority", metavar="N", type=int, help="From -1000 to 1000; higher starts first.")
@click.option("--timeout", metavar="TIME", help="Limit of one attempt, such as 30s.")
@click.option(
    "--max-attempts", metavar="N", type=int, help="Attempts in all, instead of the handler's policy."
)
@click.option("--description", metavar="TEXT", help="For people.")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="A label; repeatable.")
@click.option("--set", "others", metavar="FIELD=VALUE", multiple=True, help="Any other field; repeatable.")
@click.option("--template", metavar="NAME", help="Create it from this template.")
@click.option(
    "--with", "params", metavar="NAME=VALUE", multiple=True, help="With --template: a parameter; repeatable."
)
@click.option("--file", "-f", metavar="FILE", help="Read it from this YAML, JSON or TOML file; - for stdin.")
@click.option("--disabled", is_flag=True, help="It does not fire until it is enabled.")
@ALLOW_UNKNOWN
@KEY
async def create(tasks: TaskOperations, out: Out, /, words: tuple[str, ...], **given: Any) -> Answer:
    """Create a task, and show when it will fire.

    Without --cron, --every, --at or --after it fires only when someone triggers it. Policies that are not
    named have the defaults shown above; docs/tasks.md tells what each of them does. With --file, options
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
        from fusee.tasks.service.fields import enabled_from

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
    fields = {field: given[field] for field in PLAIN if given[field] is not None}
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
