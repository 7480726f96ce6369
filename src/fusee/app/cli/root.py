"""`fusee` itself: its help, its exit codes, and how an error is told."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from typing import Any, NoReturn

import click

from fusee.access.cli import key
from fusee.app.cli.broker import broker
from fusee.app.cli.check import check, version
from fusee.app.cli.config import config
from fusee.app.cli.db import db
from fusee.app.cli.demo.command import demo
from fusee.app.cli.nodes import dispatcher, server, up, worker
from fusee.app.cli.opening import opened
from fusee.batches.cli.commands import batch
from fusee.bulk.cli.businesses import business
from fusee.bulk.cli.jobs import bulk
from fusee.runs.cli.queues import queue
from fusee.runs.cli.submit import run
from fusee.surfaces.cli.exits import Exit, Failure, failure_of, meanings
from fusee.surfaces.cli.options import Group, Plural, Shared, shared_options
from fusee.surfaces.cli.output import told_error
from fusee.tasks.cli.create import task
from fusee.tasks.cli.explain import cron, explain_alone
from fusee.tasks.cli.templates import template
from fusee.workflows.cli.commands import workflow

__all__ = ["cli", "main"]

SECTIONS: MutableMapping[str, Sequence[click.Command]] = {
    "Start": (up, server, dispatcher, worker, demo),
    "Work": (
        task,
        template,
        explain_alone,
        cron,
        workflow,
        batch,
        bulk,
        business,
        run,
        queue,
        broker,
    ),
    "Set up": (check, config, db, key, version),
}


PLURALS = {
    plural: Plural(plural, group)
    for plural, group in (
        ("batches", batch), ("businesses", business), ("keys", key), ("queues", queue), ("runs", run),
        ("tasks", task), ("templates", template), ("workers", worker), ("workflows", workflow),
    )
}  # fmt: skip
"""`fusee runs` is `fusee run list`, and `fusee runs show 7` is `fusee run show 7`."""


class Root(Group):
    """Tells errors in one line (or as JSON) and exits with the code that says what happened."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            shared = Shared(opener=opened)
            answer = super().main(words, prog_name or "fusee", obj=shared, **extra)
        except BaseException as error:
            if isinstance(error, SystemExit):
                raise
            sys.exit(_tell(error, words))
        sys.exit(answer if isinstance(answer, int) else 0)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or PLURALS.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(c.name or "", c.get_short_help_str(80)) for c in commands])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), meaning) for code, meaning in meanings().items()])
        with formatter.section("Environment"):
            formatter.write_text(
                "Every setting has a variable, such as FUSEE_DATABASE__URL or FUSEE_API__BIND_ADDRESS;"
                " `fusee config reference` lists them. NO_COLOR turns colours off."
            )


def _tell(error: BaseException, words: Sequence[str]) -> int:
    failure = failure_of(error)
    as_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    if failure is None:
        text = f"{type(error).__name__}: {error}"
        failure = Failure(f"unexpected: {text}", Exit.FAILED, kind="unexpected")
        if not as_json and not {"-v", "--verbose"} & set(words):
            failure = Failure(f"unexpected: {text} (run it again with -v for the traceback)")
    if {"-v", "--verbose"} & set(words) and failure.exit is not Exit.USAGE:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        document = {"error": {"kind": failure.kind, "message": str(failure), "exit": int(failure.exit)}}
        click.echo(json.dumps(document, ensure_ascii=False), err=True)
        return int(failure.exit)
    if failure.exit is Exit.INTERRUPTED:
        click.echo("", err=True)
        return int(failure.exit)
    told_error(str(failure))
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"       `{error.ctx.command_path} --help` shows its usage", err=True)
    return int(failure.exit)


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.version_option(package_name="fusee", message="fusee %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Fusee runs work on time, in bulk, and back again, on the database you already have.

    \b
    See it work            fusee demo
    Start the platform     fusee up --app myproject.jobs:app
    Give it work           fusee run submit greet -p name=Ada --wait
    On time                fusee task create greet --cron "0 9 * * *" -p name=Ada
    Look                   fusee runs --watch

    Commands talk straight to the database, so they work whether or not a server is up. The plural of a noun
    alone lists: fusee runs, fusee queues, fusee workers. The options below are accepted before and after a
    command's name.
    """
    Shared.of(context)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


cli.params = [
    *shared_options(hidden=False),
    *[parameter for parameter in cli.params if parameter.name == "version"],
]
for _commands in SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def main() -> None:
    """The entry point."""
    cli.main()
