"""`fusee up`, `fusee server`, `fusee dispatcher`, `fusee worker`: the processes of the platform."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fusee.facts import facts
from fusee.runs.cli.workers import drain, list_workers
from fusee.surfaces.cli.options import Command, Group, Shared, merged, option
from fusee.surfaces.cli.output import Out, clean

if TYPE_CHECKING:
    from fusee.app.cli.node import Parts, Started
    from fusee.app.fusee import Fusee
    from fusee.tasks.service.apply import Change

__all__ = ["dispatcher", "server", "up", "worker"]

APP = option("--app MODULE:APP", "Where your handlers are registered.")
BIND = option("--bind HOST:PORT", "Where the API listens; port 0 takes a free one.")


def _worker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for add in reversed(
        (
            option("--queue queues NAME", "Take runs only from this queue; repeatable.", multiple=True),
            option("--capacity N", "Runs that it executes at once.", type=click.IntRange(1, 10_000)),
            option("--name NAME", "The worker's name.  [default: host and pid]"),
            option("--region NAME", "Also take runs of this region."),
            option("--cpu N", "Cores that its runs may use.", type=click.FloatRange(0, min_open=True)),
            option("--memory SIZE", "Memory that its runs may use, such as 8GiB."),
        )
    ):
        function = add(function)
    return function


@click.command(cls=Command)
@APP
@BIND
@_worker_options
@option("--no-api", "Start without the API.")
@option("--no-dispatcher", "Start without a dispatcher.")
@option("--no-worker", "Start without a worker.")
@click.pass_context
def up(
    context: click.Context,
    /,
    app: str | None,
    no_api: bool,
    no_dispatcher: bool,
    no_worker: bool,
    **given: Any,
) -> None:
    """Start the whole platform in one process: API, dispatcher and worker.

    The first start creates the database. Ctrl-C (or SIGTERM) drains: no new runs are taken, running ones may
    finish, and the rest is returned to the queue; a second one stops at once. When any part dies, the process
    ends with exit code 1, so that a supervisor can restart it.

    Example:
      fusee up --app myproject.jobs:app
      fusee up --app jobs:app --bind 127.0.0.1:9000 --database postgresql://fusee@db/fusee
    """

    def parts(app: Fusee) -> Parts:
        from fusee.app.cli.node import Parts

        config = app.config
        return Parts(
            api=config.api.enabled and not no_api,
            dispatcher=config.dispatcher.enabled and not no_dispatcher,
            worker=config.worker.enabled and not no_worker,
        )

    _start(context, app, given, parts)


@click.command(cls=Command)
@APP
@BIND
@click.pass_context
def server(context: click.Context, /, app: str | None, **given: Any) -> None:
    """Start the API only.

    The API is at http://HOST:PORT/api/v1, its reference at /docs. To listen on other than loopback addresses
    it needs an API key: `fusee key create NAME`.

    Example: fusee server --bind 0.0.0.0:8080
    """
    _start(context, app, given, lambda app: _parts(api=True))


@click.command(cls=Command)
@option("--region dispatcher_region NAME", "Handle only work of this region, and work without a region.")
@click.pass_context
def dispatcher(context: click.Context, /, **given: Any) -> None:
    """Start a dispatcher only.

    It fires schedules, makes delayed runs due, returns the runs of dead workers, and deletes old runs. Run
    two or more: there is no leader, and any of them may die.

    Example:
      fusee dispatcher
      fusee dispatcher --region eu
    """
    _start(context, None, given, lambda app: _parts(dispatcher=True), needs_app=False)


@click.group(cls=Group, invoke_without_command=True)
@APP
@_worker_options
@click.pass_context
def worker(context: click.Context, /, app: str | None, **given: Any) -> None:
    """Start a worker only; or list the workers, or ask one to leave.

    It takes the runs that its handlers, queues and region allow, and no others. Start as many as you like; a
    dispatcher must run somewhere (`fusee up` or `fusee dispatcher`).

    Example:
      fusee worker --app myproject.jobs:app --queue mail --queue default --capacity 64
      fusee worker --app myproject.jobs:app --region eu --cpu 8 --memory 16GiB
      fusee worker drain worker-7 --wait 2m
    """
    if context.invoked_subcommand is None:
        _start(context, app, given, lambda app: _parts(worker=True))


for command_ in (list_workers, drain):
    worker.add_command(command_)


def _parts(*, api: bool = False, dispatcher: bool = False, worker: bool = False) -> Parts:
    from fusee.app.cli.node import Parts

    return Parts(api=api, dispatcher=dispatcher, worker=worker)


def _start(
    context: click.Context,
    name: str | None,
    given: dict[str, Any],
    parts: Callable[[Fusee], Parts],
    *,
    needs_app: bool = True,
) -> None:
    from fusee.app.cli.node import run_node

    shared, out = Shared.of(context), Out.of(context)
    flags: dict[str, Any] = {
        "api": {"bind_address": given.get("bind")},
        "worker": {
            "queues": list(given["queues"]) if given.get("queues") else None,
            "max_concurrent_tasks": given.get("capacity"),
            "worker_id": given.get("name"),
            "region": given.get("region"),
            "cpu": given.get("cpu"),
            "memory": given.get("memory"),
        },
        "dispatcher": {"region": given.get("dispatcher_region")},
    }
    app = _load_app(shared, name, flags, needs_app)
    chosen = parts(app)
    if not chosen.any:
        raise click.UsageError("nothing is left to start: the API, the dispatcher and the worker are all off")
    _begin_logging(app)
    run_node(app, chosen, lambda started: _announce(out, started, context.info_name or "fusee"))


def _load_app(shared: Shared, name: str | None, flags: dict[str, Any], needs_app: bool) -> Fusee:
    """The user's app under the command line's settings, or one without handlers."""
    from fusee.app.cli.opening import import_app
    from fusee.app.fusee import Fusee
    from fusee.config import Config

    config = shared.load(flags)  # also checks the flags themselves
    name = name or config.worker.app
    if not needs_app or name is None:
        return Fusee(config=config)
    if shared.config is not None:
        # So that the application, and the processes its handlers run in, read the same file.
        os.environ["FUSEE_CONFIG"] = str(shared.config.absolute())
    app = import_app(name)
    # What the application set in its code holds; what was said on the command line holds more.
    own = app.config.model_dump(exclude_unset=True)
    app.config = Config.model_validate(_without_none(merged(own, merged(shared.overrides(), flags))))
    return app


def _without_none(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }


def _begin_logging(app: Fusee) -> None:
    from fusee.observe import log_events, set_up_logging

    set_up_logging(app.config.logging)
    log_events(app.bus)


def _announce(out: Out, started: Started, command: str) -> None:
    """A line of JSON for a program, a banner on a terminal, a line of the log elsewhere."""
    import logging

    app = started.app
    about = {
        "pid": os.getpid(),
        "parts": started.parts.names(),
        "address": started.address,
        "status": started.status,
        **_places(started),
        "namespace": app.config.namespace,
        "worker": started.worker,
        "handlers": list(app.handlers.names()),
        "tasks": {change.name: change.action for change in started.tasks},
    }
    if out.json:
        out.data({"event": "started", **about}, line=True)
    elif not sys.stderr.isatty():
        logging.getLogger("fusee").info("started", extra=facts(about, command=command))
    elif not out.shared.quiet:
        _banner(started)


def _places(started: Started) -> dict[str, str]:
    """Where its work comes from; a worker that messages feed has no database."""
    config, parts = started.app.config, started.parts
    messages = config.broker.type == "rabbitmq"
    places = {"database": config.database.safe_url} if parts.api or parts.dispatcher or not messages else {}
    return places | ({"broker": config.broker.safe_url} if messages else {})


def _declared(change: Change) -> str:
    return change.name if change.action == "unchanged" else f"{change.name} ({change.action}d)"


def _banner(started: Started) -> None:
    app, parts = started.app, started.parts
    lines: list[tuple[str, str]] = []
    if started.address:
        lines.append(("api", f"{started.address}/api/v1   reference: {started.address}/docs"))
    if started.status:
        lines.append(("status", f"{started.status}/readyz   {started.status}/metrics"))
    lines += _places(started).items()
    if app.config.namespace != "default":
        lines.append(("namespace", app.config.namespace))
    if parts.worker:
        lines.append(("worker", f"{started.worker}, up to {app.config.worker.max_concurrent_tasks} at once"))
        none = "none yet; add yours with --app myproject.jobs:app"
        lines.append(("handlers", ", ".join(app.handlers.names()) or none))
        others = [
            name
            for name in ("http", "shell", "kubernetes", "dask")
            if getattr(app.config.executors, name).enabled
        ]
        if others:
            lines.append(("also runs", ", ".join(others)))
    if started.tasks:
        lines.append(("tasks", ", ".join(_declared(change) for change in started.tasks)))
    if parts.dispatcher:
        lines.append(("dispatcher", "running"))
    lines.append(("stop", "Ctrl-C, which lets runs finish; twice to stop at once"))
    click.echo(click.style("fusee is up", fg="green", bold=True) + f"  (pid {os.getpid()})", err=True)
    for label, text in lines:
        click.echo(f"  {click.style(f'{label:<11}', dim=True)}{clean(text)}", err=True)
