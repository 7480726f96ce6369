"""`fusee run`, with `submit`: one run, or a file of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sized
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fusee.runs.cli.look import list_runs, show
from fusee.runs.cli.steer import cancel, ended, retry, wait
from fusee.runs.fields import RUN, spec_from
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.follow import progress
from fusee.surfaces.cli.inputs import member_from, object_from, request_from
from fusee.surfaces.cli.options import (
    ALLOW_UNKNOWN,
    KEY,
    Group,
    WaitOption,
    duration,
    option,
    options_of,
    waits,
)
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.engine.model.run import RunSpec
    from fusee.runs.service.runs import RunOperations

__all__ = ["run"]

PLAIN = ("priority", "queue", "region", "strategy", "cpu", "memory", "hash_key", "delay", "timeout")
"""Fields of a run whose options are simply their values."""
ONE_RUN = (
    *PLAIN, "payload", "members", "at", "requires", "max_attempts", "key", "shell", "url", "method",
    "headers", "body", "executor",
)  # fmt: skip
"""What each line of --from-file says for itself."""
A_CALL = 5000
"""A call is accepted whole or not at all, so this is also how many runs a broken line takes with it."""


@click.group(cls=Group)
def run() -> None:
    """Submit runs, look at them, wait for them, stop them, run them again.

    A run is one piece of work: a call of a handler, a program, or an HTTP request.

    Example:
      fusee run submit greet -p name=Ada --wait
      fusee run list --status failed
    """


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


@command(create=True)
@click.argument("words", metavar="[HANDLER | -- ARGV...]", nargs=-1)
@option("--payload JSON", "The handler's arguments: JSON, @FILE, or - for stdin.")
@option("-p members KEY=VALUE", "One argument, as JSON or text.", multiple=True)
@options_of(RUN, "delay", callback=duration())
@option("--at TIME", "Start at this time, such as 2030-01-31T18:00.", callback=_moment)
@options_of(RUN, "priority", "queue", "region", "strategy")
@option("--require requires LABEL=VALUE", "A label its worker must have.", multiple=True)
@options_of(RUN, "cpu", "memory", "hash_key")
@options_of(RUN, "timeout", callback=duration())
@option("--max-attempts N", "Attempts in all, instead of the handler's policy.", type=int)
@KEY
@option("--shell", "Run a program: --shell -- PROGRAM ARGUMENT...")
@option("--http url URL", "Make an HTTP call.")
@option(
    "--executor NAME",
    "Run it in kubernetes or dask; its fields go in --payload or -p.",
    choices=("kubernetes", "dask"),
)
@option("--method NAME", "With --http: GET, POST, ...  [default: by the body]")
@option("--header headers NAME:VALUE", "With --http; repeatable.", multiple=True)
@option("--body TEXT", "With --http: JSON or text; @FILE, or -.")
@option("--from-file FILE", "Many runs, one JSON object a line; - for stdin.")
@waits
@ALLOW_UNKNOWN
async def submit(
    runs: RunOperations, out: Out, /, words: tuple[str, ...], wait: WaitOption | None, **given: Any
) -> Answer | None:
    """Submit a run: call a handler, start a program, or make an HTTP request.

    What was accepted is never lost: it ends in a final state or is visibly waiting. A handler that no worker
    has ever registered is refused, since it could not run; --allow-unknown accepts it.

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
    _check(words, given)
    if given["from_file"]:
        return await _submit_file(runs, out, given["from_file"], given["allow_unknown"], wait)
    [made] = await runs.submit([_spec(words, given)], allow_unknown=given["allow_unknown"])
    if wait is not None:
        out.say(f"run {made.id}" if made.created else f"run {made.id}, submitted before with this key")
        return await ended(runs, out, [made.id], wait)
    known = "this key was used before: that is its run, nothing new"
    follow = f"follow it: fusee run wait {made.id}, fusee run show {made.id}"
    say = ["submitted" if made.created else known, follow]
    return Answer({"id": made.id, "created": made.created}, str(made.id), say=say)


def _check(words: tuple[str, ...], given: dict[str, Any]) -> None:
    """There is exactly one way that says what shall run."""
    if given["from_file"]:
        if words or any(given[name] for name in ONE_RUN):
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


def _spec(words: tuple[str, ...], given: dict[str, Any]) -> RunSpec:
    from fusee.values.times import show_time

    fields = {name: given[name] for name in PLAIN}
    due = None if given["at"] is None else show_time(given["at"])
    fields |= {"due_at": due, "idempotency_key": given["key"]}
    if given["requires"]:
        fields["requires"] = dict(member_from(label, "--require") for label in given["requires"])
    if given["max_attempts"] is not None:
        fields["retry"] = {"max_attempts": given["max_attempts"]}
    if given["shell"]:
        fields |= {"executor": "shell", "payload": {"argv": list(words)}}
    elif given["url"]:
        call = request_from(given["url"], given["method"], given["headers"], given["body"])
        fields |= {"executor": "http", "payload": call}
    else:
        what = {"executor": given["executor"]} if given["executor"] else {"handler": words[0]}
        fields |= {**what, "payload": object_from(given["payload"], given["members"])}
    return spec_from({name: value for name, value in fields.items() if value is not None})


async def _submit_file(
    runs: RunOperations, out: Out, name: str, allow_unknown: bool, wait: WaitOption | None
) -> Answer | None:
    from fusee.errors import FuseeError

    ids: list[int] = []
    made = 0
    with _open(name) as lines, progress(out) as update:
        total = _count(name)
        for first, last, specs in _calls(lines, name, ids):
            try:
                accepted = await runs.submit(specs, allow_unknown=allow_unknown)
            except FuseeError as error:
                raise Failure(
                    f"{name}, lines {first} to {last}: {error} ({len(ids)} runs were accepted before them)",
                    Exit.REFUSED,
                ) from error
            ids += [run.id for run in accepted]
            made += sum(run.created for run in accepted)
            update("submitting", len(ids), total)
    known = len(ids) - made
    span = {"first_id": min(ids, default=None), "last_id": max(ids, default=None)}
    told = Answer(
        {"accepted": len(ids), "created": made, **span},
        f"{made} runs submitted" + (f", {known} known by their keys" if known else ""),
    )
    if wait is None or not ids:
        return told
    told.print(out)
    return await ended(runs, out, ids, wait)


def _calls(lines: IO[str], name: str, accepted: Sized) -> Iterator[tuple[int, int, list[RunSpec]]]:
    """(first line, last line, the runs in between), a call's worth each."""
    from fusee.errors import Invalid

    specs: list[RunSpec] = []
    first = number = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        first = first or number
        try:
            specs.append(spec_from(json.loads(line)))
        except (ValueError, Invalid) as error:
            why = f"not JSON: {error}" if isinstance(error, ValueError) else str(error)
            raise Failure(
                f"{name}:{number}: {why} ({len(accepted)} runs were accepted before)", Exit.REFUSED
            ) from None
        if len(specs) == A_CALL:
            yield first, number, specs
            specs, first = [], 0
    if specs:
        yield first, number, specs


def _open(name: str) -> AbstractContextManager[IO[str]]:
    if name == "-":
        return nullcontext(sys.stdin)
    try:
        return Path(name).open(encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot read {name}: {error.strerror}", Exit.NOT_FOUND) from None


def _count(name: str) -> int | None:
    """How many lines there will be, for the bar; a stream does not say."""
    if name == "-" or not Path(name).is_file():
        return None
    with Path(name).open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) or None


for command_ in (submit, list_runs, show, wait, cancel, retry):
    run.add_command(command_)
