"""`fusee check`, is this configuration right before anything starts, and `fusee version`."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fusee.app.cli.opening import import_app, sqlite_file
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.exits import Exit, Failure, failure_of
from fusee.surfaces.cli.options import Shared, merged, option
from fusee.surfaces.cli.output import clean
from fusee.tasks.cli.look import short_trigger

if TYPE_CHECKING:
    from fusee.config import Config

__all__ = ["check", "version"]

PARTS = ("sqlalchemy", "fastapi", "uvicorn", "asyncpg", "asyncmy", "uvloop")

Finding = tuple[str, bool, str]
"""(what was looked at, whether it is right, what there is to say)."""


@command()
@option("--connect", "Also connect to the database and look at its schema.")
@option("--app MODULE:APP", "Also import this application, and check its tasks.")
async def check(shared: Shared, /, connect: bool, app: str | None) -> Answer:
    """Check the configuration without starting anything.

    Everything that is wrong is reported at once, each with its file and line (or variable) and what to do.
    Exits 1 when something is wrong. Nothing is changed: --connect does not touch the schema either.

    Example: fusee check --config /etc/fusee/fusee.toml --connect
    """
    config = shared.load()
    findings: list[Finding] = [("configuration", True, _summary(config))]
    if name := app or config.worker.app:
        findings += _check_app(name)
    keys = 0
    if connect:
        found, keys = await _check_database(config)
        findings += found
    findings += _check_bind(config, connect, keys)
    good = all(right for _, right, _ in findings)
    rows = [{"what": what, "ok": right, "message": message} for what, right, message in findings]

    def drawn() -> list[Any]:
        from rich.text import Text

        marks = {True: Text("ok   ", "green"), False: Text("wrong", "bold red")}
        return [marks[right] + Text(f" {what}: {clean(message)}") for what, right, message in findings]

    return Answer({"ok": good, "checks": rows}, drawn, exit=Exit.OK if good else Exit.FAILED)


def _summary(config: Config) -> str:
    return f"namespace {config.namespace}, database {config.database.safe_url}"


def _check_app(name: str) -> list[Finding]:
    try:
        app = import_app(name)
    except Failure as error:
        return [("application", False, str(error))]
    handlers = ("application", True, f"{name} has {', '.join(app.handlers.names()) or 'no handlers'}")
    return [handlers, *(_check_task(document) for document in app.declared)]


def _check_task(document: Mapping[str, Any]) -> Finding:
    from fusee.errors import Invalid
    from fusee.tasks.service.apply import read_document

    try:
        spec, _ = read_document(document)
    except Invalid as error:
        return "task", False, str(error)
    return "task", True, f"{spec.name}, {short_trigger(spec)}"


async def _check_database(config: Config) -> tuple[list[Finding], int]:
    from fusee.app.fusee import Fusee
    from fusee.config import Config as Whole

    file = sqlite_file(config)
    if file is not None and not file.exists():
        where = file.absolute().parent
        usable = where.is_dir()
        text = f"{file} does not exist; it is made at the first start" if usable else f"no folder {where}"
        return [("database", usable, text)], 0
    plain = Whole.model_validate(
        merged(config.model_dump(exclude_unset=True), {"database": {"migrate": False}})
    )
    try:
        async with Fusee(config=plain) as app:
            current, wanted = await app.store.revision()
            keys = int(current == wanted and await app.keys.any())
    except Exception as error:
        failure = failure_of(error)
        return [("database", False, str(failure or f"{type(error).__name__}: {error}"))], 0
    if current == wanted:
        return [("database", True, f"answers; its schema is up to date (revision {current})")], keys
    have = "no schema yet" if current is None else f"its schema is at revision {current}"
    migrates = config.database.migrate
    advice = "the next start brings it up to date" if migrates else "run `fusee db upgrade`"
    return [("database", migrates, f"answers; {have}, this version wants {wanted}: {advice}")], keys


def _check_bind(config: Config, connected: bool, keys: int) -> list[Finding]:
    if not config.api.enabled or config.api.loopback:
        return []
    bind = config.api.bind_address
    if not config.tls.enabled and not config.api.trusted_proxies:
        text = f"{bind} is open to others without TLS: set tls.cert_file, or api.trusted_proxies"
        return [("api", False, text)]
    if config.api.keys or keys:
        return []
    if connected:
        text = f"{bind} is open to others and there is no API key: `fusee key create NAME` first"
        return [("api", False, text)]
    return [("api", True, f"{bind} is open to others: it will need an API key (--connect looks for one)")]


@command()
def version() -> Answer:
    """Show the version of Fusee and of what it uses.

    Put this into a bug report.

    Example: fusee version --json
    """
    import sqlite3

    from fusee.version import __version__

    about: dict[str, str | None] = {
        "fusee": __version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "sqlite": sqlite3.sqlite_version,
    }
    for part in PARTS:
        try:
            about[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            about[part] = None
    return Answer(about, *(f"{name:<11}{text or 'not installed'}" for name, text in about.items()))
