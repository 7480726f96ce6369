"""`fusee run submit`: one run, or a file of them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from fusee.runs.cli.bulk import submit_file
from fusee.runs.cli.wait import await_runs, tell_ends
from fusee.surfaces.cli.inputs import member_from, object_from, request_from
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Shared, duration
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.engine.model.run import RunSpec

__all__ = ["submit"]

# What a line of --from-file says for itself.
SAYS_IT_ITSELF = (
    "payload", "members", "delay", "at", "priority", "queue", "region", "timeout", "max_attempts", "key",
    "strategy", "cpu", "memory", "hash_key", "requires",
    "shell", "url", "method", "headers", "body",
)  # fmt: skip


def _moment(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Microseconds since the epoch from an ISO time; one without a zone is local."""
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value).astimezone()
        return round(at.timestamp() * 1_000_000)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            "write a time such as 2030-01-31T18:00 (local) or 2030-01-31T18:00:00Z", context, parameter
        ) from None


@click.command(cls=Command)
@click.argument("words", metavar="[HANDLER | -- ARGV...]", nargs=-1)
@click.option("--payload", metavar="JSON", help="The handler's arguments: JSON, @FILE, or - for stdin.")
@click.option(
    "-p", "members", metavar="KEY=VALUE", multiple=True, help="One argument; JSON where it is, else text."
)
@click.option("--delay", metavar="TIME", callback=duration(), help="Not before this long from now: 5m.")
@click.option("--at", metavar="TIME", callback=_moment, help="Not before then: 2030-01-31T18:00.")
@click.option("--priority", metavar="N", type=int, help="-1000 to 1000; higher goes first.")
@click.option("--queue", metavar="NAME", help="[default: default]")
@click.option("--region", metavar="NAME", help="Only workers of this region.")
@click.option("--strategy", metavar="NAME", help="How it finds its worker: round_robin, broadcast ...")
@click.option(
    "--require", "requires", metavar="LABEL=VALUE", multiple=True, help="A label its worker must have."
)
@click.option("--cpu", metavar="N", type=float, help="Cores its worker must have free.")
@click.option("--memory", metavar="SIZE", help="Memory its worker must have free: 512MB.")
@click.option("--hash-key", metavar="TEXT", help="Runs of one key go to the same worker.")
@click.option("--timeout", metavar="TIME", callback=duration(), help="An attempt's longest time: 30s.")
@click.option("--max-attempts", metavar="N", type=int, help="Tries in all, instead of the handler's policy.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key makes one run only.")
@click.option("--shell", is_flag=True, help="Run a program: --shell -- PROGRAM ARGUMENT...")
@click.option("--http", "url", metavar="URL", help="Make an HTTP call.")
@click.option(
    "--executor",
    metavar="NAME",
    type=click.Choice(["kubernetes", "dask"], case_sensitive=False),
    help="Hand it to kubernetes or dask; what that takes goes in --payload or -p.",
)
@click.option("--method", metavar="NAME", help="With --http: GET, POST, ... [default: by the body]")
@click.option("--header", "headers", metavar="NAME:VALUE", multiple=True, help="With --http; repeatable.")
@click.option("--body", metavar="TEXT", help="With --http: JSON where it is, else text; @FILE, or -.")
@click.option("--from-file", metavar="FILE", help="Many runs, one JSON object a line; - for stdin.")
@click.option("--wait", "-w", is_flag=True, help="Wait for the end; exit 5 when it is no success.")
@click.option("--wait-timeout", metavar="TIME", callback=duration(), help="With --wait: exit 124 after this.")
@click.option("--allow-unknown", is_flag=True, help="Also for a handler that no worker has had yet.")
@click.pass_context
def submit(context: click.Context, /, words: tuple[str, ...], **given: Any) -> None:
    """Submit a run: call a handler, start a program, or make an HTTP request.

    What was accepted is never lost: it ends in a final state or is visibly waiting. A handler that no worker
    has ever registered is refused, since nobody could run it; --allow-unknown accepts it all the same.

    --from-file takes thousands of runs a call, one JSON object a line with the fields handler, payload,
    executor, queue, region, priority, delay (seconds), timeout (seconds), retry, strategy, cpu,
    memory, hash_key, idempotency_key. Give each an idempotency_key, and the file may be submitted again after
    an interruption.

    Example:
      fusee run submit greet -p name=Ada --wait
      fusee run submit report --payload '{"year": 2030}' --delay 5m --key report-2030
      fusee run submit --shell -- pg_dump --file /backup/shop.sql shop
      fusee run submit --http https://example.com/hook --body '{"id": 7}'
      fusee run submit --executor kubernetes --payload '{"image": "registry.example.com/job:1"}'
      fusee run submit --from-file runs.ndjson
    """
    _check_shape(words, given)
    drive(_submit(Shared.of(context), Out.of(context), words, given))


