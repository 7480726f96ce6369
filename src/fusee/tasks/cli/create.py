"""`fusee task create`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.documents import read_documents
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.inputs import json_or_text, member_from, object_from, request_from
from fusee.surfaces.cli.moments import moment
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared
from fusee.surfaces.cli.output import Out
from fusee.surfaces.cli.shapes import task_object
from fusee.tasks.cli.carets import pointed
from fusee.tasks.cli.view import show_task
from fusee.tasks.cli.words import fields_of_words

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee

__all__ = ["create"]

PLAIN = {
    "cron": "cron",
    "every": "every",
    "timezone": "timezone",
    "handler": "handler",
    "workflow": "workflow",
    "description": "description",
    "overlap": "overlap_action",
    "max_concurrency": "max_concurrency",
    "concurrency": "concurrency_policy",
    "queue_depth": "queue_depth",
    "failure": "failure_action",
    "catch_up": "catch_up_mode",
    "grace": "grace",
    "jitter": "jitter",
    "rate": "rate",
    "shards": "shards",
    "queue": "queue",
    "region": "region",
    "strategy": "strategy",
    "cpu": "cpu",
    "memory": "memory",
    "hash_key": "hash_key",
    "priority": "priority",
    "timeout": "timeout",
}
"""Option → field, where the field takes what was typed."""


def _one_of(*words: str) -> click.Choice[str]:
    return click.Choice(words, case_sensitive=False)


@click.command(cls=Command)
@click.argument("words", metavar="NAME [-- ARGV...]", nargs=-1)
@click.option("--cron", metavar="EXPRESSION", help="Fire by cron: 5 fields, 6 with seconds, or @daily.")
@click.option("--every", metavar="TIME", help="Fire at an interval: 30s, 15m, 1h30m.")
@click.option("--at", metavar="TIME", help="Fire once: 2030-01-31T18:00, 18:00 (today), +10m.")
@click.option("--after", metavar="NAME", multiple=True, help="Wait for this task; repeatable.")
@click.option("--timezone", metavar="ZONE", help="Such as Europe/Berlin.  [default: UTC]")
@click.option("--handler", metavar="NAME", help="Call this handler.  [default: the task's name]")
@click.option("--payload", metavar="JSON", help="The handler's arguments: JSON, @FILE, or - for stdin.")
@click.option(
    "-p", "members", metavar="KEY=VALUE", multiple=True, help="One argument; JSON where it is, else text."
)
@click.option("--url", metavar="URL", help="Make an HTTP call.")
@click.option("--method", metavar="NAME", help="With --url: GET, POST, ...  [default: by the body]")
@click.option("--header", "headers", metavar="NAME:VALUE", multiple=True, help="With --url; repeatable.")
@click.option("--body", metavar="TEXT", help="With --url: a template; JSON where it is, else text; @FILE.")
@click.option("--shell", is_flag=True, help="Run a program: NAME --shell -- PROGRAM ARGUMENT...")
@click.option("--workflow", metavar="NAME", help="Start this workflow.")
@click.option(
    "--overlap",
    type=_one_of("ALLOW", "SKIP", "CANCEL_PREV", "PARALLEL"),
    help="While an earlier fire has not ended.  [default: ALLOW]",
)
@click.option("--max-concurrency", metavar="N", type=int, help="Fires at once; 0: no cap.  [default: 1]")
@click.option(
    "--concurrency",
    type=_one_of("QUEUE", "SKIP", "PARALLEL"),
    help="When that many are under way.  [default: QUEUE]",
)
@click.option("--queue-depth", metavar="N", type=int, help="Longest line with QUEUE.  [default: 100]")
@click.option(
    "--failure",
    type=_one_of("RUN_NEW", "SKIP", "RETRY", "PAUSE"),
    help="When the last fire failed.  [default: RUN_NEW]",
)
@click.option(
    "--catch-up",
    type=_one_of("NONE", "COMPACT", "FULL"),
    help="For fires that nobody could fire in time.  [default: COMPACT]",
)
@click.option("--grace", metavar="TIME", help="A fire decided this late is on time.  [default: 10s]")
@click.option("--jitter", metavar="TIME", help="Start up to so much later.  [default: none]")
@click.option("--rate", metavar="N", help="Starts a second at most, or 10/m.  [default: none]")
@click.option("--shards", metavar="N", type=int, help="Runs a fire.  [default: 1]")
@click.option("--queue", metavar="NAME", help="[default: default]")
@click.option("--region", metavar="NAME", help="Only workers of this region.")
@click.option("--strategy", metavar="NAME", help="How its runs find their worker: round_robin, broadcast ...")
@click.option(
    "--require", "requires", metavar="LABEL=VALUE", multiple=True, help="A label its worker must have."
)
@click.option("--cpu", metavar="N", type=float, help="Cores its worker must have free.")
@click.option("--memory", metavar="SIZE", help="Memory its worker must have free: 512MB.")
@click.option("--hash-key", metavar="TEXT", help="Runs of one key go to the same worker.")
@click.option("--priority", metavar="N", type=int, help="-1000 to 1000; higher goes first.")
@click.option("--timeout", metavar="TIME", help="An attempt's longest time: 30s.")
@click.option("--max-attempts", metavar="N", type=int, help="Tries in all, instead of the handler's policy.")
@click.option("--description", metavar="TEXT", help="For people.")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Repeatable.")
@click.option("--set", "others", metavar="FIELD=VALUE", multiple=True, help="Any other field; repeatable.")
@click.option("--template", metavar="NAME", help="Make it from this template.")
@click.option(
    "--with", "params", metavar="NAME=VALUE", multiple=True, help="With --template: a parameter; repeatable."
)
@click.option("--file", "-f", metavar="FILE", help="Take it from this YAML, JSON or TOML; - for stdin.")
@click.option("--disabled", is_flag=True, help="It does not fire until it is enabled.")
@click.option("--allow-unknown", is_flag=True, help="Also for a handler that no worker has had yet.")
@click.pass_context
def create(context: click.Context, /, words: tuple[str, ...], **given: Any) -> None:
    """Make a task, and tell when it will fire.

    Without --cron, --every, --at or --after it fires only when someone triggers it. Policies that are not
    named have the defaults shown above; docs/tasks.md tells what each of them does. With --file the file says
    it all, and what else is named on the command line goes over it.

    Example:
      fusee task create nightly --cron "0 3 * * *" --timezone Europe/Berlin --handler tidy
      fusee task create poll --every 15s --overlap SKIP --url https://example.com/poll
      fusee task create backup --cron @daily --shell -- pg_dump --file /backup/shop.sql shop
      fusee task create report --after nightly --handler report -p format=pdf --max-attempts 5
      fusee task create --file nightly.yaml
    """
    _check_shape(words, given)
    drive(_create(Shared.of(context), Out.of(context), words, given))


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


async def _create(shared: Shared, out: Out, words: tuple[str, ...], given: dict[str, Any]) -> None:
    base = _from_file(given["file"]) if given["file"] else {}
    enabled = not given["disabled"]
    async with opened(shared, create=True) as app:
        fields = {**base, **_fields(app, words, given, base, out)}
        if base:
            from fusee.tasks.service.fields import enabled_from

            enabled = enabled_from(fields) is not False and enabled
        task = await app.tasks.create(fields, enabled=enabled, allow_unknown=given["allow_unknown"])
        if out.json:
            out.data(task_object(task, app.tasks.upcoming(task)))
        else:
            show_task(out, app, task)


def _from_file(name: str) -> dict[str, Any]:
    found = read_documents([name], "task")
    if len(found) != 1:
        raise Failure(
            f"{name} holds {len(found)} tasks: `fusee task apply {name}` is for those", Exit.REFUSED
        )
    return dict(found[0].fields)


def _fields(
    app: Fusee, words: tuple[str, ...], given: dict[str, Any], base: dict[str, Any], out: Out
) -> dict[str, Any]:
    fields = {field: given[option] for option, field in PLAIN.items() if given[option] is not None}
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
        fields["at"] = _at(app, given["at"], fields.get("timezone", base.get("timezone", "UTC")))
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


def _at(app: Fusee, text: str, timezone: Any) -> str:
    from fusee.errors import Invalid
    from fusee.tasks.model.schedule import zone_named
    from fusee.values.times import iso

    try:
        zone = zone_named(str(timezone))
    except ValueError as error:
        raise Invalid(str(error), field="timezone") from None
    return iso(moment(text, zone, app.clock.now_us(), "--at"))


def _point_at_cron(expression: Any, out: Out) -> None:
    """The same refusal as the store's door, with the field underlined."""
    from fusee.tasks.cron import Cron, CronError

    if out.json or not isinstance(expression, str):
        return
    try:
        Cron.parse(expression)
    except CronError as error:
        raise Failure(pointed(expression, error), Exit.REFUSED, kind="invalid") from None