def _check_shape(words: tuple[str, ...], given: dict[str, Any]) -> None:
    """One way of saying what shall run."""
    if given["from_file"]:
        single: tuple[str, ...] = (
            "payload",
            "members",
            "delay",
            "at",
            "priority",
            "queue",
            "region",
            "timeout",
            "strategy",
            "cpu",
            "memory",
            "hash_key",
            "requires",
        )
        single += ("max_attempts", "key", "shell", "url", "method", "headers", "body", "executor")
        if words or any(given[name] for name in single):
            raise click.UsageError("--from-file: each line says all about its run; leave the rest out")
        return
    if sum(bool(given[way]) for way in ("shell", "url", "executor")) > 1:
        raise click.UsageError("--executor, --shell or --http, not two of them")
    if given["shell"] and not words:
        raise click.UsageError("--shell needs a program: --shell -- PROGRAM ARGUMENT...")
    if not given["url"] and any(given[name] for name in ("method", "headers", "body")):
        raise click.UsageError("--method, --header and --body go with --http")
    if (given["shell"] or given["url"]) and (given["payload"] or given["members"]):
        raise click.UsageError("--payload and -p are a handler's arguments; --shell and --http take none")
    if given["delay"] is not None and given["at"] is not None:
        raise click.UsageError("--delay or --at, not both")
    other = given["url"] or given["executor"]
    if not given["shell"] and len(words) != (0 if other else 1):
        if not words:
            raise click.UsageError("name the handler that shall run, or use --shell, --http or --from-file")
        extra = words[0] if other else words[1]
        raise click.UsageError(f"unexpected {extra!r}: arguments for a handler go in -p KEY=VALUE")


async def _submit(shared: Shared, out: Out, words: tuple[str, ...], given: dict[str, Any]) -> None:
    async with opened(shared, create=True) as app:
        if given["from_file"]:
            accepted = await submit_file(app, out, given["from_file"], allow_unknown=given["allow_unknown"])
            if given["wait"] and accepted:
                await tell_ends(app, out, await await_runs(app, out, accepted, given["wait_timeout"]))
            return
        [run] = await app.runs.submit([_spec(words, given)], allow_unknown=given["allow_unknown"])
        if given["wait"]:
            out.say(f"run {run.id}" if run.created else f"run {run.id}, submitted before with this key")
            await tell_ends(app, out, await await_runs(app, out, [run.id], given["wait_timeout"]))
        elif out.json:
            out.data({"id": run.id, "created": run.created})
        else:
            out.show(str(run.id))
            out.say("submitted" if run.created else "this key was used before: that is its run, nothing new")
            out.say(f"follow it: fusee run wait {run.id}, fusee run show {run.id}")


def _spec(words: tuple[str, ...], given: dict[str, Any]) -> RunSpec:
    from fusee.runs.service.runs import spec_from

    fields: dict[str, Any] = {
        "priority": given["priority"],
        "queue": given["queue"],
        "region": given["region"],
        "strategy": given["strategy"],
        "cpu": given["cpu"],
        "memory": given["memory"],
        "hash_key": given["hash_key"],
        "delay": given["delay"],
        "due_at": given["at"],
        "timeout": given["timeout"],
        "idempotency_key": given["key"],
    }
    if given["requires"]:
        fields["requires"] = dict(member_from(label, "--require") for label in given["requires"])
    if given["max_attempts"] is not None:
        fields["retry"] = {"max_attempts": given["max_attempts"]}
    if given["shell"]:
        fields |= {"executor": "shell", "payload": {"argv": list(words)}}
    elif given["url"]:
        fields |= {
            "executor": "http",
            "payload": request_from(given["url"], given["method"], given["headers"], given["body"]),
        }
    else:
        what = {"executor": given["executor"]} if given["executor"] else {"handler": words[0]}
        fields |= {**what, "payload": object_from(given["payload"], given["members"])}
    return spec_from({name: value for name, value in fields.items() if value is not None})
